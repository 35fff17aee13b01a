"""The device starts anew: pool, index and fences are gone, plans in flight are void, live requests begin again."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _restart(fault: Fault) -> Ops:
    before = (Op(OpKind.PLAN),) * (fault.k % 3)
    return (*before, Op(OpKind.RESTART, on=fault.on), Op(OpKind.LAND_AGAIN, k=0))


NEMESIS: Final = Nemesis(
    FaultKind.RESTARTS,
    seam="restart",
    heals="at once: under a new generation",
    observed="nothing: the same tokens",
    watched_by=("AS-4", "KV-1", "SC-5", "SE-2"),
    strike=_restart,
)
