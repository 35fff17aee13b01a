"""A connection ends, and the other end learns of it late: upstream the store, downstream the engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Sight, Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, of_strength, stream_of, way_of

if TYPE_CHECKING:
    from chaos.connector_lab import Lab

_MS = (200, 350, 500)


def _words(fault: Fault) -> str:
    closer = "the engines close their connections" if fault.on else "the store is killed and started again"
    return f"slow_close {way_of(fault)} of {of_strength(fault, *_MS)} ms, then {closer}"


def _strike(fault: Fault, lab: Lab) -> Undo:
    heal = lab.strike(fault, lambda proxy: proxy.slow_close(of_strength(fault, *_MS), stream=stream_of(fault)))
    if fault.on:
        lab.hang_up()
    else:
        lab.restart_store()
    return heal


def _touched(fault: Fault, window: Window) -> int:
    """Ends that were seen no earlier than the delay behind the close."""
    late_s = of_strength(fault, *_MS) / 2000
    if fault.on:
        return sum(each.amount >= late_s for each in window.of(Sight.LINGERS))
    closed = [each.at_s for each in window.of(Sight.KILLED)]
    ends = window.of(Sight.ENDED, Sight.RESET)
    return sum(each.at_s - at_s >= late_s for each in ends for at_s in closed[-1:])


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.SLOW_CLOSE,
    seam="toxic slow_close",
    heals="the toxic is removed",
    observed="nothing: the same tokens, later",
    watched_by=("DI-3", "DI-5"),
    evidence="ends that came late",
    words=_words,
    strike=_strike,
    touched=_touched,
)
