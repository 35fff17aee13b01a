"""What may be evicted, and in which order (KV-9)."""

from __future__ import annotations

from itertools import chain
from typing import Final

from engine_under_test.caps import Caps
from engine_under_test.events import EventKind
from engine_under_test.types import PrefixEntry
from properties.invariants.predicate import Predicate, blocks_named, predicate, violation
from properties.moment import Happening, Moment
from properties.verdict import Violation

_PINNED: Final = EventKind.PINNED


def evicted_blocks_are_idle(moment: Moment) -> Violation | None:
    """KV-9: what a plan evicts has no holder, no pin, no user that it waits for, and is not what the plan itself hits.

    Source: lmdeploy pull 4700 (eviction picked what was pinned), atlas pull 373.
    """
    assert moment.planned is not None
    seen = moment.view
    evicted = seen.evicted
    if not evicted:
        return None
    if not evicted.isdisjoint(seen.before.held) and not evicted.isdisjoint(seen.still_held):
        return _evicted_though(evicted & seen.still_held, "held")
    if seen.planned.has_hits and (hits := evicted.intersection(chain.from_iterable(moment.planned.plan.hit_blocks))):
        return _evicted_though(hits, "hit by the same plan")
    if not evicted.isdisjoint(moment.after.quarantined):
        return _evicted_though(evicted.intersection(moment.after.quarantined), "quarantined")
    return None


def _evicted_though(blocks: frozenset[int], where: str) -> Violation:
    return violation("KV-9", blocks_named(blocks), f"evicted while {where}", "count 0, no pin, no hit")


def least_recently_used_goes_first(moment: Moment) -> Violation | None:
    """KV-9: no cached block that was free before an evicted one is passed over.

    Where eviction is on demand there is no queue: then the last release of what went is not behind that of what stayed.
    Source: Kwon et al., SOSP 2023; Zheng et al., SGLang (RadixAttention), NeurIPS 2024, section 3.
    """
    seen = moment.view
    evicted = seen.evicted
    if not evicted:
        return None
    if moment.caps.evicts_on_demand:
        return _by_release(moment, evicted)
    queue = moment.before.free
    end = len(queue)
    places = {block: queue.index(block) if block in seen.before.free else end for block in evicted}
    last = max(places, key=places.__getitem__)
    passed = seen.after.free.intersection(queue[: places[last]], moment.before.cached, moment.after.cached)
    if passed:
        return violation(
            "KV-9", f"block {last}", f"evicted, {blocks_named(passed)} was free longer", "least recently used first"
        )
    return None


def _by_release(moment: Moment, evicted: frozenset[int]) -> Violation | None:
    released_at, held = moment.facts.released_at, moment.view.after.held
    gone = [(at, block) for block in evicted if (at := released_at(block)) is not None]
    kept = [(at, block) for block in moment.after.cached if block not in held and (at := released_at(block)) is not None]
    if gone and kept and max(gone)[0] > min(kept)[0]:
        found = f"evicted, block {min(kept)[1]} was let go earlier"
        return violation("KV-9", f"block {max(gone)[1]}", found, "least recently used first")
    return None


def released_blocks_queue_behind(moment: Moment) -> Violation | None:
    """KV-9: a cached block that becomes free stands behind every cached block that was free already, and all the while.

    Source: Kwon et al., SOSP 2023; the order of a queue of least recent use.
    """
    seen = moment.view
    fresh = seen.freed_cached
    if not fresh:
        return None
    queue = moment.after.free
    first = min(fresh, key=queue.index)
    behind = seen.before.free.intersection(queue[queue.index(first) + 1 :], moment.after.cached)
    if behind and id(_PINNED) in seen.event_kinds:  # used in between
        behind -= frozenset(chain.from_iterable(event.blocks for event in moment.events if event.kind is _PINNED))
    if behind:
        return violation("KV-9", f"block {first}", f"freed now, ahead of {blocks_named(behind)}", "behind what was free before")
    return None


def tails_go_before_heads(moment: Moment) -> Violation | None:
    """KV-9: of the blocks that become free together, a child stands before its parent, or some block of the parent is held.

    Source: llm-d-inference-sim #704 (blocks of one request were evicted in arbitrary order).
    """
    seen = moment.view
    fresh = seen.freed_cached
    if not fresh:
        return None
    cached, queue, free = moment.after.cached, moment.after.free, seen.after.free
    parents = {cached[block].parent for block in fresh}
    parents.discard(None)
    if not parents:
        return None
    bearers: dict[PrefixEntry | None, list[int]] = {}
    for block, entry in cached.items():
        if entry in parents:
            bearers.setdefault(entry, []).append(block)
    for block in fresh:
        heads = bearers.get(cached[block].parent)
        if heads is not None and free.issuperset(heads) and max(map(queue.index, heads)) < queue.index(block):
            return violation("KV-9", f"block {block}", "behind its parent in the free queue", "the tail before the head")
    return None


def _caches(caps: Caps) -> bool:
    return caps.has_prefix_cache


def _queues_cached(caps: Caps) -> bool:
    return caps.has_prefix_cache and not caps.evicts_on_demand


_MAY_FREE: Final = frozenset(Happening) - {Happening.ROLLED_BACK, Happening.RESET, Happening.RESTARTED}

PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate(
        "KV-9",
        evicted_blocks_are_idle,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=_caches,
        only_with=("evicted blocks",),
    ),
    predicate(
        "KV-9",
        least_recently_used_goes_first,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=_caches,
        only_with=("evicted blocks",),
    ),
    predicate(
        "KV-9",
        released_blocks_queue_behind,
        *_MAY_FREE,
        reads=("free",),
        is_observable=_queues_cached,
        only_with=("freed cached blocks",),
    ),
    predicate(
        "KV-9",
        tails_go_before_heads,
        *_MAY_FREE,
        reads=("free",),
        is_observable=_queues_cached,
        only_with=("freed cached blocks",),
    ),
)
