"""What the prefix index says: committed content, its true key, its namespace, completeness (KV-6 to KV-8, KV-13, KV-15)."""

from __future__ import annotations

from operator import attrgetter
from typing import Final

from engine_under_test.caps import Caps
from engine_under_test.events import EventKind
from engine_under_test.types import PrefixEntry, Request
from properties.invariants.predicate import Predicate, blocks_named, predicate, row_named, violation
from properties.moment import Content, Happening, Moment
from properties.verdict import Violation


def index_names_committed_blocks_only(moment: Moment) -> Violation | None:
    """KV-6: each indexed block is full, and every token of it was committed.

    Source: nano-vllm pull 209 (blocks could be hit when allocated, before their KV was computed).
    """
    committed, size = moment.facts.content_by_block, moment.after.block_size
    for block, entry, said in moment.view.touched_contents:
        if len(entry.tokens) != size:
            return violation(
                "KV-6", f"block {block}", f"indexed with {len(entry.tokens)} tokens", f"{size} tokens, a full block"
            )
        if block not in committed:
            return violation("KV-6", f"block {block}", "indexed, its tokens are not committed", "committed content only")
        if said is None:
            return violation("KV-6", f"block {block}", f"indexed as {_shown(entry.tokens)}", "content that was committed")
    return None


def entries_name_the_media_of_their_block(moment: Moment) -> Violation | None:
    """KV-8: an entry names the items over its block as they were committed: digest, offset and whole length. Under less than
    that, another request would find it.

    Source: docs/prefix-key.md; vllm #30931.
    """
    for block, entry, said in moment.view.touched_contents:
        held = None if said is not None else moment.facts.content_by_block.get(block)
        if held is not None and held.media != entry.media and (held.tokens, held.namespace) == (entry.tokens, entry.namespace):
            found = f"indexed with the media (digest, offset, length) {entry.media}"
            return violation("KV-8", f"block {block}", found, f"{held.media}, as in the request")
    return None


def nothing_from_before_a_reset_is_found(moment: Moment) -> Violation | None:
    """KV-6: what a choice computed that began before the last reset of the cache stays out of the index, results that were
    in flight then included.

    Source: `reset_cache` in engine_under_test/adapters/base.py.
    """
    outdated = moment.facts.outdated
    if not outdated:
        return None
    cached = moment.after.cached if moment.happening is Happening.RESET else moment.view.touched_entries
    block = min((block for block in cached if block in outdated), default=None)
    if block is not None:
        return violation(
            "KV-6", f"block {block}", f"indexed as {_shown(cached[block].tokens)}", "nothing from before the reset"
        )
    return None


def entries_stand_under_their_true_key(moment: Moment) -> Violation | None:
    """KV-7: the key of an entry is the hash of its tokens, media, namespace and parent's key.

    Source: docs/prefix-key.md.
    """
    touched, expected_key = moment.view.touched_entries, moment.facts.expected_key
    for entry in dict.fromkeys(touched.values()):  # blocks of equal content share their entry
        expected = expected_key(entry)
        if expected is not None and expected != entry.key:
            block = next(block for block, other in touched.items() if other is entry)
            return violation("KV-7", f"entry of block {block}", f"key {entry.key.hex()}", f"key {expected.hex()}")
    return None


def entries_name_what_their_block_holds(moment: Moment) -> Violation | None:
    """KV-7: what the index says of a block is what was committed into it, its whole prefix included.

    Source: nano-vllm pull 218 (a reused block kept its old entry); vllm pull 4762.
    """
    committed = moment.facts.content_by_block
    for block, _, said in moment.view.touched_contents:
        held = committed.get(block)
        if held is not said and held is not None and said is not None:
            return violation(
                "KV-7", f"block {block}", f"indexed as {_shown(said.tokens)}", f"{_shown(held.tokens)}, as committed"
            )
    return None


def blocks_are_published_once(moment: Moment) -> Violation | None:
    """KV-7: a block that the index names is not published again before it has left the index.

    A block registered twice stays findable by its old content when one registration goes.
    Source: vllm pull 4762 (two tables of cached blocks, one of them cleaned).
    """
    if id(_PUBLISHED) not in moment.view.event_kinds:
        return None
    cached = moment.before.cached
    for event in moment.events:
        if event.kind is _PUBLISHED and not cached.keys().isdisjoint(event.blocks):
            again = [block for block in event.blocks if block in cached]
            return violation("KV-7", blocks_named(again), "published while indexed", "indexed once")
    return None


_PUBLISHED: Final = EventKind.PUBLISHED  # to look a member up in its enumeration takes longer than the comparison


def hits_hold_the_query(moment: Moment) -> Violation | None:
    """KV-7: the blocks that a row found hold the first tokens of its prompt and output, in order.

    Source: text-generation-inference pull 3067 (a look-up went on after a partial match); llm-d-inference-sim pull 701.
    """
    planned = moment.view.planned
    if not planned.has_hits:
        return None
    size = moment.after.block_size
    for i, hits in enumerate(planned.plan.hit_blocks):
        if not hits:
            continue
        row, known = planned.rows[i], _known_tokens(moment, i)
        for number, block in enumerate(hits):
            content = moment.facts.content_by_block.get(block)
            query = known[number * size : (number + 1) * size]
            if content is None or content.tokens[: len(query)] != query:
                found = "nothing committed" if content is None else _shown(content.tokens)
                subject = f"{row_named(row)}, hit {number}, block {block}"
                return violation("KV-7", subject, found, f"{_shown(query)}, the query's tokens")
    return None


def hits_stay_in_their_namespace(moment: Moment) -> Violation | None:
    """KV-8: a row's hits are content of its own model revision, tenant, salt, adapter and version, media and offsets.

    Source: vllm #30931 and #42125, pull 36708; TensorRT-LLM pull 12306.
    """
    planned = moment.view.planned
    if not planned.has_hits:
        return None
    plan, size = planned.plan, moment.after.block_size
    for i, hits in enumerate(plan.hit_blocks):
        if not hits:
            continue
        request = plan.requests[i]
        chain = moment.facts.prompt_contents(request, request.prompt[: len(hits) * size])
        for number, block in enumerate(hits[: len(request.prompt) // size]):
            content = moment.facts.content_by_block.get(block)
            own = chain[number] if number < len(chain) else None
            if content is not None and content is not own:
                subject = f"{row_named(plan.row_id(i))}, hit {number}, block {block}"
                return violation("KV-8", subject, _origin(content), _namespace_of(request))
    return None


def hits_leave_something_to_compute(moment: Moment) -> Violation | None:
    """KV-13: a hit is whole blocks below the last token, and the row starts right behind it.

    Source: nano-vllm pull 199 (a hit on the whole prompt scheduled no token).
    """
    seen = moment.view
    if not seen.planned.has_hits:
        return None
    plan, size = seen.planned.plan, moment.after.block_size
    for i, hits in enumerate(plan.hit_blocks):
        if not hits:
            continue
        row, sequence = seen.planned.rows[i], seen.planned_after[i]
        if sequence is not None and len(hits) > (most := (sequence.visible_len - 1) // size):
            expected = f"at most {most} of {sequence.visible_len} tokens"
            return violation("KV-13", row_named(row), f"a hit of {len(hits)} blocks", expected)
        if plan.starts[i] != len(hits) * size:
            return violation("KV-13", row_named(row), f"starts at {plan.starts[i]}", f"{len(hits) * size}, behind its hit")
    return None


def committed_content_stays_hittable(moment: Moment) -> Violation | None:
    """KV-15: what was committed and neither evicted nor reset can be found.

    Source: sglang pull 27562 (eviction of an inner node orphaned its subtree).
    """
    if not (moment.is_audit or moment.happening is Happening.LANDED or moment.view.is_index_changed):
        return None
    hittable = moment.facts.hittable
    if not hittable.keys() <= moment.after.cached.keys():
        block = min(hittable.keys() - moment.after.cached.keys())
        return violation("KV-15", f"block {block}", "not to be found", f"found as {_shown(hittable[block].tokens)}")
    return None


def beginnings_take_what_can_be_found(moment: Moment) -> Violation | None:
    """KV-15: a row that begins its epoch hits as much of its prefix as must be found, as far as something is left to compute.

    Source: `lookup` in engine_under_test/adapters/base.py (what a request would find if it were admitted now).
    """
    assert moment.planned is not None
    owed = moment.facts.owed_hits
    if not any(owed.values()):
        return None
    for row, hits in zip(moment.view.planned.rows, moment.planned.plan.hit_blocks, strict=True):
        if len(hits) < (most := owed.get(row[:3], 0)):
            return violation("KV-15", row_named(row), f"begins with a hit of {len(hits)} blocks", f"{most}, as can be found")
    return None


def parents_of_entries_stay(moment: Moment) -> Violation | None:
    """KV-15: no entry is unreachable because its parent is gone.

    Source: sglang pulls 27562 and 31902.
    """
    if not (moment.is_audit or moment.view.is_index_changed):
        return None
    cached, orphans = moment.after.cached, _orphaned_from(moment)
    if not orphans:
        return None
    translate = moment.facts.translate
    contents = {translate(entry) for entry in cached.values()}
    for block, entry in cached.items():
        parent = entry.parent
        if parent is not None and parent in orphans and translate(parent) not in contents:
            return violation(
                "KV-15", f"entry of block {block}", f"its parent {_shown(parent.tokens)} is gone", "every ancestor indexed"
            )
    return None


def _orphaned_from(moment: Moment) -> set[PrefixEntry | None]:
    """Parents of entries that are no entries: where something is new or gone. At an audit, anywhere."""
    earlier, cached, touched = moment.before.cached, moment.after.cached, moment.view.touched_entries
    lacking = set(map(_parent_of, touched.values())).difference(cached.values(), (None,))
    if not moment.is_audit:
        left = [block for block in touched if block in earlier]  # under another entry now
        if len(earlier) + len(touched) - len(left) != len(cached):
            left += earlier.keys() - cached.keys()
        if gone := {earlier[block] for block in left}.difference(cached.values()):
            lacking |= gone.intersection(map(_parent_of, cached.values()))
    return lacking


_parent_of: Final = attrgetter("parent")


def _known_tokens(moment: Moment, row: int) -> tuple[int, ...]:
    """Prompt and the output that the harness knows: the target may know more."""
    assert moment.planned is not None
    plan = moment.planned.plan
    choice = moment.facts.choice(plan.row_id(row))
    return plan.requests[row].prompt if choice is None else (*plan.requests[row].prompt, *choice.emitted)


def _shown(tokens: tuple[int, ...]) -> str:
    return f"tokens {' '.join(map(str, tokens))}"


def _origin(content: Content) -> str:
    return f"content of namespace {content.namespace!r} with media {content.media}"


def _namespace_of(request: Request) -> str:
    adapter = "no adapter" if request.adapter is None else f"adapter {request.adapter.name} version {request.adapter.version}"
    media = ", ".join(f"{item.digest} at {item.start}" for item in request.media) or "none"
    return f"its own: tenant {request.tenant!r}, salt {request.cache_salt!r}, {adapter}, media {media}"


def _caches(caps: Caps) -> bool:
    return caps.has_prefix_cache


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate(
        "KV-8", entries_name_the_media_of_their_block, reads=("cached",), is_observable=_caches, only_with=("touched entries",)
    ),
    predicate(
        "KV-6", index_names_committed_blocks_only, reads=("cached",), is_observable=_caches, only_with=("touched entries",)
    ),
    predicate(
        "KV-6",
        nothing_from_before_a_reset_is_found,
        is_observable=lambda caps: caps.has_prefix_cache and caps.has_reset,
        only_with=("outdated blocks",),
    ),
    predicate(
        "KV-7", entries_stand_under_their_true_key, reads=("cached",), is_observable=_caches, only_with=("touched entries",)
    ),
    predicate(
        "KV-7", entries_name_what_their_block_holds, reads=("cached",), is_observable=_caches, only_with=("touched entries",)
    ),
    predicate(
        "KV-7",
        blocks_are_published_once,
        Happening.LANDED,
        is_observable=lambda caps: caps.has_prefix_cache and caps.has_events,
        only_with=("told publications",),
    ),
    predicate("KV-7", hits_hold_the_query, Happening.PLANNED, needs=("planned",), is_observable=_caches, only_with=("hits",)),
    predicate(
        "KV-8", hits_stay_in_their_namespace, Happening.PLANNED, needs=("planned",), is_observable=_caches, only_with=("hits",)
    ),
    predicate(
        "KV-13",
        hits_leave_something_to_compute,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=_caches,
        only_with=("hits",),
    ),
    predicate("KV-15", committed_content_stays_hittable, is_observable=_caches, only_with=("commits or changed index",)),
    predicate(
        "KV-15",
        beginnings_take_what_can_be_found,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=lambda caps: caps.has_prefix_cache and caps.has_lookup and not caps.evicts_on_demand,
        only_with=("owed hits",),
    ),
    predicate("KV-15", parents_of_entries_stay, reads=("cached",), is_observable=_caches, only_with=("changed index",)),
)
