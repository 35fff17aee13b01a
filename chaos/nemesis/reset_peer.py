"""Connections end by a reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, link_of, of_strength, stream_of, way_of

if TYPE_CHECKING:
    from chaos.connector_lab import Lab

_MS = (0, 30, 100)


def _words(fault: Fault) -> str:
    return f"reset_peer {way_of(fault)}{link_of(fault)} after {of_strength(fault, *_MS)} ms"


def _strike(fault: Fault, lab: Lab) -> Undo:
    return lab.strike(fault, lambda proxy: proxy.reset_peer(of_strength(fault, *_MS), stream=stream_of(fault)))


def _touched(_fault: Fault, window: Window) -> int:
    return len(window.of(Sight.RESET))


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.RESET_PEER,
    seam="toxic reset_peer",
    heals="the toxic is removed",
    observed="nothing: the same tokens, later",
    watched_by=("DI-3", "DI-4"),
    evidence="connections that were reset",
    words=_words,
    strike=_strike,
    touched=_touched,
)
