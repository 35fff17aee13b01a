"""Data comes in small pieces, apart from each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, link_of, of_strength, stream_of, way_of

if TYPE_CHECKING:
    from chaos.connector_lab import Lab

_PIECES = (16, 8, 4)  # of a block
_DELAY_US = 4000


def _words(fault: Fault) -> str:
    where = f"{way_of(fault)}{link_of(fault)}"
    return f"slicer {where} into a {of_strength(fault, *_PIECES)}th of a block each, {_DELAY_US} µs apart"


def _strike(fault: Fault, lab: Lab) -> Undo:
    size, stream = lab.block_bytes // of_strength(fault, *_PIECES), stream_of(fault)
    return lab.strike(fault, lambda proxy: proxy.slicer(size, variation_bytes=size // 4, delay_us=_DELAY_US, stream=stream))


def _touched(fault: Fault, window: Window) -> int:
    """A frame that came by halves; or, where only the store could see that, transfers at the pace of such pieces."""
    if not fault.on:
        return len(window.of(Sight.IN_PIECES))
    size = window.block_bytes // of_strength(fault, *_PIECES)
    return window.slowed(Sight.SENT, 2 * size * 1_000_000 / _DELAY_US)


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.SLICER,
    seam="toxic slicer",
    heals="the toxic is removed",
    observed="nothing: the same tokens, later",
    watched_by=("DI-5", "DI-3"),
    evidence="frames in pieces, or transfers at the pace of pieces",
    words=_words,
    strike=_strike,
    touched=_touched,
)
