"""The k-th block that a reservation takes is refused: it must take all or nothing."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _refuse(fault: Fault) -> Ops:
    return (Op(OpKind.REFUSE_BLOCK, k=fault.k + 1),)


def _admit(_fault: Fault) -> Ops:
    return (Op(OpKind.REFUSE_BLOCK, k=0),)


NEMESIS: Final = Nemesis(
    FaultKind.REFUSED_BLOCKS,
    seam="BlockGate.admit",
    heals="after one refusal, or when the time is over",
    observed="a request that is refused twice ends with an error that says so",
    watched_by=("KV-12", "KV-2", "SC-7", "SE-2"),
    strike=_refuse,
    heal=_admit,
)
