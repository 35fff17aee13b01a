"""The prefix cache is emptied, also with results in flight."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _reset(fault: Fault) -> Ops:
    before = (Op(OpKind.PLAN),) if fault.on else ()
    return (*before, Op(OpKind.RESET_CACHE))


NEMESIS: Final = Nemesis(
    FaultKind.CACHE_RESETS,
    seam="reset_cache",
    heals="at once: blocks are published again as they are computed",
    observed="nothing: the same tokens",
    watched_by=("KV-6", "KV-7", "KV-15", "SE-2"),
    strike=_reset,
)
