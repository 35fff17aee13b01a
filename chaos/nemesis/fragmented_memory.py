"""Free memory lies in small pieces: bytes enough, but not in one piece for a large step. Blocks do not care: any will do."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind

_LEAST_WORDS = 3


def _scatter(fault: Fault) -> Ops:
    return (Op(OpKind.FRAGMENT_MEMORY, k=_LEAST_WORDS + 2 * fault.k),)


def _join(_fault: Fault) -> Ops:
    return (Op(OpKind.FRAGMENT_MEMORY, k=0),)


NEMESIS: Final = Nemesis(
    FaultKind.FRAGMENTED_MEMORY,
    seam="Memory.admit",
    heals="pieces are joined again",
    observed="a request too large for a piece even in half a step ends with an error that says so",
    watched_by=("SC-7", "SC-12", "KV-12", "SE-2"),
    strike=_scatter,
    heal=_join,
)
