"""Adapters in their slots: each row reads what it names, nothing in use is overwritten or dropped, nobody waits for ever
(RS-1, SC-8).

What lies in a slot is known from the loads of the plans that were launched, never from what the target shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Final

from engine_under_test.caps import Caps
from engine_under_test.types import Adapter, PlannedStep
from properties.invariants.predicate import Predicate, predicate, row_named, violation
from properties.moment import Happening, Moment
from properties.verdict import Violation


def rows_read_the_adapter_that_they_name(moment: Moment) -> Violation | None:
    """RS-1: the slot of each row holds its adapter, in the version that its request named; slot 0 where it named none.

    Source: vllm #47724 (a remembered mapping of rows to slots outlived a load); sglang #8263 (slots found by name).
    """
    step = moment.planned
    assert step is not None
    plan, slots = step.plan, step.reservation.adapter_slots
    if not slots and not any(map(_adapter_of, plan.requests)):
        return None
    content = _content_after(moment, step)
    for row, request in enumerate(plan.requests):
        slot = slots[row] if row < len(slots) else 0
        found = content.get(slot) if slot else None
        if found != request.adapter or (slot != 0) is (request.adapter is None):
            where = f"slot {slot}, with {_named(found)}" if slot else "no slot"
            return violation("RS-1", row_named(plan.row_id(row)), f"reads {where}", f"a slot with {_named(request.adapter)}")
    return None


def slots_in_use_are_not_overwritten(moment: Moment) -> Violation | None:
    """RS-1: nothing is loaded into a slot that a plan which has not settled reads from.

    Source: vllm #47724 (slots of adapters in the running batch were given to others).
    """
    step = moment.planned
    assert step is not None
    loads = step.reservation.adapter_loads
    if not loads:
        return None
    in_flight, unsettled = moment.facts.adapters.in_flight, set(moment.after.unsettled)
    for plan_id, slots in in_flight.items():
        for load in loads:
            if load.slot in slots and plan_id in unsettled:
                found = f"{_named(load.adapter)} loaded by plan {step.plan.plan_id}, with plan {plan_id} in flight"
                return violation("RS-1", f"slot {load.slot}", found, "kept until the plan has settled")
    return None


def the_least_recently_used_slot_is_given_up(moment: Moment) -> Violation | None:
    """RS-1: a load takes a slot with nothing of use in it, or else the one of which no plan has read for longest; slots that
    plans read which have not settled, or that hold what a running choice needs, are not to be had.

    Source: engine_under_test/adapter_book.py; sglang pull 11041 (the hottest adapter was given up for its age).
    """
    step = moment.planned
    assert step is not None
    loads = step.reservation.adapter_loads
    if not loads:
        return None
    shown = _of_use(moment, moment.before.adapter_slots)
    known, loaded = moment.facts.adapters, {load.slot for load in loads}
    taken = frozenset[int]().union(loaded, *[s for plan, s in known.in_flight.items() if plan in moment.after.unsettled])
    choices = map(moment.facts.choice, [s.row_id for s in moment.after.running])
    needed = {facts.request.adapter for facts in choices if facts is not None}
    left = [slot for slot, held in enumerate(shown, 1) if slot not in taken and (held is None or held not in needed)]
    for load in loads:
        if left and (held := shown[load.slot - 1]) is not None:
            better = min(left, key=lambda slot: (shown[slot - 1] is not None, known.used.get(slot, 0)))
            if shown[better - 1] is None or known.used.get(better, 0) < known.used.get(load.slot, 0):
                found = f"{_named(held)} given up for {_named(load.adapter)}"
                expected = f"slot {better} instead, with {_named(shown[better - 1])}: not read for longer"
                return violation("RS-1", f"slot {load.slot}", found, expected)
    return None


def adapters_of_running_choices_are_resident(moment: Moment) -> Violation | None:
    """RS-1: behind a plan, the adapter of each choice that runs lies in a slot, and each slot holds what the target shows.

    Source: vllm #47724 (a load took the slot of an adapter whose requests were decoding).
    """
    step = moment.planned
    assert step is not None
    shown = moment.after.adapter_slots
    if not step.reservation.adapter_slots and shown is moment.before.adapter_slots:
        return None
    content = _content_after(moment, step)
    for slot, adapter in enumerate(shown, 1):
        if adapter is not None and content.get(slot) != adapter:
            return violation("RS-1", f"slot {slot}", f"shown with {_named(adapter)}", f"{_named(content.get(slot))}, as loaded")
    resident = set(content.values())
    for s in moment.after.running:
        facts = moment.facts.choice(s.row_id)
        adapter = None if facts is None else facts.request.adapter
        if adapter is not None and adapter not in resident:
            return violation("RS-1", row_named(s.row_id), f"runs without {_named(adapter)} in a slot", "resident while it runs")
    return None


def adapters_in_use_are_kept(moment: Moment) -> Violation | None:
    """RS-1: kept are the adapters that may be named and those that live requests named, and no others.

    Source: vllm #54839 (an unload that only the front end knew of); sglang #36894 (a use that was never given back).
    """
    known = moment.facts.adapters
    wanted = {facts.request.adapter for facts in moment.facts.live().values()}.union(known.listed)
    wanted.discard(None)
    kept = set(moment.after.adapters)
    if kept == wanted:
        return None
    missing, left = sorted(map(_named, wanted - kept)), sorted(map(_named, kept - wanted))
    if missing:
        return violation("RS-1", missing[0], "not kept", "kept while requests may name it or live ones do")
    return violation("RS-1", left[0], "kept", "dropped: nobody may name it, and no live request does")


def a_rollback_restores_the_slots(moment: Moment) -> Violation | None:
    """RS-1: a plan that was never launched has loaded nothing.

    Source: KV-12 (a rollback restores exactly what was before reserve), for slots.
    """
    before, after = moment.before.adapter_slots, moment.after.adapter_slots
    if before == after:
        return None
    pairs = zip(_of_use(moment, before), _of_use(moment, after), strict=False)
    changed = next(((slot, was, now) for slot, (was, now) in enumerate(pairs, 1) if was != now), None)
    if changed is None:
        return None
    slot, was, now = changed
    return violation("RS-1", f"slot {slot}", f"{_named(now)} behind a rollback", f"{_named(was)}, as before")


def nobody_waits_too_long_for_a_slot(moment: Moment) -> Violation | None:
    """SC-8: one who waits because its adapter has no slot sees no more later ones admitted than stated.

    Source: the target's `adapter_overtake_bound`; sglang pull 15129 (a loaded adapter kept all others from their turn).
    """
    overtaken, most = moment.facts.adapters.overtaken, moment.caps.adapter_overtake_bound
    if not overtaken or max(overtaken.values()) <= most:
        return None
    key = max(overtaken, key=overtaken.__getitem__)
    found, expected = f"overtaken {overtaken[key]} times while it waited for a slot", f"at most {most}, the stated bound"
    return violation("SC-8", f"request {key[0]}, choice {key[1]}", found, expected)


def _of_use(moment: Moment, slots: Sequence[Adapter | None]) -> list[Adapter | None]:
    """What lies in the slots, without adapters that nobody may name any more and no live request does: whose last request ended
    within this very verb, by its deadline or by an error, has left its slot."""
    wanted = {facts.request.adapter for facts in moment.facts.live().values()}.union(moment.facts.adapters.listed)
    return [adapter if adapter in wanted else None for adapter in slots]


def _content_after(moment: Moment, step: PlannedStep) -> dict[int, Adapter]:
    return {**moment.facts.adapters.content, **dict(step.reservation.adapter_loads)}


def _named(adapter: Adapter | None) -> str:
    return "nothing" if adapter is None else f"adapter {adapter.name} version {adapter.version}"


def _has_slots(caps: Caps) -> bool:
    return caps.num_adapter_slots > 0


_adapter_of: Final = attrgetter("adapter")
_KEPT: Final = (Happening.ADDED, Happening.ABORTED, Happening.OTHER, Happening.DRAINED)

PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("RS-1", rows_read_the_adapter_that_they_name, Happening.PLANNED, needs=("planned",), is_observable=_has_slots),
    predicate("RS-1", slots_in_use_are_not_overwritten, Happening.PLANNED, needs=("planned",), is_observable=_has_slots),
    predicate(
        "RS-1", the_least_recently_used_slot_is_given_up, Happening.PLANNED, needs=("planned",), is_observable=_has_slots
    ),
    predicate(
        "RS-1", adapters_of_running_choices_are_resident, Happening.PLANNED, needs=("planned",), is_observable=_has_slots
    ),
    predicate("RS-1", adapters_in_use_are_kept, *_KEPT, is_observable=lambda caps: caps.has_adapter_loads),
    predicate("RS-1", a_rollback_restores_the_slots, Happening.ROLLED_BACK, is_observable=_has_slots),
    predicate("SC-8", nobody_waits_too_long_for_a_slot, Happening.PLANNED, is_observable=_has_slots),
)
