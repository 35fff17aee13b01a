"""What may be evicted, and in which order (KV-9)."""

from __future__ import annotations

from itertools import chain
from typing import Final

from engine_under_test.types import Caps, PrefixEntry
from properties.invariants.predicate import Predicate, blocks_named, predicate, violation
from properties.invariants.reading import freed_cached, index_changed, reading, still_held
from properties.moment import Happening, Moment
from properties.verdict import Violation


def evicted_blocks_are_idle(moment: Moment) -> Violation | None:
    """KV-9: what a plan evicts has no holder, no pin, no user that it waits for, and is not what the plan itself hits.

    Source: lmdeploy pull 4700 (eviction picked what was pinned), atlas pull 373.
    """
    assert moment.planned is not None
    evicted = _evicted(moment)
    if not evicted:
        return None
    hits = frozenset(chain.from_iterable(moment.planned.plan.hit_blocks))
    for busy, where in (
        (still_held(moment) if not evicted.isdisjoint(reading(moment.before).held) else frozenset(), "held"),
        (hits, "hit by the same plan"),
        (frozenset(moment.after.quarantined), "quarantined"),
    ):
        if not evicted.isdisjoint(busy):
            return violation("KV-9", blocks_named(evicted & busy), f"evicted while {where}", "count 0, no pin, no hit")
    return None


def least_recently_used_goes_first(moment: Moment) -> Violation | None:
    """KV-9: no cached block that was free before an evicted one is passed over.

    Where eviction is on demand there is no queue: then the last release of what went is not behind that of what stayed.
    Source: Kwon et al., SOSP 2023; Zheng et al., SGLang (RadixAttention), NeurIPS 2024, section 3.
    """
    evicted = _evicted(moment)
    if not evicted:
        return None
    if moment.caps.evicts_on_demand:
        return _by_release(moment, evicted)
    before, after, queue = reading(moment.before), reading(moment.after), moment.before.free
    place = before.place
    last = max(evicted, key=lambda block: place.get(block, len(queue)))
    ahead = frozenset(queue[: place.get(last, len(queue))])
    passed = (ahead & after.free).intersection(moment.before.cached, moment.after.cached)
    if passed:
        return violation(
            "KV-9", f"block {last}", f"evicted, {blocks_named(passed)} was free longer", "least recently used first"
        )
    return None


def _by_release(moment: Moment, evicted: frozenset[int]) -> Violation | None:
    released_at, held = moment.facts.released_at, reading(moment.after).held
    gone = [(at, block) for block in evicted if (at := released_at(block)) is not None]
    kept = [(at, block) for block in moment.after.cached if block not in held and (at := released_at(block)) is not None]
    if gone and kept and max(gone)[0] > min(kept)[0]:
        found = f"evicted, block {min(kept)[1]} was let go earlier"
        return violation("KV-9", f"block {max(gone)[1]}", found, "least recently used first")
    return None


def released_blocks_queue_behind(moment: Moment) -> Violation | None:
    """KV-9: a cached block that becomes free stands behind every cached block that was free already.

    Source: Kwon et al., SOSP 2023; the order of a queue of least recent use.
    """
    fresh = freed_cached(moment)
    if not fresh:
        return None
    before, after, cached = reading(moment.before), reading(moment.after), moment.after.cached
    place = after.place
    first = min(fresh, key=place.__getitem__)
    behind = [block for block in after.free & before.free if block in cached and place[block] > place[first]]
    if behind:
        return violation("KV-9", f"block {first}", f"freed now, ahead of {blocks_named(behind)}", "behind what was free before")
    return None


def tails_go_before_heads(moment: Moment) -> Violation | None:
    """KV-9: of the blocks that become free together, a child stands before its parent, or some block of the parent is held.

    Source: llm-d-inference-sim #704 (blocks of one request were evicted in arbitrary order).
    """
    fresh = freed_cached(moment)
    if not fresh:
        return None
    place, cached = reading(moment.after).place, moment.after.cached
    last_place: dict[PrefixEntry | None, int] = dict.fromkeys({cached[block].parent for block in fresh} - {None}, -1)
    for block, entry in cached.items():
        if entry in last_place:
            last_place[entry] = max(last_place[entry], place.get(block, len(place)))
    for block in fresh:
        if -1 < last_place.get(cached[block].parent, -1) < place[block]:
            return violation("KV-9", f"block {block}", "behind its parent in the free queue", "the tail before the head")
    return None


def _evicted(moment: Moment) -> frozenset[int]:
    """Cached blocks that this plan took, and those that left the index to make room for it."""
    assert moment.planned is not None
    new = chain.from_iterable(moment.planned.reservation.new_blocks)
    taken = frozenset(new).intersection(moment.before.cached)
    if moment.caps.evicts_on_demand and index_changed(moment):
        return taken.union(moment.before.cached.keys() - moment.after.cached.keys())
    return taken.union(moment.planned.reservation.evicted)


def _caches(caps: Caps) -> bool:
    return caps.has_prefix_cache


def _queues_cached(caps: Caps) -> bool:
    return caps.has_prefix_cache and not caps.evicts_on_demand


_MAY_FREE: Final = frozenset(Happening) - {Happening.ROLLED_BACK, Happening.RESET, Happening.RESTARTED}

PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("KV-9", evicted_blocks_are_idle, Happening.PLANNED, needs=("planned",), is_observable=_caches),
    predicate("KV-9", least_recently_used_goes_first, Happening.PLANNED, needs=("planned",), is_observable=_caches),
    predicate("KV-9", released_blocks_queue_behind, *_MAY_FREE, reads=("free",), is_observable=_queues_cached),
    predicate("KV-9", tails_go_before_heads, *_MAY_FREE, reads=("free",), is_observable=_queues_cached),
)
