"""The whole engine under every operation: overlap, held fences, refused blocks, lost plans, late and repeated results.

Adds to the portable machine what only a transactional target offers. Never judges.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from models.machines.portable import PortableMachine
from models.strategies import world_specs
from properties.op import Op, OpKind


class EngineMachine(PortableMachine):
    """Our engine, in small worlds, at depth 0 to 2."""

    @staticmethod
    def world_specs() -> st.SearchStrategy[dict[str, Any]]:
        return world_specs()

    def moves(self) -> dict[str, int]:
        return super().moves() | {"go_wrong": 3 * bool(self.faults())}

    def go_wrong(self, data: st.DataObject) -> None:
        self.do(data.draw(st.sampled_from(self.faults()), label="op"))

    def faults(self) -> list[Op]:
        """What can go wrong now, or be healed, in a stable order; without work only little, as it would fill the story."""
        world, caps, is_busy = self.world, self.world.caps, self.has_work()
        found: list[Op] = []
        if world.snapshot.unsettled:
            found += [Op(OpKind.POLL)]
        if caps.has_fences and is_busy:
            found += [Op(OpKind.HOLD_FENCES, on=not world.are_fences_held)]
        if caps.has_transaction and is_busy:
            reserved = [
                Op(kind, on=on) for kind, on in ((OpKind.ROLLBACK, False), (OpKind.ROLLBACK, True), (OpKind.PLAN, True))
            ]
            found += reserved if self.has_room() and self.live() else []
            found += [Op(OpKind.REFUSE_BLOCK, k=k) for k in (1, 2, 4)] if self.live() else []
            lost = range(len(world.snapshot.plans))
            found += [Op(OpKind.ABANDON, k=k, on=on) for k in lost for on in (False, True)] * 2
        if world.has_landed:
            found += [Op(OpKind.LAND_AGAIN, k=k) for k in (0, 1)]
        if caps.has_adapter_loads and self.traits.namespaces and (adapters := world.adapters):
            newest, last = adapters[0], adapters[-1]
            found += [Op(OpKind.LOAD_ADAPTER, request_id=newest.name, k=newest.version + 1)]
            found += [Op(OpKind.UNLOAD_ADAPTER, request_id=last.name, k=last.version)] * (len(adapters) > 1)
        if caps.has_reset:
            found += [Op(OpKind.RESET_CACHE)]
        if caps.has_restart and is_busy:
            found += [Op(OpKind.RESTART)]
        return found
