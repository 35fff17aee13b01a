"""Nothing comes any more, and after a while the connection closes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, link_of, of_strength, stream_of, way_of

if TYPE_CHECKING:
    from chaos.connector_lab import Lab

_MS = (100, 250, 400)


def _words(fault: Fault) -> str:
    return f"timeout {way_of(fault)}{link_of(fault)} of {of_strength(fault, *_MS)} ms"


def _strike(fault: Fault, lab: Lab) -> Undo:
    return lab.strike(fault, lambda proxy: proxy.timeout(of_strength(fault, *_MS), stream=stream_of(fault)))


def _touched(_fault: Fault, window: Window) -> int:
    """Connections that the proxy closed."""
    return len(window.of(Sight.ENDED, Sight.RESET))


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.TIMEOUT,
    seam="toxic timeout",
    heals="the toxic is removed; its connections close",
    observed="nothing: the same tokens, later",
    watched_by=("DI-3", "DI-4"),
    evidence="connections that fell silent and were closed",
    words=_words,
    strike=_strike,
    touched=_touched,
)
