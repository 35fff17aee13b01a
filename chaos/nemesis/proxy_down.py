"""The store can not be reached: connections close, new ones are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, link_of

if TYPE_CHECKING:
    from chaos.connector_lab import Lab


def _words(fault: Fault) -> str:
    return f"the proxy{link_of(fault)} is down"


def _strike(fault: Fault, lab: Lab) -> Undo:
    return lab.strike(fault, lambda proxy: proxy.down())


def _touched(_fault: Fault, window: Window) -> int:
    return len(window.of(Sight.REFUSED))


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.PROXY_DOWN,
    seam="Toxiproxy: a proxy is disabled",
    heals="the proxy is enabled",
    observed="nothing: the same tokens, later",
    watched_by=("DI-3", "DI-4"),
    evidence="connections that were refused",
    words=_words,
    strike=_strike,
    touched=_touched,
)
