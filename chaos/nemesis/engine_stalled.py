"""An engine stands still in the middle of a load, for longer than the store's lease: the store gives up what it held for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo

if TYPE_CHECKING:
    from chaos.connector_lab import Lab


def _words(fault: Fault) -> str:
    return f"engine {int(fault.on)} stands still for longer than the lease"


def _strike(fault: Fault, lab: Lab) -> Undo:
    lab.stalls.begin(int(fault.on))
    return lab.stalls.end


def _touched(_fault: Fault, window: Window) -> int:
    return len(window.of(Sight.GIVEN_UP))


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.ENGINE_STALLED,
    seam="the engine's loop",
    heals="it steps again, at the latest when the lease is over",
    observed="nothing: the same tokens, later",
    watched_by=("DI-3", "DI-5"),
    evidence="transfers that the store gave up",
    words=_words,
    strike=_strike,
    touched=_touched,
)
