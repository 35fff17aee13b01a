"""Host time of one iteration: victims, plan, reserve and commit, with a runner that does nothing.

Owns the loads (running decodes, waiting queue, pool size) and what is asked of them. Tokens are made outside the clock.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

from ci.bench.bench import Line
from ci.bench.calibration import calibrate
from engine_under_test import Engine, EngineConfig, Launch, Plan, PlannedStep, Request, Reservation, SamplingParams, StepResult
from engine_under_test.seams import Fence
from properties.suite import Figure, Label

AT_256_MS = 3.0  # given
LINEAR = 4.0  # four times the sequences may take four times as long, ...
TOLERANCE = 1.25  # ... and a quarter more, for noise; also the most that pool or queue may add
_BLOCK, _PROMPT, _POOL, _LARGE_POOL, _QUEUE = 16, 24, 16_384, 131_072, 4_096
_WARM_UP, _ROUNDS, _BATCHES = 20, 40, 5


class NullLaunch:
    """A launch that is over at once; its result is made by the benchmark."""

    def __init__(self, plan_id: int) -> None:
        self._plan_id = plan_id

    @property
    def plan_id(self) -> int:
        return self._plan_id

    @property
    def fence(self) -> Fence:
        return self

    def has_passed(self) -> bool:
        return True

    def result(self) -> StepResult:
        raise AssertionError("the benchmark hands results in with `commit`")


class NullRunner:
    """A runner that computes nothing."""

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        del reservation
        return NullLaunch(plan.plan_id)


def measure_scheduler(say: Callable[[str], None]) -> tuple[list[Line], list[float]]:
    """The lines, and the calibration times of the run."""
    calibrations: list[float] = []
    loads = {
        "16 decodes": (16, 0, _POOL),
        "64 decodes": (64, 0, _POOL),
        "256 decodes": (256, 0, _POOL),
        "256 decodes, pool x 8": (256, 0, _LARGE_POOL),
        "256 decodes, 4096 waiting": (256, _QUEUE, _POOL),
    }
    engines = {}
    for name, (running, waiting, pool) in loads.items():
        say(f"scheduler: warming up with {name}")
        engines[name] = decoding_engine(running, waiting, pool)
    times: dict[str, list[float]] = {name: [] for name in loads}
    gc.collect()
    gc.freeze()  # what was built so far is not looked at again by the collector, in any load
    for batch in range(_BATCHES):  # loads take turns, so that a slow moment of the machine meets all of them
        say(f"scheduler: round {batch + 1} of {_BATCHES}")
        for name, engine in engines.items():
            calibrations.append(calibrate())
            times[name] += [iterate(engine) for _ in range(_ROUNDS)]
    gc.unfreeze()
    ms = {name: statistics.median(found) * 1e3 for name, found in times.items()}
    return [*(_time_line(name, value) for name, value in ms.items()), *_ratio_lines(ms)], calibrations


def decoding_engine(running: int, waiting: int, pool: int) -> Engine:
    """An engine with so many decodes under way, and so many requests that do not fit beside them."""
    config = EngineConfig(num_blocks=pool, block_size=_BLOCK, max_tokens_per_step=512, max_num_seqs=running)
    engine = Engine(config, NullRunner())
    rounds = _WARM_UP + _ROUNDS * _BATCHES
    for number in range(running + waiting):
        prompt = tuple((number * 7 + place * 13 + number // 256) % 256 for place in range(_PROMPT))
        engine.submit(Request(f"r{number}", prompt, SamplingParams(max_tokens=_PROMPT + 2 * rounds)))
    prefills = -(-running * _PROMPT // config.max_tokens_per_step)
    for _ in range(prefills + _WARM_UP):
        iterate(engine)
    return engine


def iterate(engine: Engine) -> float:
    """Seconds of one iteration, without making the tokens and without the user's side."""
    began = time.process_time()
    step = engine.reserve()
    assert step is not None  # there are always decodes
    engine.launch(step)
    planned = time.process_time()
    result = result_of(step)
    handed = time.process_time()
    engine.commit(result)
    ended = time.process_time()
    engine.take_outputs()
    return (planned - began) + (ended - handed)


def result_of(step: PlannedStep) -> StepResult:
    """One token for each row that samples."""
    plan = step.plan
    return StepResult(
        plan.plan_id, plan.generation, tuple(plan.row_ids()), tuple((7,) if samples else () for samples in plan.samples)
    )


def _time_line(name: str, value: float) -> Line:
    at_most = AT_256_MS if name == "256 decodes" else None
    return Line(Figure(f"scheduler.{name}", value, "ms", Label.OBSERVED), at_most=at_most)


def _ratio_lines(ms: dict[str, float]) -> list[Line]:
    asked = {
        "256 over 64 decodes": ("256 decodes", "64 decodes", LINEAR * TOLERANCE),
        "64 over 16 decodes": ("64 decodes", "16 decodes", LINEAR * TOLERANCE),
        "pool x 8 over pool": ("256 decodes, pool x 8", "256 decodes", TOLERANCE),
        "4096 waiting over none": ("256 decodes, 4096 waiting", "256 decodes", TOLERANCE),
    }
    return [
        Line(Figure(f"scheduler.{name}", ms[more] / ms[less], "1", Label.DERIVED), at_most=at_most, is_ratio=True)
        for name, (more, less, at_most) in asked.items()
    ]
