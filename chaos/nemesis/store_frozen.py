"""The store stands still by SIGSTOP: it is there, holds its connections, and does nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, of_strength

if TYPE_CHECKING:
    from chaos.connector_lab import Lab


_SILENT_MS = (200, 1200)  # the second is beyond the deadline of a load


def _words(fault: Fault) -> str:
    return f"the store is frozen for {of_strength(fault, *_SILENT_MS)} ms or more"


def _strike(_fault: Fault, lab: Lab) -> Undo:
    lab.store.freeze()
    return lab.store.resume


def _touched(fault: Fault, window: Window) -> int:
    """Questions that were asked of it and have waited for so long."""
    return sum(since_s * 1000 >= of_strength(fault, *_SILENT_MS) for since_s in window.waiting_s)


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.STORE_FROZEN,
    seam="the store's process",
    heals="SIGCONT",
    observed="nothing: the same tokens, later",
    watched_by=("DI-3", "DI-5"),
    evidence="questions that it left unanswered",
    words=_words,
    strike=_strike,
    touched=_touched,
)
