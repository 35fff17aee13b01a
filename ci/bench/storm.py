"""Simulated storms a minute on one core, with every check, and what race detection costs beside a step.

Owns the storms that are measured and their floors. Figures of time are processor time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from chaos.run import run_storm
from chaos.storm import Storm, draw_storm
from ci.bench.bench import Line
from ci.bench.calibration import calibrate
from engine_under_test.execution.races import RaceDetector
from models.build import world_from
from models.streamed_device import StreamedDevice
from properties.suite import Figure, Label

STORMS_A_MINUTE = 200.0  # given: with all checks, one core
STEPS_A_STORM = 150.0  # given
DETECTION_CEILING = 0.5  # given: of a step
_STORMS = 18

Call = tuple[str, tuple[Any, ...]]


def measure_storm(say: Callable[[str], None]) -> tuple[list[Line], list[float]]:
    """The lines, and the calibration times of the run."""
    calibrations, rates, steps, turns, shares = [], [], [], [], []
    for seed in range(_STORMS):
        say(f"storm {seed + 1} of {_STORMS}")
        calibrations.append(calibrate())
        storm = draw_storm(seed)
        began = time.process_time()
        run = run_storm(storm)
        took = time.process_time() - began
        if run.violation is not None:
            raise AssertionError(f"a storm must be valid to be timed, found {run.violation.sentence}; run assay chaos first")
        rates.append(60.0 / took)
        steps.append(run.driver.world.checked_steps)
        turns.append(run.driver.world.facts.now() / took)
        shares.append(_detection_share(storm))
    lines = [
        Line(_figure("storms_a_minute", statistics.median(rates), "1/min", "all checks, one core"), at_least=STORMS_A_MINUTE),
        Line(
            _figure("steps_a_storm", statistics.median(steps), "1", "checked steps of the engine"),
            at_least=STEPS_A_STORM,
            is_ratio=True,
        ),
        Line(
            _figure(
                "simulated_s_per_s", statistics.median(turns), "1", "seconds of the target's clock for one of the processor"
            )
        ),
        Line(
            _figure("detection_over_step", statistics.median(shares), "1", "time of the race detector over that of a step"),
            at_most=DETECTION_CEILING,
            is_ratio=True,
        ),
    ]
    return lines, calibrations


def _figure(name: str, value: float, unit: str, note: str) -> Figure:
    return Figure(f"storm.{name}", value, unit, Label.OBSERVED, f"{note}; median over {_STORMS} storms")


def _detection_share(storm: Storm) -> float:
    """The detector's time for all that a storm tells it, over the time of the steps alone: the engine on its streams, without
    predicates and without the detector."""
    recorded: list[Call] = []
    _bare(storm, recorded)
    began = time.process_time()
    _bare(storm, None)
    bare_s = time.process_time() - began
    detector = RaceDetector()
    began = time.process_time()
    for name, arguments in recorded:
        getattr(detector, name)(*arguments)
    return (time.process_time() - began) / bare_s


def _bare(storm: Storm, record: list[Call] | None) -> None:
    """The storm without a predicate; what its detector is told goes into `record`, or nowhere."""
    world = world_from(storm.spec(), chooser=storm.chooser(), predicates=())
    assert isinstance(world.device, StreamedDevice)
    world.device.simulated.races = _Silent() if record is None else _Recorder(record)
    world.run(storm.ops())


class _Silent(RaceDetector):
    """Looks at no access."""

    def _touch(self, *_arguments: Any) -> None:
        """Nothing."""


class _Recorder(RaceDetector):
    """Remembers what it is told, its own answers among it."""

    def __init__(self, record: list[Call]) -> None:
        super().__init__()
        self._record = record
        for name in ("submitted", "host_touched", "host_saw"):
            setattr(self, name, partial(self._noted, name, getattr(super(), name)))

    def _noted(self, name: str, told: Callable[..., Any], *arguments: Any) -> Any:
        kept = tuple(list(each) if isinstance(each, Iterable) and not isinstance(each, str) else each for each in arguments)
        self._record.append((name, kept))
        return told(*kept)
