"""A reserved step is not launched but rolled back, as if it had never been."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _roll_back(_fault: Fault) -> Ops:
    return (Op(OpKind.ROLLBACK),)


NEMESIS: Final = Nemesis(
    FaultKind.ROLLBACKS,
    seam="reserve, rollback",
    heals="at once",
    observed="nothing: the same tokens",
    watched_by=("KV-12", "KV-9", "KV-2"),
    strike=_roll_back,
)
