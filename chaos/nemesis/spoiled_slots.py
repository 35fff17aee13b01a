"""A slot of committed KV holds no number any more (NaN): the rows that read it are to blame, nobody else; it is not stored."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _spoil(fault: Fault) -> Ops:
    return (Op(OpKind.SPOIL, k=fault.k), *((Op(OpKind.PLAN),) if fault.on else ()))


NEMESIS: Final = Nemesis(
    FaultKind.SPOILED_SLOTS,
    seam="the store, below Runner",
    heals="with the first row that reads it: nobody finds in the cache what that has read; else as blocks are filled anew",
    observed="requests whose rows read it end with an error that says so, and nobody who comes behind them",
    watched_by=("SC-12", "SE-1", "SE-2", "KV-16", "SC-5"),
    strike=_spoil,
)
