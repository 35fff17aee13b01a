"""So much passes in a second, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, link_of, of_strength, stream_of, way_of

if TYPE_CHECKING:
    from chaos.connector_lab import Lab

_BLOCKS_PER_S = (18, 30, 48)


def _words(fault: Fault) -> str:
    return f"bandwidth {way_of(fault)}{link_of(fault)} of {of_strength(fault, *_BLOCKS_PER_S)} blocks/s"


def _strike(fault: Fault, lab: Lab) -> Undo:
    return lab.strike(fault, lambda proxy: proxy.bandwidth(_kb_per_s(fault, lab.block_bytes), stream=stream_of(fault)))


def _touched(fault: Fault, window: Window) -> int:
    """The first bytes pass at once, and so may a half of a transfer's two blocks."""
    return window.slowed(Sight.SENT if fault.on else Sight.CAME, 2000 * _kb_per_s(fault, window.block_bytes))


def _kb_per_s(fault: Fault, block_bytes: int) -> int:
    return -(-of_strength(fault, *_BLOCKS_PER_S) * block_bytes // 1000)


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.BANDWIDTH,
    seam="toxic bandwidth",
    heals="the toxic is removed",
    observed="nothing: the same tokens, later",
    watched_by=("DI-5", "DI-4"),
    evidence="transfers at its pace",
    words=_words,
    strike=_strike,
    touched=_touched,
)
