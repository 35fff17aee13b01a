"""Claims about `assay bench overlap`: the device is paced by the clock alone, and its wait for the host is what is told."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ci.bench.bench import Measured
from ci.bench.overlap import LENGTHS, STEP_S, Job, PacedLaunch, PacedRunner, Timed, jobs_of, lines_of, serve, timed_run
from engine_under_test import Engine, EngineConfig, Request, SamplingParams
from engine_under_test.types import Plan, Reservation
from properties.verdict import Verdict

CONFIG = EngineConfig(num_blocks=64, vocab_size=100, prefix_cache=False)
JOBS = [Job("a", (1, 2, 3), 5), Job("b", (4, 5), 8)]
SAID = {"a": (7, 8, 9, 10, 11), "b": (20, 21, 22, 23, 24, 25, 26, 27)}


class Clock:
    """Stands still but for the host's work, which takes a while each time that a step is launched."""

    def __init__(self, host_s: float) -> None:
        self.time, self.host_s = 0.0, host_s

    def now(self) -> float:
        return self.time

    def wait_until(self, moment: float) -> None:
        self.time = max(self.time, moment)


class Working(PacedRunner):
    """The host works before each launch."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(SAID, STEP_S, clock.now, clock.wait_until)
        self.clock = clock

    def launch(self, plan: Plan, reservation: Reservation) -> PacedLaunch:
        self.clock.time += self.clock.host_s
        return super().launch(plan, reservation)


def served(depth: int, host_s: float) -> Working:
    runner = Working(Clock(host_s))
    found: dict[str, tuple[int, ...]] = {}
    serve(JOBS, Engine(replace(CONFIG, max_plans_in_flight=1 + depth), runner), found)
    assert found == SAID
    return runner


@pytest.mark.parametrize(
    ("depth", "host_s", "idle_s"),
    [
        pytest.param(0, 0.004, 0.004, id="at depth 0 the device waits for all of the host's work"),
        pytest.param(1, 0.004, 0.0, id="at depth 1 for none that is shorter than a step"),
        pytest.param(1, 0.016, 0.006, id="at depth 1 for what is longer than a step"),
    ],
)
def test_the_device_waits(depth: int, host_s: float, idle_s: float) -> None:
    runner = served(depth, host_s)
    assert runner.num_steps >= 8
    assert runner.idle_s == pytest.approx(idle_s * (runner.num_steps - 1))
    assert runner.clock.time >= runner.num_steps * STEP_S


def test_a_fence_passes_when_the_step_is_over_and_not_before() -> None:
    clock = Clock(0.0)
    runner = PacedRunner(SAID, STEP_S, clock.now, clock.wait_until)
    engine = Engine(CONFIG, runner)
    engine.submit(Request("a", JOBS[0].prompt, SamplingParams(max_tokens=5)))
    step = engine.reserve()
    assert step is not None
    first, second = runner.launch(step.plan, step.reservation), runner.launch(step.plan, step.reservation)
    clock.time = STEP_S
    assert first.has_passed()
    assert not second.has_passed()
    assert second.result().tokens == ((7,),)
    assert clock.time == 2 * STEP_S


def test_on_the_real_clock_a_run_takes_as_long_as_its_steps() -> None:
    timed = timed_run(JOBS, CONFIG, 1, SAID)
    assert timed.whole_s >= timed.num_steps * STEP_S


def test_a_depth_that_says_something_else_is_not_timed() -> None:
    with pytest.raises(AssertionError, match="the same tokens"):
        timed_run(JOBS, CONFIG, 0, {**SAID, "a": (7, 8, 9, 10, 11, 12)})


def test_every_prompt_comes_with_every_length() -> None:
    jobs = jobs_of([(1,), (2,), (3,)], 12)
    assert {(job.prompt, job.length) for job in jobs} == {((n,), length) for n in (1, 2, 3) for length in LENGTHS}
    assert len({job.request_id for job in jobs}) == 12


@pytest.mark.parametrize(
    ("deep", "verdict", "hidden"),
    [
        pytest.param(Timed(0.9, 10, 0.01), Verdict.VALID, 0.9, id="overlap pays"),
        pytest.param(Timed(1.1, 10, 0.2), Verdict.INVALID, -1.0, id="overlap costs more than it hides"),
    ],
)
def test_the_verdict_where(deep: Timed, verdict: Verdict, hidden: float) -> None:
    lines = lines_of([(Timed(1.0, 10, 0.1), deep)] * 3, "a model")
    assert Measured("overlap", tuple(lines), 1.0).verdict is verdict
    assert {line.figure.name: line.figure.value for line in lines}["overlap.hidden scheduler time"] == pytest.approx(hidden)
