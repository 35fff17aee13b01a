"""The memory of the remote pool loses a bit of every block that it holds."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops, befall
from engine_under_test.caps import LinkFault


def _rot(_fault: Fault) -> Ops:
    return (befall(LinkFault.ROT),)


NEMESIS: Final = Nemesis(
    FaultKind.STORE_ROT,
    seam="Transport",
    heals="never for what was hit: readers see it by its digest, and compute",
    observed="nothing: the same tokens",
    watched_by=("DI-3", "KV-6", "SE-2"),
    strike=_rot,
)
