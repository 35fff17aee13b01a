"""Whether the slots that a plan's rows read their adapters from are slots that there are, and what its loads need is at hand.
For every runner with slots.

Never: what lies in a slot (a device can not know whether it is what the row wants), or who may have one. Free of torch.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Protocol, TypeVar

from engine_under_test.errors import RunnerError
from engine_under_test.types import Adapter, Plan, Reservation

_Weights_co = TypeVar("_Weights_co", covariant=True)
_ADAPTER_OF = attrgetter("adapter")


class Library(Protocol[_Weights_co]):
    """`adapter_slots.AdapterLibrary`, as far as it takes no torch."""

    def find(self, adapter: Adapter) -> _Weights_co | None: ...


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


def weights_to_load(plan: Plan, reservation: Reservation, library: Library[_Weights_co]) -> dict[Adapter, _Weights_co]:
    """What the loads of a plan need, taken at its launch. RunnerError, with the rows to blame, if the library lacks some."""
    wanted = {load.adapter: library.find(load.adapter) for load in reservation.adapter_loads}
    found = {adapter: weights for adapter, weights in wanted.items() if weights is not None}
    if lacking := wanted.keys() - found.keys():
        rows = tuple(row for row, request in enumerate(plan.requests) if request.adapter in lacking)
        raise RunnerError(
            f"plan {plan.plan_id} can not be launched: the weights of an adapter must be in the library before requests name "
            f"it; not there: {', '.join(sorted(f'{each.name} version {each.version}' for each in lacking))}",
            rows,
        )
    return found
