"""The store dies by SIGKILL; another one is started where it was, with an empty pool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo

if TYPE_CHECKING:
    from chaos.connector_lab import Lab


def _words(_fault: Fault) -> str:
    return "the store is killed and started again"


def _strike(_fault: Fault, lab: Lab) -> Undo:
    lab.restart_store()
    return lambda: None  # the next one comes by itself


def _touched(_fault: Fault, window: Window) -> int:
    return len(window.of(Sight.WELCOMED))


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.STORE_KILLED,
    seam="the store's process",
    heals="a new process on the same port",
    observed="nothing: the same tokens, later",
    watched_by=("DI-3", "DI-4"),
    evidence="engines that a new store welcomed",
    words=_words,
    strike=_strike,
    touched=_touched,
)
