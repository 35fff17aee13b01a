"""The connection to the remote pool is lost, with everything under way."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops, befall
from engine_under_test.caps import LinkFault


def _cut(_fault: Fault) -> Ops:
    return (befall(LinkFault.CUT),)


NEMESIS: Final = Nemesis(
    FaultKind.LINK_CUTS,
    seam="Transport",
    heals="at once: there is a new connection",
    observed="nothing: the same tokens",
    watched_by=("DI-3", "SC-7", "SC-11"),
    strike=_cut,
)
