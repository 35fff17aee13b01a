"""The device loses a plan in flight and every later one; what did not run yet runs late, or never."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _lose(fault: Fault) -> Ops:
    plan = Op(OpKind.PLAN)
    return (*(plan,) * (1 + fault.k % 3), Op(OpKind.ABANDON, k=fault.k % 2, on=fault.on))


NEMESIS: Final = Nemesis(
    FaultKind.LOST_PLANS,
    seam="Runner.launch, Launch.result",
    heals="at once: the rows are tried again by half",
    observed="a request that is lost twice ends with an error that says so",
    watched_by=("KV-12", "KV-16", "AS-3", "SE-2", "SC-5"),
    strike=_lose,
)
