"""Lengths and the steps of the KV transaction: reserve, rollback, abandon, commit (KV-5, KV-12)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain
from typing import Final

from engine_under_test.caps import Caps
from engine_under_test.types import PrefixEntry, Snapshot
from properties.invariants.predicate import SEQUENCES, Predicate, blocks_named, predicate, row_named, violation
from properties.moment import Happening, Moment
from properties.verdict import Violation


def lengths_are_ordered(moment: Moment) -> Violation | None:
    """KV-5: committed <= scheduled <= allocated <= what the blocks hold; idle means scheduled = committed.

    The last visible token is never committed: it is the input of the next step, also of a choice that is computed anew.
    Source: engine_under_test/types.py, SequenceSnapshot; lmdeploy pull 4685 (a length counted twice).
    """
    size, seen, most = moment.after.block_size, moment.view, 1 + moment.caps.max_drafts
    for s in seen.after.sequences if moment.is_audit else seen.fresh_now:
        _, _, _, _, _, _, visible, committed, scheduled, allocated, table, reserved, plans = s
        if (
            0 <= committed <= scheduled <= allocated <= (len(table) + len(reserved)) * size
            and committed < visible
            and (scheduled < visible + len(plans) * most if plans else scheduled == committed)
        ):
            continue
        if not 0 <= committed <= scheduled <= allocated:
            found = f"committed {committed}, scheduled {scheduled}, allocated {allocated}"
            return violation("KV-5", row_named(s.row_id), found, "committed <= scheduled <= allocated")
        if allocated > (len(s.table) + len(s.reserved)) * size:
            found = f"allocated {allocated}"
            expected = f"at most {len(s.table)} owned and {len(s.reserved)} reserved blocks of {size}"
            return violation("KV-5", row_named(s.row_id), found, expected)
        if not s.plans and scheduled != committed:
            return violation("KV-5", row_named(s.row_id), f"idle with scheduled {scheduled}", f"committed, {committed}")
        if committed >= visible or scheduled >= visible + len(s.plans) * most:
            found = f"committed {committed}, scheduled {scheduled} of {visible} visible"
            expected = f"at most {visible - 1} and {most} more a plan in flight"
            return violation("KV-5", row_named(s.row_id), found, expected)
    return None


def decoding_lags_by_one(moment: Moment) -> Violation | None:
    """KV-5: behind a row that sampled, all but the newest token of its choice are committed.

    Source: mini-sglang pull 115 (the computed length advanced without the token).
    """
    assert moment.landed is not None
    plan, after = moment.landed.plan, moment.after
    if plan.plan_id in after.plans or plan.generation != after.generation:
        return None
    for s, samples in zip(moment.view.landed_after, plan.samples, strict=True):
        if samples and s is not None and s.visible_len - s.committed_len != 1:
            found = f"{s.visible_len} visible, {s.committed_len} committed"
            return violation("KV-5", row_named(s.row_id), found, "visible - committed = 1 behind a sampled token")
    return None


def reserve_takes_all(moment: Moment) -> Violation | None:
    """KV-12: a reservation has a block for every position and the right slot for every position that is computed.

    Source: transformers pull 46117, vllm pull 11565 (a reservation that failed midway had taken some blocks).
    """
    assert moment.planned is not None
    plan, reservation, size = moment.planned.plan, moment.planned.reservation, moment.after.block_size
    tables, starts = reservation.tables, plan.starts
    for i, (end, table) in enumerate(zip(moment.view.planned.ends, tables, strict=True)):
        if len(table) * size < end:
            return violation("KV-12", row_named(plan.row_id(i)), f"a table of {len(table)} blocks", f"blocks for {end} slots")
    if plan.num_tokens.count(1) == len(starts):  # decodes only, as nearly always
        expected = [table[start // size] * size + start % size for table, start in zip(tables, starts, strict=True)]
    else:
        columns = zip(tables, starts, moment.view.planned.ends, strict=True)
        expected = [slot for table, start, end in columns for slot in _slots(table, start, end, size)]
    if tuple(expected) != reservation.slots:
        found, wanted = f"slots {reservation.slots}", f"{tuple(expected)}, where the tables put them"
        return violation("KV-12", f"plan {plan.plan_id}", found, wanted)
    seen = moment.view
    if not seen.new <= seen.after.held:
        loose = seen.new - seen.after.held
        return violation("KV-12", blocks_named(loose), f"taken by plan {plan.plan_id} but held by nobody", "held until its end")
    return None


def _slots(table: tuple[int, ...], start: int, end: int, size: int) -> Iterator[int]:
    """Where the table puts positions ``start .. end - 1``, block by block."""
    for number in range(start // size, -(-end // size)):
        first = table[number] * size
        yield from range(first + max(start - number * size, 0), first + min(end - number * size, size))


def rollback_restores_everything(moment: Moment) -> Violation | None:
    """KV-12: after a rollback all is as before reserve: order of the free queue and evicted entries included.

    Preemptions that made room stay: then the states differ by more than the reservation and are not compared. What fences let
    go meanwhile, if any passed, is free.
    Source: nano-vllm pull 211, atlas pull 373 (a failed prefill released nothing of what it had matched).
    """
    return _same_state(moment, "after the rollback", _let_go_meanwhile(moment)) if moment.view.has_same_rows else None


def _let_go_meanwhile(moment: Moment) -> AbstractSet[int]:
    """Blocks that were in quarantine and are not any more, if fences have passed."""
    before, after = moment.before, moment.after
    return frozenset() if before.unsettled == after.unsettled else before.quarantined.keys() - after.quarantined.keys()


def nothing_planned_leaves_no_trace(moment: Moment) -> Violation | None:
    """KV-12: a reservation that was refused, or not tried, changes nothing.

    Source: vllm pull 11565 (hits were referenced before it was known that the rest could be allocated).
    """
    if moment.planned is not None or moment.before.unsettled != moment.after.unsettled or not moment.view.has_same_rows:
        return None
    return _same_state(moment, "after a plan that came to nothing")


def abandon_returns_blocks_empty(moment: Moment) -> Violation | None:
    """KV-12: abandoned plans take every later one with them, and what they took as new comes back empty, held by nobody.

    Source: sglang pull 38355 (pages published mid-prefill, then freed by retract or abort).
    """
    plans = moment.after.plans
    gone = [plan_id for plan_id in moment.before.plans if plan_id not in plans]
    left = [plan_id for plan_id in moment.before.plans if plan_id in plans and gone and plan_id > min(gone)]
    if left:
        return violation("KV-12", f"plan {left[0]}", f"in flight though plan {min(gone)} was abandoned", "abandoned with it")
    now = moment.view.after
    for step in moment.abandoned:
        plan_id = step.plan.plan_id
        if plan_id in plans or plan_id in moment.after.reservations:
            return violation("KV-12", f"plan {plan_id}", "abandoned but in flight", "no longer in flight")
        new = set(chain.from_iterable(step.reservation.new_blocks))
        if not new.isdisjoint(now.held):
            return violation("KV-12", blocks_named(new & now.held), f"held, plan {plan_id} was abandoned", "nobody's")
        if not new.isdisjoint(moment.after.cached):
            named = blocks_named(new.intersection(moment.after.cached))
            return violation("KV-12", named, f"cached, plan {plan_id} was abandoned", "empty")
    return None


def commit_applies_the_whole_plan(moment: Moment) -> Violation | None:
    """KV-12: when the oldest plan's result is in, the plan and its reservation are gone and its live rows have advanced.

    Source: vllm pull 47900 (a frame in flight stayed alive behind a preemption).
    """
    assert moment.landed is not None
    plan, after = moment.landed.plan, moment.after
    if not moment.before.plans or moment.before.plans[0] != plan.plan_id or plan.generation != after.generation:
        return None
    if plan.plan_id in after.plans or plan.plan_id in after.reservations:
        return violation("KV-12", f"plan {plan.plan_id}", "still in flight behind its result", "committed, nothing reserved")
    seen = moment.view
    ends = seen.landed.ends if moment.result is None else seen.landed.confirmed(moment.result.tokens)
    for s, end in zip(seen.landed_after, ends, strict=True):
        if s is not None and s.committed_len < end:
            return violation("KV-12", row_named(s.row_id), f"committed {s.committed_len}", f"{end}: its plan is committed")
    return None


_COLUMNS: Final = (
    "free", "ref_counts", "reservations", "pinned", "quarantined", "plans", "running", "waiting", "cache_generation",
)  # fmt: skip


def _same_state(moment: Moment, when: str, let_go: AbstractSet[int] = frozenset()) -> Violation | None:
    """``let_go``: blocks that went from the quarantine to the free queue by themselves."""
    before, after = moment.before, moment.after
    if let_go:
        lost = let_go - frozenset(after.free)
        if lost:
            return violation("KV-12", blocks_named(lost), f"in no queue {when}", "free: their fences have passed meanwhile")
        free = tuple([block for block in after.free if block not in let_go])
        quarantined = {block: fence for block, fence in before.quarantined.items() if block in let_go}
        after = replace(after, free=free, quarantined={**after.quarantined, **quarantined})
    for name in _COLUMNS:
        one, other = getattr(before, name), getattr(after, name)
        if one != other:
            return violation("KV-12", f"{name} {when}", other, f"{one}, as before")
    if not _is_same_index(before, after):
        changed = [block for block in {*before.cached, *after.cached} if not _is_same_entry(before.cached, after.cached, block)]
        return violation("KV-12", f"index {when}", f"a change at {blocks_named(changed)}", "every entry as before")
    return None


def _is_same_index(before: Snapshot, after: Snapshot) -> bool:
    if before.cached == after.cached:
        return True
    return all(_is_same_entry(before.cached, after.cached, block) for block in {*before.cached, *after.cached})


def _is_same_entry(before: Mapping[int, PrefixEntry], after: Mapping[int, PrefixEntry], block: int) -> bool:
    one, other = before.get(block), after.get(block)
    return one is other or (
        one is not None
        and other is not None
        and (one.key, one.namespace, one.tokens, one.media) == (other.key, other.namespace, other.tokens, other.media)
    )


def _transacts(caps: Caps) -> bool:
    return caps.has_transaction


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("KV-12", reserve_takes_all, Happening.PLANNED, needs=("planned",)),
    predicate("KV-12", rollback_restores_everything, Happening.ROLLED_BACK, is_observable=_transacts),
    predicate("KV-12", nothing_planned_leaves_no_trace, Happening.PLANNED, is_observable=_transacts, only_with=("no plan",)),
    predicate("KV-12", abandon_returns_blocks_empty, Happening.ABANDONED, is_observable=_transacts),
    predicate("KV-12", commit_applies_the_whole_plan, Happening.LANDED, needs=("landed",)),
    predicate("KV-5", lengths_are_ordered, reads=SEQUENCES),
    predicate("KV-5", decoding_lags_by_one, Happening.LANDED, needs=("landed",)),
)
