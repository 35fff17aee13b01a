"""Runs a benchmark, compares medians with floors scaled by the calibration of the same run, and prints both.

Owns the comparison and its wording. A miss is invalid (exit 1); what can not be measured here is unknown (exit 2).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from rich.console import Console

from ci.bench.calibration import REFERENCE_S
from ci.report.verdict_json import figure_to_json
from properties.suite import Figure, Label
from properties.verdict import Verdict


class NotMeasurable(Exception):
    """This machine lacks what a benchmark measures; the message says what, and what to do."""


@dataclass(frozen=True, slots=True)
class Line:
    """One figure with what is asked of it. ``at_least`` and ``at_most`` are for the machine on which floors were set, and
    scaled for this one unless ``is_ratio``."""

    figure: Figure
    at_least: float | None = None
    at_most: float | None = None
    is_ratio: bool = False

    def bound(self, slowness: float) -> float | None:
        """The floor or ceiling on this machine."""
        if self.is_ratio:
            return self.at_least if self.at_least is not None else self.at_most
        if self.at_least is not None:
            return self.at_least / slowness
        return self.at_most * slowness if self.at_most is not None else None

    def is_met(self, slowness: float) -> bool:
        bound = self.bound(slowness)
        if bound is None:
            return True
        return self.figure.value >= bound if self.at_least is not None else self.figure.value <= bound


@dataclass(frozen=True, slots=True)
class Measured:
    """All lines of a benchmark. ``slowness`` is this machine's calibration time over the reference. ``unknown``: why nothing
    was measured, empty if it was."""

    what: str
    lines: tuple[Line, ...]
    slowness: float
    unknown: str = ""

    @property
    def verdict(self) -> Verdict:
        if self.unknown:
            return Verdict.UNKNOWN
        return Verdict.VALID if all(line.is_met(self.slowness) for line in self.lines) else Verdict.INVALID

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "bench": self.what,
            "verdict": self.verdict.value,
            "reason": self.unknown,
            "slowness": self.slowness,
            "figures": [figure_to_json(line.figure) for line in self.lines],
            "missed": [line.figure.name for line in self.lines if not line.is_met(self.slowness)],
            "bounds": {line.figure.name: line.bound(self.slowness) for line in self.lines},
        }


Measure = Callable[[Callable[[str], None]], tuple[list[Line], list[float]]]


def run_bench(what: str, console: Console) -> Measured:
    """Measures and prints. A benchmark `x` is the function `measure_x` of `ci/bench/x.py`."""
    measure: Measure = getattr(import_module(f"ci.bench.{what}"), f"measure_{what}")
    try:
        lines, calibrations = measure(lambda text: console.print(f"… {text}", markup=False, soft_wrap=True))
    except NotMeasurable as error:
        console.print(f"UNKNOWN {what}: {error}", markup=False, soft_wrap=True, style="bold yellow")
        return Measured(what, (), 1.0, str(error))
    slowness = statistics.median(calibrations) / REFERENCE_S
    figure = Figure(f"{what}.slowness", slowness, "1", Label.OBSERVED, "calibration time over that of the reference machine")
    measured = Measured(what, (*lines, Line(figure)), slowness)
    for line in measured.lines:
        console.print(_text(line, slowness), markup=False, soft_wrap=True)
    console.print(measured.verdict.value.upper(), style="bold green" if measured.verdict is Verdict.VALID else "bold red")
    return measured


def _text(line: Line, slowness: float) -> str:
    figure, bound = line.figure, line.bound(slowness)
    unit = "" if figure.unit == "1" else f" {figure.unit}"
    asked = ""
    if bound is not None:
        word = "at least" if line.at_least is not None else "at most"
        given = line.at_least if line.at_least is not None else line.at_most
        scaled = "" if line.is_ratio else f" ({given:,g}{unit} scaled to this machine)"
        asked = f"{word} {bound:,.4g}{unit}{scaled}  {'ok' if line.is_met(slowness) else 'MISSED'}"
    return f"{figure.name:<42} {figure.value:>10,.4g}{unit:<7} {figure.label.value:<9} {asked}".rstrip()
