"""The whole engine under every operation: overlap, held fences, refused blocks, lost plans, late and repeated results.

Adds to the portable machine what only a transactional target offers. Never judges.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from models.machines.portable import PortableMachine, can
from models.strategies import world_specs
from properties.op import Op, OpKind


class EngineMachine(PortableMachine):
    """Our engine, in small worlds, at depth 0 to 2."""

    @staticmethod
    def world_specs() -> st.SearchStrategy[dict[str, Any]]:
        return world_specs()

    @can(lambda self: bool(self.faults()))
    @rule(data=st.data())
    def fault(self, data: st.DataObject) -> None:
        """Something goes wrong, or is healed."""
        self.do(data.draw(st.sampled_from(self.faults()), label="op"))

    def faults(self) -> list[Op]:
        """What can go wrong now, in a stable order."""
        world, caps, is_busy = self.world, self.world.caps, self.has_work()
        found: list[Op] = []
        if world.snapshot.unsettled:
            found += [Op(OpKind.POLL)]
        if caps.has_fences:
            found += [Op(OpKind.HOLD_FENCES, on=not world.are_fences_held)]
        if caps.has_transaction and is_busy:
            found += [Op(OpKind.ROLLBACK)] if self.has_room() and self.live() else []
            found += [Op(OpKind.REFUSE_BLOCK, k=k) for k in (1, 2, 4)] if self.live() else []
            found += [Op(OpKind.ABANDON, k=k) for k in range(len(world.snapshot.plans))]
        if world.has_landed:
            found += [Op(OpKind.LAND_AGAIN, k=k) for k in range(2)]
        if caps.has_reset:
            found += [Op(OpKind.RESET_CACHE)]
        if caps.has_restart and is_busy:
            found += [Op(OpKind.RESTART)]
        return found
