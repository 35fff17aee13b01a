"""Faults and how each is healed: fences held, blocks and memory refused, a link disturbed, rows and slots that are no number.

Owns nothing: which faults are active is known to the target, the device and the watch. Never lets the target go on.
"""

from __future__ import annotations

from typing import cast

from engine_under_test.adapters.base import RemoteTarget
from engine_under_test.caps import LinkFault
from models.verbs.acting import Acting, Stage
from models.verbs.plans import PlanVerbs


class FaultVerbs(Acting):
    """See the module. ``plans``: the newest one in flight is the one that has a row made sick."""

    def __init__(self, stage: Stage, plans: PlanVerbs) -> None:
        super().__init__(stage)
        self._plans = plans

    def hold(self, on: bool) -> bool:
        """No fence passes until they are let go."""
        if not self._caps.has_fences or on is self._watch.is_held:
            return False
        self._more.hold_fences(on)
        self._watch.is_held = on
        return True

    def refuse(self, k: int) -> bool:
        """The ``k``-th block asked for from now on is refused; 0 heals."""
        if not self._caps.has_transaction or (k < 1 and not self._watch.is_refusing):
            return False
        self._more.refuse_block(k if k >= 1 else None)
        self._watch.is_refusing = k >= 1
        return True

    def refuse_memory(self, k: int, is_for_good: bool) -> bool:
        """The same of the device's memory, once or until it is healed."""
        did = self._caps.has_transaction and self._device.refuse_memory(k, is_for_good)
        self._watch.is_short = self._device.is_short
        return did

    def link(self, k: int) -> bool:
        """The ``k``-th kind of fault befalls the link to the remote pool; the first kind is none."""
        if not self._caps.has_remote or not 0 <= k < len(LinkFault):
            return False
        fault = tuple(LinkFault)[k]
        did = cast("RemoteTarget", self._target).disturb(fault)
        self._watch.is_cut_off = fault is LinkFault.STALL or (self._watch.is_cut_off and fault is not LinkFault.NONE)
        return did

    def fragment_memory(self, num_words: int) -> bool:
        """No piece of the device's memory is longer than that; 0 heals."""
        did = self._caps.has_transaction and self._device.fragment_memory(num_words)
        self._watch.is_short = self._device.is_short
        return did

    def sicken(self, k: int, of_itself: bool = False) -> bool:
        """Told when the plan lands: nobody knows it before."""
        flights = self._plans.flights
        if not (self._can_blame and flights) or not 0 <= k < flights[-1].step.plan.num_rows:
            return False
        (flights[-1].stuck_rows if of_itself else flights[-1].sick_rows).add(k)
        return True

    def spoil(self, request_id: str, position: int, is_wrong: bool) -> bool:
        """Only what is committed: the rest is still to be written. Without a name: of who entered last.

        A wrong number not where blocks are stored elsewhere, since it would come back from there as if it were good; what is
        no number is not stored.
        """
        size = self._caps.block_size
        for each in reversed(
            self._watch.snapshot.running if self._can_blame and not (is_wrong and self._caps.has_remote) else ()
        ):
            if request_id in ("", each.request_id) and 0 <= position < min(each.committed_len, len(each.table) * size):
                self._device.spoil(each.table[position // size] * size + position % size, is_wrong)
                return True
        return False

    @property
    def _can_blame(self) -> bool:
        """The target recovers as a whole engine does: rows that are to blame may be named to it."""
        return self._caps.has_transaction and self._caps.has_restart
