"""The remote pool dies and comes back empty, under readers and writers."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops, befall
from engine_under_test.caps import LinkFault


def _die(_fault: Fault) -> Ops:
    return (befall(LinkFault.STORE_DIES),)


NEMESIS: Final = Nemesis(
    FaultKind.STORE_DEATHS,
    seam="Transport",
    heals="at once: a new pool, a new connection",
    observed="nothing: the same tokens",
    watched_by=("DI-3", "SC-7", "SC-11"),
    strike=_die,
)
