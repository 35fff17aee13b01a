"""The next message of each transfer gets lost, in both directions."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops, befall
from engine_under_test.caps import LinkFault


def _lose(_fault: Fault) -> Ops:
    return (befall(LinkFault.LOSE),)


def _heal(_fault: Fault) -> Ops:
    return (befall(LinkFault.NONE),)


NEMESIS: Final = Nemesis(
    FaultKind.LOST_MESSAGES,
    seam="Transport",
    heals="messages arrive again; what waited for one ends by its deadline",
    observed="nothing: the same tokens",
    watched_by=("DI-3", "SC-7", "SC-11"),
    strike=_lose,
    heal=_heal,
)
