"""A result that was handed in, or abandoned, comes once more."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _again(fault: Fault) -> Ops:
    return (Op(OpKind.LAND_AGAIN, k=fault.k),)


NEMESIS: Final = Nemesis(
    FaultKind.STALE_RESULTS,
    seam="commit",
    heals="at once: it is dropped whole",
    observed="nothing: the same tokens",
    watched_by=("AS-4", "SC-1", "SC-5"),
    strike=_again,
)
