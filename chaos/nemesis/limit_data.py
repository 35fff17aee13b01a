"""A connection closes behind so many bytes, be it in the middle of a frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, link_of, of_strength, stream_of, way_of

if TYPE_CHECKING:
    from chaos.connector_lab import Lab

_QUARTERS = (0, 5, 13)  # of a block, behind the greeting


def _words(fault: Fault) -> str:
    return f"limit_data {way_of(fault)}{link_of(fault)} of 300 bytes and {of_strength(fault, *_QUARTERS) / 4:g} blocks"


def _strike(fault: Fault, lab: Lab) -> Undo:
    num_bytes = 300 + of_strength(fault, *_QUARTERS) * lab.block_bytes // 4
    return lab.strike(fault, lambda proxy: proxy.limit_data(num_bytes, stream=stream_of(fault)))


def _touched(_fault: Fault, window: Window) -> int:
    """Connections that the proxy closed."""
    return len(window.of(Sight.ENDED, Sight.RESET))


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.LIMIT_DATA,
    seam="toxic limit_data",
    heals="the toxic is removed",
    observed="nothing: the same tokens, later",
    watched_by=("DI-3", "DI-4"),
    evidence="connections closed behind their last byte",
    words=_words,
    strike=_strike,
    touched=_touched,
)
