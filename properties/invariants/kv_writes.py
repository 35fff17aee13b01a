"""What may be written and what may be taken: order, copy on write, lifetime, poison (KV-3, KV-10, KV-11, KV-16)."""

from __future__ import annotations

from itertools import chain
from typing import Final

from engine_under_test.types import BlockCopy, SequenceSnapshot
from properties.invariants.predicate import Predicate, blocks_named, predicate, row_named, violation
from properties.moment import Happening, Moment
from properties.verdict import Violation


def writes_of_a_slot_are_ordered(moment: Moment) -> Violation | None:
    """KV-3: no plan writes a slot twice, nor one that an unsettled plan of somebody else writes.

    A row may write again into a block that it has held all along (a relaunch behind an abandoned plan): it stands on the same
    stream.
    Source: Lamport, Time, Clocks, and the Ordering of Events in a Distributed System, CACM 1978.
    """
    assert moment.planned is not None
    slots = moment.planned.reservation.slots
    written = set(slots)
    if len(written) != len(slots):
        twice = [slot for slot in written if slots.count(slot) > 1]
        return violation("KV-3", f"slot {min(twice)}", f"written twice by plan {moment.planned.plan.plan_id}", "one write")
    writes = moment.writes
    for plan_id in moment.after.unsettled if writes and not moment.caps.has_stream_order else ():
        other = writes.get(plan_id)
        if other is None or written.isdisjoint(other):
            continue
        again = {slot // moment.after.block_size for slot in written & other}
        if foreign := again - _own_blocks(moment):
            return violation("KV-3", blocks_named(foreign), f"written while plan {plan_id} writes it", "an ordered write")
    return None


def _own_blocks(moment: Moment) -> set[int]:
    """What rows of the planned step held before it, by their table or by plans of theirs in flight, and hold still."""
    assert moment.planned is not None
    seen = moment.view
    own: set[int] = set()
    for one, other in zip(seen.planned_before, seen.planned_after, strict=True):
        if one is not None and other is not None:
            own.update({*one.table, *one.reserved}.intersection((*other.table, *other.reserved)))
            own.update(chain.from_iterable(moment.before.reservations.get(plan_id, ()) for plan_id in one.plans))
    return own


def committed_slots_are_never_rewritten(moment: Moment) -> Violation | None:
    """KV-3: a plan writes behind its rows' committed slots, and never into an indexed block.

    Source: engine_under_test/types.py, SequenceSnapshot (committed = written and confirmed).
    """
    assert moment.planned is not None
    size = moment.after.block_size
    for sequence, start in zip(moment.view.planned_after, moment.planned.plan.starts, strict=True):
        if sequence is not None and start < sequence.committed_len:
            row = sequence.row_id
            return violation("KV-3", row_named(row), f"writes from position {start}", f"from {sequence.committed_len} on")
    indexed = {slot // size for slot in moment.planned.reservation.slots}.intersection(moment.after.cached)
    if indexed:
        return violation("KV-3", blocks_named(indexed), "written while indexed", "indexed blocks never change")
    return None


def taken_blocks_have_no_holder(moment: Moment) -> Violation | None:
    """KV-10: what a plan takes as new is held by nobody else, taken once, and not quarantined.

    Source: mini-sglang pull 142 (pages freed while a page table still pointed to them).
    """
    seen = moment.view
    taken, new = seen.taken, seen.new
    if len(new) != len(taken):
        return violation("KV-10", blocks_named(b for b in new if taken.count(b) > 1), "taken twice by one plan", "once")
    if not new.isdisjoint(seen.before.held) and not new.isdisjoint(seen.still_held):
        return violation("KV-10", blocks_named(new & seen.still_held), "taken while held", "a block without a holder")
    return None


def taken_blocks_are_behind_every_use(moment: Moment) -> Violation | None:
    """KV-10: what a plan takes as new is used by no plan that is still unsettled.

    Source: sglang #24527 (pages reused whose remote writer was still active), pull 18803.
    """
    new = moment.view.new
    if not new or moment.before.generation != moment.after.generation:
        return None
    for plan_id in moment.after.unsettled:
        used = moment.uses.get(plan_id)
        if used is not None and not new.isdisjoint(used):
            return violation("KV-10", blocks_named(new & used), f"taken while plan {plan_id} uses it", "behind its fence")
    return None


def quarantine_waits_for_the_last_use(moment: Moment) -> Violation | None:
    """KV-10: a released block waits for the last launched plan that uses it, not for an earlier one.

    Source: sglang pull 18803 (freed at the end of a request while an overlapped forward still read it).
    """
    before, after = moment.before.quarantined, moment.after.quarantined
    if not after or before == after:
        return None
    if min(after.values()) >= max(moment.after.unsettled, default=-1):
        return None
    for block, plan_id in after.items():
        if before.get(block) != plan_id:
            users = [user for user in moment.after.unsettled if block in moment.uses.get(user, ())]
            if users and plan_id < max(users):
                return violation("KV-10", f"block {block}", f"waits for plan {plan_id}", f"plan {max(users)}, its last user")
    return None


def shared_blocks_are_copied_on_write(moment: Moment) -> Violation | None:
    """KV-11: a row that goes on in a partly filled block that others share writes into a copy of its filled part.

    Source: Kwon et al., SOSP 2023, section 4.4 (copy on write at block granularity).
    """
    assert moment.planned is not None
    reservation, size, seen = moment.planned.reservation, moment.after.block_size, moment.view
    named = seen.after.named
    rows = zip(seen.planned_after, moment.planned.plan.starts, reservation.tables, reservation.new_blocks, strict=True)
    for sequence, start, table, new in rows:
        number, offset = divmod(start, size)
        if not offset or sequence is None or number >= len(sequence.table) or number >= len(table):
            continue
        owned, written = sequence.table[number], table[number]
        if written == owned:
            if named.count(owned) > 1 and (others := _sharers(moment, sequence, owned)):
                found = f"writes into block {owned}, shared with {others}"
                return violation("KV-11", row_named(sequence.row_id), found, "a copy of it")
        elif written in new and not _is_copied(reservation.copies, owned, written, offset):
            expected = f"a copy of at least {offset} slots of block {owned}"
            return violation("KV-11", row_named(sequence.row_id), f"writes into block {written} without it", expected)
    return None


def _is_copied(copies: tuple[BlockCopy, ...], source: int, target: int, num_slots: int) -> bool:
    return any(copy.source == source and copy.target == target and copy.num_slots >= num_slots for copy in copies)


def _sharers(moment: Moment, sequence: SequenceSnapshot, block: int) -> str:
    """Other choices whose table names the block and who will not have left it when the plan's rows write.

    Who copies it in this plan has left it; who has an earlier plan in flight may have.
    """
    assert moment.planned is not None
    seen = moment.view
    now = seen.after
    if now.table_counts[block] < 2:
        return ""
    plan, reservation = moment.planned.plan, moment.planned.reservation
    leaving = {row for row, table in zip(seen.planned.rows, reservation.tables, strict=True) if block not in table}
    others = [s for s in now.by_choice.values() if s is not sequence and block in s.table and s.row_id not in leaving]
    return ", ".join(f"{s.request_id}/{s.choice}" for s in others if not set(s.plans) - {plan.plan_id})


def only_listed_slots_are_written(moment: Moment) -> Violation | None:
    """KV-16: a step changes the slots that its plan lists, copies into and fills, and no other, padding included.

    Source: rvllm pull 32; docs/fingerprint.md, "What a runner does for a plan".
    """
    assert moment.execution is not None
    reservation = moment.execution.step.reservation
    strange = moment.execution.changed_slots.difference(reservation.slots)
    if not strange:
        return None
    size = moment.after.block_size
    filled = [range(block * size, (block + 1) * size) for block in reservation.fills]
    copied = [range(copy.target * size, copy.target * size + copy.num_slots) for copy in reservation.copies]
    if strange := strange.difference(*filled, *copied):
        slot = min(strange)
        subject = f"slot {slot} (block {slot // size})"
        return violation("KV-16", subject, f"changed by plan {reservation.plan_id}", "unchanged: the plan does not list it")
    return None


def new_blocks_hold_poison(moment: Moment) -> Violation | None:
    """KV-16: a block that a plan takes holds poison wherever the plan does not write: it was filled when it became empty or
    was evicted, and a copy brings the filled part only.

    Source: rvllm pull 32; engine_under_test/types.py, Reservation.
    """
    assert moment.execution is not None
    stale = moment.execution.stale_slots
    if stale:
        slot, size = min(stale), moment.after.block_size
        subject = f"slot {slot} (block {slot // size})"
        return violation("KV-16", subject, f"old content behind plan {moment.execution.step.plan.plan_id}", "poison")
    return None


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("KV-10", taken_blocks_have_no_holder, Happening.PLANNED, needs=("planned",), only_with=("taken blocks",)),
    predicate(
        "KV-10",
        taken_blocks_are_behind_every_use,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=lambda caps: caps.has_fences,
        only_with=("taken blocks",),
    ),
    predicate(
        "KV-10",
        quarantine_waits_for_the_last_use,
        reads=("quarantined",),
        is_observable=lambda caps: caps.has_fences,
    ),
    predicate("KV-3", writes_of_a_slot_are_ordered, Happening.PLANNED, needs=("planned",)),
    predicate("KV-3", committed_slots_are_never_rewritten, Happening.PLANNED, needs=("planned",)),
    predicate(
        "KV-11",
        shared_blocks_are_copied_on_write,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=lambda caps: caps.has_choices,
    ),
    predicate("KV-16", only_listed_slots_are_written, Happening.LANDED, needs=("execution",)),
    predicate(
        "KV-16",
        new_blocks_hold_poison,
        Happening.LANDED,
        needs=("execution",),
        is_observable=lambda caps: caps.has_transaction,  # others need not fill what they free
    ),
)
