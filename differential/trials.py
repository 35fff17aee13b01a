"""Trials: settings with what each must reach, and the tally of a suite that goes through them.

Owns what a task is, how a suite of trials counts, what it lacks, and what becomes of its first divergence. Never which trials
there are (`float_settings.py`, `smollm2.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from differential.compare import tolerance_of
from differential.judging import PLANS, Judge, Judged
from differential.running import MakeRunner
from differential.setting import DTYPES, ModelSpec, World
from differential.shrinking import failure_of
from differential.threads import one_thread
from differential.ways import strayed
from engine_under_test.types import Request
from properties.suite import CheckResult, Failure, Figure, Label, SuiteContext
from properties.verdict import verdict_of


@dataclass(frozen=True, slots=True)
class Trial:
    """A world, and what the run in it must reach, at least so often."""

    world: World
    floors: Mapping[str, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.world.setting.name


@dataclass(frozen=True, slots=True)
class Task:
    """Trials of one model, with the requests that they share."""

    model: ModelSpec
    requests: tuple[Request, ...]
    trials: tuple[Trial, ...]
    asks_plain_run: bool = True


@dataclass(slots=True)
class Tally:
    """What a suite has seen so far. It is over with the first failure."""

    suite_id: str
    seed: int
    shrink_s: float = 20.0
    examples: int = 0
    ops: int = 0
    evaluations: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    missed: dict[str, None] = field(default_factory=dict)
    worst: dict[tuple[str, str], float] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()

    def go_through(
        self, judge: Judge, trials: Sequence[Trial], requests: Sequence[Request], done: Callable[[], None] = lambda: None
    ) -> None:
        """Judges the requests in every trial, up to the first divergence, which is shrunk; nothing after a failure."""
        if self.failures:
            return
        for trial in trials:
            judged = judge.judge(trial.world, requests)
            self._count(trial, judge.model, judged, len(requests))
            done()
            if judged.violation is not None:
                seed = f"{self.suite_id}#{self.seed:#x}"
                failure = failure_of(judge, trial.world, requests, judged.violation, seed, max_seconds=self.shrink_s)
                self.failures = (failure,)
                return

    def go_through_tasks(
        self, tasks: Iterable[Task], make_runner: MakeRunner, *, asks_second_oracle: bool, done: Callable[[], None]
    ) -> None:
        """Every trial of every task, up to the first divergence."""
        for task in tasks:
            if self.failures:
                return
            judge = Judge(task.model, make_runner, asks_second_oracle=asks_second_oracle, asks_plain_run=task.asks_plain_run)
            self.go_through(judge, task.trials, task.requests, done)

    def result(self, note: str) -> CheckResult:
        """What the suite says: a valid run that missed a floor is unknown."""
        missed = () if self.failures else tuple(self.missed)
        plans = self.evaluations[PLANS]
        return CheckResult(
            self.suite_id,
            verdict_of(self.failures, missed),
            examples=self.examples,
            ops=self.ops,
            reached=dict(self.reached),
            missed=missed,
            invariants={name: count for name, count in self.evaluations.items() if name != PLANS},
            failures=self.failures,
            figures=tuple(self._figures()),
            note=f"{note}; {plans:,} plans as with fingerprints" if plans else note,
        )

    def _count(self, trial: Trial, model: ModelSpec, judged: Judged, num_requests: int) -> None:
        self.examples += 1
        self.ops += num_requests
        self.evaluations.update(judged.evaluations)
        key = model.name, model.dtype
        self.worst[key] = max((self.worst.get(key, 0.0), *judged.shares))  # of no token at all, if every request failed
        for words in strayed(trial.world, judged.ran.reached, judged.ran.description):
            self.missed[f"{trial.name}: {words}"] = None
        for name, floor in trial.floors.items():
            found = judged.ran.reached.get(name, 0)
            self.reached[f"{trial.name}: {name}"] += found
            if found < floor:
                self.missed[f"{trial.name}: {name} at least {floor} times, found {found}"] = None

    def _figures(self) -> Iterator[Figure]:
        for (model, dtype), share in sorted(self.worst.items()):
            allowed = tolerance_of(DTYPES[dtype], model)
            note = f"largest error of a logit, as a share of the spread of its row; {allowed:g} is allowed"
            yield Figure(f"{self.suite_id}.worst_error.{dtype}", share, "1", Label.OBSERVED, note)


def tally_of(
    suite_id: str, context: SuiteContext, tasks: Sequence[Task], make_runner: MakeRunner, *, asks_second_oracle: bool
) -> Tally:
    """What a suite has seen that is these tasks and nothing else."""
    tally = Tally(suite_id, context.seed, context.shrink_s)
    total = sum(len(task.trials) for task in tasks)
    with one_thread():
        tally.go_through_tasks(
            tasks, make_runner, asks_second_oracle=asks_second_oracle, done=lambda: context.progress(tally.examples, total)
        )
    return tally
