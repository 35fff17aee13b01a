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
    heals="as blocks are given away and filled; the end of the storm empties the cache",
    observed="requests that read it, or hit it in the cache, end with an error that says so",
    watched_by=("SC-12", "SE-1", "SE-2", "KV-16", "SC-5"),
    strike=_spoil,
)
