"""No fence passes for a while: what was released stays in quarantine, and the pool runs dry."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _hold(_fault: Fault) -> Ops:
    return (Op(OpKind.HOLD_FENCES, on=True),)


def _release(_fault: Fault) -> Ops:
    return (Op(OpKind.HOLD_FENCES, on=False), Op(OpKind.POLL))


NEMESIS: Final = Nemesis(
    FaultKind.HELD_FENCES,
    seam="Fence.has_passed",
    heals="fences pass again",
    observed="nothing: the same tokens",
    watched_by=("KV-1", "KV-4", "KV-10", "SC-7"),
    strike=_hold,
    heal=_release,
)
