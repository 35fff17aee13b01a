"""Counts what a run reached with adapters and their slots: what was loaded where, who waited, what was lost or unloaded.

Owns this count, from the moments of a World. Never chooses an operation and never judges.
"""

from __future__ import annotations

from engine_under_test.types import Adapter, PlannedStep
from models.reach import Reach, ReachCounts
from properties.moment import Happening, Moment

SLOT_REACHES = (
    Reach.SLOT_FILLED,
    Reach.SLOT_TAKEN,
    Reach.SLOTS_MIXED,
    Reach.SLOT_AWAITED,
    Reach.SLOT_AWAITED_LONGEST,
    Reach.SLOT_LOST,
    Reach.VERSIONS_TOGETHER,
    Reach.UNLOADED_IN_USE,
)


class SlotReach(ReachCounts):
    """The count. Sees moments in order."""

    def __init__(self) -> None:
        super().__init__()
        self._retiring: frozenset[Adapter] = frozenset()

    def see(self, moment: Moment) -> None:
        """One moment; most hold nothing of adapters."""
        if not moment.caps.num_adapter_slots:
            return
        match moment.happening:
            case Happening.PLANNED if moment.planned is not None and moment.planned.reservation.adapter_slots:
                self._planned(moment, moment.planned)
            case Happening.ABANDONED:
                for step in moment.abandoned:
                    self._count(Reach.SLOT_LOST, len(step.reservation.adapter_loads))
            case Happening.OTHER:
                retiring = frozenset(moment.after.adapters) - moment.facts.adapters.listed
                self._count(Reach.UNLOADED_IN_USE, len(retiring - self._retiring))
                self._retiring = retiring
            case _:
                pass

    def _planned(self, moment: Moment, step: PlannedStep) -> None:
        known, reservation = moment.facts.adapters, step.reservation
        for load in reservation.adapter_loads:
            self._count(Reach.SLOT_TAKEN if load.slot in known.content else Reach.SLOT_FILLED)
        used = {request.adapter for request in step.plan.requests} - {None}
        self._count(Reach.SLOTS_MIXED, len(used) > 1)
        self._count(Reach.VERSIONS_TOGETHER, len({each.name for each in used if each is not None}) < len(used))
        self._count(Reach.SLOT_AWAITED, len(known.lacking))
        bound = moment.caps.adapter_overtake_bound
        self._count(Reach.SLOT_AWAITED_LONGEST, sum(known.overtaken.get(key) == bound for key in known.lacking))
