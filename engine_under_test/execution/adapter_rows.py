"""Whether the slots that a plan's rows read their adapters from are slots that there are. For every runner with slots.

Never: what lies in a slot (a device can not know whether it is what the row wants), or who may have one.
"""

from __future__ import annotations

from operator import attrgetter

from engine_under_test.errors import RunnerError
from engine_under_test.types import Plan, Reservation

_ADAPTER_OF = attrgetter("adapter")


def check_slots(plan: Plan, reservation: Reservation, num_slots: int) -> None:
    """RunnerError if a row, or a load, names no slot of those from 1 to `num_slots` where it must."""
    slots, loads = reservation.adapter_slots, reservation.adapter_loads
    if not slots and not loads and not any(map(_ADAPTER_OF, plan.requests)):
        return
    wrong = f"plan {plan.plan_id} can not be launched"
    if len(slots) != plan.num_rows:
        raise RunnerError(f"{wrong}: there is a slot for the adapter of each row; found {len(slots)} for {plan.num_rows} rows")
    rows = [
        row
        for row, (request, slot) in enumerate(zip(plan.requests, slots, strict=True))
        if not (request.adapter is not None) <= slot <= num_slots
    ]
    if rows:
        names = ", ".join(f"{plan.requests[row].request_id!r} with slot {slots[row]}" for row in rows)
        raise RunnerError(f"{wrong}: a row with an adapter reads one of the slots 1 to {num_slots}; found {names}", tuple(rows))
    if bad := [load for load in loads if not 1 <= load.slot <= num_slots]:
        raise RunnerError(f"{wrong}: adapters are loaded into the slots 1 to {num_slots}; found {bad}")
