"""Checked engine steps a second of the seeded walk, and what the checks cost beside the step that they check.

Owns the two worlds, their floors, and the bare run: the same calls to the same engine and the same device, without models,
snapshots, events or predicates. Only steps with a non-empty plan count.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from ci.bench.bench import Line
from ci.bench.calibration import calibrate
from engine_under_test.adapters.base import Target
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.types import PlannedStep
from models.build import hasher_of, target_from
from models.walk import WalkShape, large_shape, small_shape, walk_ops
from models.world import World, no_collections
from properties.op import Op
from properties.suite import Figure, Label

LARGE_FLOOR, SMALL_FLOOR = 700.0, 2000.0  # given: checked steps a second a core
CHECKS_CEILING = 1.5  # given: time of the checks over time of the step
_ROUNDS, _OPS = 7, {"16 live": 600, "3 to 4 live": 1200}
_WINDOWS = frozenset({"snapshot", "take_events", "caps", "counters"})  # the harness's own looks are no part of a step
_CHUNK = 4  # operations

Call = tuple[str, tuple[Any, ...]]


def measure_walk(say: Callable[[str], None]) -> tuple[list[Line], list[float]]:
    """The lines, and the calibration times of the run."""
    calibrations: list[float] = []
    lines: list[Line] = []
    for name, shape, floor in (("16 live", large_shape(), LARGE_FLOOR), ("3 to 4 live", small_shape(), SMALL_FLOOR)):
        rates, costs = [], []
        for seed in range(_ROUNDS):
            say(f"walk: {name}, round {seed + 1} of {_ROUNDS}")
            ops = tuple(islice(walk_ops(seed, shape), _OPS[name]))
            calibrations.append(calibrate())
            steps, checked_s, bare_s = timed_run(shape, ops)
            rates.append(steps / checked_s)
            costs.append((checked_s - bare_s) / bare_s)
        lines += _lines(name, statistics.median(rates), floor, statistics.median(costs))
    return lines, calibrations


def timed_run(shape: WalkShape, ops: Sequence[Op]) -> tuple[int, float, float]:
    """(steps, checked, bare): processor seconds of the whole World, and of the same calls without it, taken in turns, a few
    operations each, so that whatever else the machine does falls on both."""
    chunks = [ops[start : start + _CHUNK] for start in range(0, len(ops), _CHUNK)]
    calls = calls_of(shape, chunks)
    world = World(target_from(shape.spec()), hasher=hasher_of(shape.spec()), may_wait=True)
    bare = BareRun(shape)
    checked_s = bare_s = 0.0
    with no_collections():  # as in one long run of a World, not anew for each chunk
        for chunk, its_calls in zip(chunks, calls, strict=True):
            began = time.process_time()
            world.run(chunk)
            between = time.process_time()
            bare.run(its_calls)
            checked_s += between - began
            bare_s += time.process_time() - between
        began = time.process_time()
        violation = world.violation  # asks the predicates that wait
        checked_s += time.process_time() - began
    if violation is not None:
        raise AssertionError(f"the walk must be valid to be timed, found {violation.sentence}; run assay gate first")
    return world.checked_steps, checked_s, bare_s


def calls_of(shape: WalkShape, chunks: Sequence[Sequence[Op]]) -> list[list[Call]]:
    """For each chunk the calls that a World makes to its target."""
    recorded: list[Call] = []
    world = World(CallRecorder(target_from(shape.spec()), recorded.append), hasher=hasher_of(shape.spec()), predicates=())
    found = []
    for chunk in chunks:
        first = len(recorded)
        world.run(chunk)
        found.append(recorded[first:])
    if world.violation is not None:
        raise AssertionError(f"the calls of a walk are those of a valid one, found {world.violation}; run assay gate first")
    return found


class BareRun:
    """A fresh target that is called as a World called another, with every launched plan executed by the same kind of device."""

    def __init__(self, shape: WalkShape) -> None:
        self._target: Target = target_from(shape.spec())
        config = shape.config
        self._runner = FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size)
        self._reserved: PlannedStep | None = None

    def run(self, calls: Sequence[Call]) -> None:
        for name, arguments in calls:
            given = (self._reserved,) if name in ("launch", "rollback") else arguments
            answer = getattr(self._target, name)(*given)
            if name == "reserve":
                self._reserved = answer
            elif name == "plan" and answer is not None:
                self._runner.launch(answer.plan, answer.reservation).result()


class CallRecorder:
    """A target that tells of each verb called on it, with its arguments. It keeps none: a target at rest holds nothing."""

    def __init__(self, target: Target, tell: Callable[[Call], None]) -> None:
        self._target = target
        self._tell = tell

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name in _WINDOWS or not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self._tell((name, arguments))
            return found(*arguments)

        return call


def _lines(name: str, rate: float, floor: float, cost: float) -> list[Line]:
    rate_figure = Figure(f"walk.checked_steps_per_s, {name}", rate, "1/s", Label.OBSERVED, "median over seeds, one core")
    cost_figure = Figure(
        f"walk.checks_over_step, {name}", cost, "1", Label.DERIVED, "time of everything but the step, over the step"
    )
    return [Line(rate_figure, at_least=floor), Line(cost_figure, at_most=CHECKS_CEILING, is_ratio=True)]
