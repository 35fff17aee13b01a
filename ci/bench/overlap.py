"""How much of the host's time a second plan in flight hides: overlap depth 1 against depth 0, in one run.

Owns the load, the paced device and what is asked. The tokens are those that the model itself says, recorded before anything is
timed; then a device is played that takes 10 ms for each step and nothing of the host's, so that what a run takes longer than
its steps is the time that the device waits for the host: scheduling, committing, telling. Both depths serve the same load and
must say the same tokens. They take turns, and who begins changes, so that whatever else the machine does falls on both.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from ci.bench.bench import Line
from ci.bench.calibration import calibrate
from ci.environment import require_extra
from engine_under_test import Engine, EngineConfig, Request, SamplingParams
from engine_under_test.execution.runner import Runner
from engine_under_test.types import Plan, Reservation, StepResult
from properties.suite import Figure, Label

STEP_S = 0.010  # given: what the device takes for a step
NUM_REQUESTS = 32
LENGTHS = (8, 16, 24, 32)  # of outputs, in tokens
PAIRS = 8
_SPIN_S = 0.0005  # to sleep is to wake late: the last of a wait is spent looking at the clock
_BLOCKS = 6 * NUM_REQUESTS  # of 16 tokens: more than prompts and outputs need
_TEXTS = (
    "The first person who walked on the moon was",
    "Once upon a time, in a small village between two rivers, there lived a clockmaker who",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is",
    "To make bread you need flour, water, salt and",
)

Tokens = Mapping[str, Sequence[int]]  # of each request


@dataclass(frozen=True, slots=True)
class Job:
    """A prompt, and how many tokens shall follow it."""

    request_id: str
    prompt: tuple[int, ...]
    length: int


@dataclass(frozen=True, slots=True)
class Timed:
    """One run of the load: seconds from the first request to the last token, steps, and seconds that the device had nothing to
    do between its first step and its last."""

    whole_s: float
    num_steps: int
    idle_s: float


class PacedRunner:
    """A runner whose device executes one step after the other, each in `step_s`, and says tokens that were recorded.

    ``idle_s``: how long the device had nothing to do between two steps. ``now`` and ``wait_until``: the clock, and how the host
    waits for it.
    """

    def __init__(
        self,
        recorded: Tokens,
        step_s: float = STEP_S,
        now: Callable[[], float] = time.perf_counter,
        wait_until: Callable[[float], None] | None = None,
    ) -> None:
        self._recorded = recorded
        self._step_s = step_s
        self.now = now
        self.wait_until = wait_until if wait_until is not None else _wait_until
        self._free_at: float | None = None
        self.num_steps = 0
        self.idle_s = 0.0

    def launch(self, plan: Plan, reservation: Reservation) -> PacedLaunch:
        """See `execution.runner.Runner`."""
        del reservation  # nothing is computed
        now = self.now()
        begins = now if self._free_at is None else max(now, self._free_at)
        self.idle_s += begins - self._free_at if self._free_at is not None else 0.0
        self._free_at = begins + self._step_s
        self.num_steps += 1
        return PacedLaunch(plan, self._result_of(plan), self._free_at, self)

    def _result_of(self, plan: Plan) -> StepResult:
        tokens = []
        columns = zip(plan.requests, plan.starts, plan.num_tokens, plan.samples, strict=True)
        for request, start, count, samples in columns:
            number = start + count - len(request.prompt)
            tokens.append(tuple(self._recorded[request.request_id][number : number + 1]) if samples else ())
        return StepResult(plan.plan_id, plan.generation, plan.row_ids(), tuple(tokens))


class PacedLaunch:
    """One step, over at `ends_at`. It is its own fence."""

    def __init__(self, plan: Plan, result: StepResult, ends_at: float, runner: PacedRunner) -> None:
        self.plan_id = plan.plan_id
        self.ends_at = ends_at
        self._result = result
        self._runner = runner

    @property
    def fence(self) -> PacedLaunch:
        return self

    def has_passed(self) -> bool:
        return self._runner.now() >= self.ends_at

    def result(self) -> StepResult:
        self._runner.wait_until(self.ends_at)
        return self._result


def measure_overlap(say: Callable[[str], None]) -> tuple[list[Line], list[float]]:
    """The lines, and the calibration times of the run."""
    require_extra("model", "a real model's tokens")
    title, jobs, config, runner = _loaded()
    say(f"overlap: {len(jobs)} requests to {title}, recorded once")
    recorded = record(jobs, config, runner)
    calibrations, pairs = [], []
    for number in range(PAIRS):
        say(f"overlap: pair {number + 1} of {PAIRS}")
        calibrations.append(calibrate())
        depths = (0, 1) if number % 2 == 0 else (1, 0)
        timed = {depth: timed_run(jobs, config, depth, recorded) for depth in depths}
        pairs.append((timed[0], timed[1]))
    return lines_of(pairs, title), calibrations


def _loaded() -> tuple[str, list[Job], EngineConfig, Runner]:
    """What serves: SmolLM2 if it was fetched, else the tiny random model."""
    from ci.tiny import ByteTokenizer, tiny_weights
    from engine_under_test.execution.transformer import TransformerRunner
    from engine_under_test.model.fetch import SMOLLM2, model_folder
    from engine_under_test.model.load import load_weights
    from engine_under_test.model.tokenizer import load_tokenizer

    folder = model_folder()
    if folder is None:
        title, weights, prompts = "the tiny random model", tiny_weights(), [ByteTokenizer().encode(text) for text in _TEXTS]
    else:
        tokenizer = load_tokenizer(folder)
        title, weights, prompts = SMOLLM2.title, load_weights(folder), [tokenizer.encode(text) for text in _TEXTS]
    config = EngineConfig(
        num_blocks=_BLOCKS, max_num_seqs=NUM_REQUESTS, vocab_size=weights.config.vocab_size, prefix_cache=False
    )
    return title, jobs_of(prompts), config, TransformerRunner(weights, config.num_blocks, config.block_size)


def jobs_of(prompts: Sequence[tuple[int, ...]], num_requests: int = NUM_REQUESTS) -> list[Job]:
    """Each prompt with each length, at once."""
    places = range(num_requests)
    return [Job(f"r{n}", prompts[n % len(prompts)], LENGTHS[n // len(prompts) % len(LENGTHS)]) for n in places]


def record(jobs: Sequence[Job], config: EngineConfig, runner: Runner) -> Tokens:
    """What the model says to each job."""
    found: dict[str, tuple[int, ...]] = {}
    serve(jobs, Engine(config, runner), found)
    return found


def timed_run(jobs: Sequence[Job], config: EngineConfig, depth: int, recorded: Tokens) -> Timed:
    """The load at one depth, on the paced device."""
    runner = PacedRunner(recorded)
    engine = Engine(replace(config, max_plans_in_flight=1 + depth), runner)
    found: dict[str, tuple[int, ...]] = {}
    began = time.perf_counter()
    serve(jobs, engine, found)
    whole_s = time.perf_counter() - began
    if found != recorded:
        raise AssertionError(
            f"at depth {depth} the same tokens must come as were recorded, and others did; run assay gate first"
        )
    return Timed(whole_s, runner.num_steps, runner.idle_s)


def serve(jobs: Sequence[Job], engine: Engine, found: dict[str, tuple[int, ...]]) -> None:
    """All jobs at once, each to its length; what is said goes into `found` while it is said."""
    for job in jobs:
        answer = engine.submit(Request(job.request_id, job.prompt, SamplingParams(max_tokens=job.length)))
        assert answer.is_accepted, answer.message
    while engine.has_work:
        engine.step()
        for output in engine.take_outputs():
            found[output.request_id] = (*found.get(output.request_id, ()), *output.token_ids)


def lines_of(pairs: Sequence[tuple[Timed, Timed]], title: str) -> list[Line]:
    """What the device waits for the host at either depth, a step, and what of that overlap hides."""
    note = f"{title}, {NUM_REQUESTS} requests, a step of {1e3 * STEP_S:g} ms; median of {len(pairs)} pairs"
    idle = [statistics.median(1e3 * timed.idle_s / timed.num_steps for timed in side) for side in zip(*pairs, strict=True)]
    whole = [statistics.median(timed.whole_s for timed in side) for side in zip(*pairs, strict=True)]
    hidden = statistics.median(1 - deep.idle_s / flat.idle_s for flat, deep in pairs)
    ratio = statistics.median(flat.whole_s / deep.whole_s for flat, deep in pairs)
    return [
        *(Line(Figure(f"overlap.depth {depth}, whole run", whole[depth], "s", Label.OBSERVED, note)) for depth in (0, 1)),
        *(
            Line(Figure(f"overlap.depth {depth}, device idle a step", idle[depth], "ms", Label.OBSERVED, note))
            for depth in (0, 1)
        ),
        Line(Figure("overlap.hidden scheduler time", hidden, "1", Label.DERIVED, "1 - idle at depth 1 over idle at depth 0")),
        Line(
            Figure("overlap.time of depth 0 over depth 1", ratio, "1", Label.DERIVED, "of the whole run; more than 1: it pays"),
            at_least=1.0,
            is_ratio=True,
        ),
    ]


def _wait_until(moment: float) -> None:
    left = moment - time.perf_counter()
    if left > _SPIN_S:
        time.sleep(left - _SPIN_S)
    while time.perf_counter() < moment:
        pass
