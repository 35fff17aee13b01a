"""The next message of each transfer arrives twice."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops, befall
from engine_under_test.caps import LinkFault


def _repeat(_fault: Fault) -> Ops:
    return (befall(LinkFault.REPEAT),)


def _heal(_fault: Fault) -> Ops:
    return (befall(LinkFault.NONE),)


NEMESIS: Final = Nemesis(
    FaultKind.REPEATED_MESSAGES,
    seam="Transport",
    heals="messages arrive once again",
    observed="nothing: the same tokens",
    watched_by=("DI-3", "KV-6", "SC-11"),
    strike=_repeat,
    heal=_heal,
)
