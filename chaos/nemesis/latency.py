"""Each piece of data comes late, by a delay with jitter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaos.connector_account import Window
from chaos.faults import ConnectionFault, Fault
from chaos.nemesis.connection_base import ConnectionNemesis, Undo, link_of, of_strength, stream_of, way_of

if TYPE_CHECKING:
    from chaos.connector_lab import Lab

_MS = (20, 40, 80, 120)


def _words(fault: Fault) -> str:
    ms = of_strength(fault, *_MS)
    return f"latency {way_of(fault)}{link_of(fault)} of {ms} ± {ms // 2} ms"


def _strike(fault: Fault, lab: Lab) -> Undo:
    ms = of_strength(fault, *_MS)
    return lab.strike(fault, lambda proxy: proxy.latency(ms, jitter_ms=ms // 2, stream=stream_of(fault)))


def _touched(fault: Fault, window: Window) -> int:
    return window.late_answers(of_strength(fault, *_MS) / 2000)


NEMESIS: Final = ConnectionNemesis(
    ConnectionFault.LATENCY,
    seam="toxic latency",
    heals="the toxic is removed",
    observed="nothing: the same tokens, later",
    watched_by=("DI-4", "DI-5"),
    evidence="answers as late as the delay",
    words=_words,
    strike=_strike,
    touched=_touched,
)
