"""Who holds a block: conservation, reference counts, freed once, the padding block (KV-1, KV-2, KV-4, KV-14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Set
from functools import lru_cache
from itertools import chain
from typing import Final

from engine_under_test.caps import Caps, ReferenceModel
from engine_under_test.events import EventKind
from engine_under_test.types import PADDING_BLOCK
from properties.invariants.predicate import HOLDERS, Predicate, blocks_named, predicate, violation
from properties.invariants.reading import Reading
from properties.moment import Happening, Moment
from properties.verdict import Violation


def blocks_are_conserved(moment: Moment) -> Violation | None:
    """KV-1: every block is in exactly one of free (empty or cached), held (reserved, owned or pinned) and quarantined.

    Where cached blocks are evicted on demand they need not stand in the free queue. A hit on a quarantined block must take it
    out of quarantine: it is held again.
    Source: Kwon et al., Efficient Memory Management for LLM Serving with PagedAttention, SOSP 2023, section 4.2.
    """
    now, quarantined = moment.view.after, moment.after.quarantined.keys()
    placed = now.free | now.held
    if now.has_free_held or (quarantined and not placed.isdisjoint(quarantined)):
        return _in_two_states(now, quarantined)
    first = 1 if moment.caps.has_padding else 0
    pool = _pool(first, moment.after.num_blocks)
    if quarantined or moment.caps.evicts_on_demand:
        placed = placed.union(quarantined, moment.after.cached if moment.caps.evicts_on_demand else ())
    if placed == pool:
        return None
    if lost := pool - placed:
        return violation("KV-1", blocks_named(lost), "neither free nor held nor quarantined", "exactly one of them")
    return violation("KV-1", blocks_named(placed - pool), "in use", f"a pool of blocks {first} to {max(pool)}")


def _in_two_states(now: Reading, quarantined: Set[int]) -> Violation | None:
    for one, other, where in (
        (now.free, now.held, "free and held"),
        (now.free, quarantined, "free and quarantined"),
        (now.held, quarantined, "held and quarantined"),
    ):
        if not one.isdisjoint(other):
            return violation("KV-1", blocks_named(one & other), where, "exactly one state for each block")
    return None


@lru_cache(maxsize=4)
def _pool(first: int, num_blocks: int) -> frozenset[int]:
    return frozenset(range(first, first + num_blocks))


def reference_counts_are_true(moment: Moment) -> Violation | None:
    """KV-2: a block's count is the number of tables, reservations and pins that name it.

    Source: Kwon et al., SOSP 2023, section 4.4 (blocks shared between sequences carry a count).
    """
    after = moment.after
    counts = after.ref_counts
    if counts is None:
        return None
    now = moment.view.after
    if _are_named_once(now, counts) or now.holder_counts == counts:
        return None
    holders = Counter(now.named)
    for block, count in enumerate(counts):
        if count != holders[block] and not (block == PADDING_BLOCK and moment.caps.has_padding):
            names = [f"{s.request_id}/{s.choice}" for s in after.sequences() if block in s.table]
            plans = [f"plan {plan_id}" for plan_id, blocks in after.reservations.items() if block in blocks]
            held_by = ", ".join(names + plans + ["a pin"] * after.pinned.count(block)) or "nobody"
            return violation("KV-2", f"block {block}", f"count {count}", f"{holders[block]}, held by {held_by}")
    return None


def _are_named_once(now: Reading, counts: tuple[int, ...]) -> bool:
    """Each block that is named is named once and counted once, and no other is counted."""
    named = now.named
    if len(named) != len(now.held) or sum(counts) != len(named) or min(counts, default=0) < 0 or min(named, default=0) < 0:
        return False
    num_counts, others = len(counts), 0
    for block in named:
        others += block >= num_counts or counts[block] != 1
    return others == 0


def blocks_are_freed_once(moment: Moment) -> Violation | None:
    """KV-4: no block stands in the free queue twice.

    Source: mini-sglang pull 111 (an abort and an end in one overlapped iteration freed a request twice).
    """
    free = moment.after.free
    if len(free) == len(moment.view.after.free):
        return None
    twice = [block for block, count in Counter(free).items() if count > 1]
    return violation("KV-4", blocks_named(twice), "in the free queue more than once", "once for each acquisition")


def freed_blocks_have_no_holder(moment: Moment) -> Violation | None:
    """KV-4: a block in the free queue has count 0 and no table, reservation or pin names it.

    Source: TensorRT-LLM pull 12667 (a pinned block of count 0 stayed in the free queue).
    """
    seen = moment.view
    now = seen.after
    if now.has_free_held:
        return violation("KV-4", blocks_named(now.free & now.held), "in the free queue while held", "no holder")
    freed = now.free if moment.is_audit else seen.freed
    counts = moment.after.ref_counts
    if freed and counts is not None and moment.caps.reference_model is ReferenceModel.PER_TABLE:
        for block in freed:
            if counts[block]:
                return violation("KV-4", f"block {block}", f"freed with count {counts[block]}", "count 0")
    return None


def freed_blocks_are_behind_their_fence(moment: Moment) -> Violation | None:
    """KV-4: a block enters the free queue only when no launched plan that uses it is still unsettled.

    Source: sglang pull 18803 (freed at the end of a request while an overlapped forward still read it).
    """
    freed, after = moment.view.freed, moment.after
    if not freed or moment.before.generation != after.generation:
        return None
    for plan_id in after.unsettled:
        used = moment.uses.get(plan_id)
        if used is not None and not freed.isdisjoint(used):
            subject = blocks_named(freed & used)
            return violation("KV-4", subject, f"freed while plan {plan_id} uses it", f"quarantine until plan {plan_id} settles")
    return None


def each_acquisition_is_freed_once(moment: Moment) -> Violation | None:
    """KV-4: between two FREED events of a block, somebody took it.

    Source: LMCache pull 5095 (retrieve and lookup both let go of the same objects).
    """
    if not moment.events:
        return None
    seen = moment.view
    if id(_FREED) not in seen.event_kinds or moment.before.generation != moment.after.generation:
        return None
    free = set(seen.before.free)
    for event in moment.events:
        if event.kind is _FREED:
            if not free.isdisjoint(event.blocks):
                twice = blocks_named(free.intersection(event.blocks))
                return violation("KV-4", twice, "freed while in the free queue", "once for each acquisition")
            free.update(event.blocks)
        elif event.kind in _TAKES:
            free.difference_update(event.blocks)
    return None


_FREED: Final = EventKind.FREED  # to look a member up in its enumeration takes longer than the comparison
_TAKES: Final = frozenset({EventKind.RESERVED, EventKind.HIT, EventKind.OWNED, EventKind.FORKED, EventKind.PINNED})


def padding_belongs_to_nobody(moment: Moment) -> Violation | None:
    """KV-14: the padding block is never held, free, cached or quarantined.

    Source: rvllm pull 32 (padded rows wrote the KV of a live slot 0).
    """
    after, now = moment.after, moment.view.after
    if PADDING_BLOCK in now.held:
        return _padding_is("held")
    if PADDING_BLOCK in now.free:
        return _padding_is("free")
    if PADDING_BLOCK in after.cached:
        return _padding_is("cached")
    return _padding_is("quarantined") if PADDING_BLOCK in after.quarantined else None


def padding_is_never_planned(moment: Moment) -> Violation | None:
    """KV-14: no plan names the padding block: not in a table, a hit, a fill, a copy or a slot.

    Source: rvllm pull 32 (padded rows wrote the KV of a live slot 0).
    """
    assert moment.planned is not None
    plan, reservation = moment.planned.plan, moment.planned.reservation
    if PADDING_BLOCK in chain.from_iterable(reservation.tables) or PADDING_BLOCK in chain.from_iterable(plan.hit_blocks):
        return _padding_is("in a planned table or hit")
    if PADDING_BLOCK in reservation.fills:
        return _padding_is("filled")
    if reservation.copies and any(PADDING_BLOCK in copy[:2] for copy in reservation.copies):
        return _padding_is("copied")
    if reservation.slots and min(reservation.slots) < moment.after.block_size:
        return _padding_is("written")
    return None


def _padding_is(where: str) -> Violation:
    return violation("KV-14", f"the padding block ({PADDING_BLOCK})", where, "nobody's, never read and never written")


def _counts_tables(caps: Caps) -> bool:
    return caps.reference_model is ReferenceModel.PER_TABLE


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate(
        "KV-14",
        padding_belongs_to_nobody,
        reads=(*HOLDERS, "free", "cached", "quarantined"),
        is_observable=lambda caps: caps.has_padding,
    ),
    predicate(
        "KV-14",
        padding_is_never_planned,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=lambda caps: caps.has_padding,
    ),
    predicate("KV-4", blocks_are_freed_once, reads=("free",)),
    predicate("KV-4", freed_blocks_have_no_holder, reads=(*HOLDERS, "free", "ref_counts")),
    predicate(
        "KV-4",
        freed_blocks_are_behind_their_fence,
        reads=("free",),
        is_observable=lambda caps: caps.has_fences,
        only_with=("freed blocks",),
    ),
    predicate(
        "KV-4",
        each_acquisition_is_freed_once,
        *(set(Happening) - {Happening.ROLLED_BACK, Happening.RESET, Happening.RESTARTED}),
        is_observable=lambda caps: caps.has_events,
        only_with=("told frees",),
    ),
    predicate("KV-1", blocks_are_conserved, reads=(*HOLDERS, "free", "cached", "quarantined")),
    predicate(
        "KV-2",
        reference_counts_are_true,
        needs=("after.ref_counts",),
        reads=(*HOLDERS, "ref_counts"),
        is_observable=_counts_tables,
    ),
)
