"""What a suite is to whoever runs it: a name, a function from a context to a `CheckResult`, nothing more.

A suite knows nothing of the gate, of reports or of mutants; it does a fixed amount of work for its profile and seed, says
how far it is, and returns what it saw. A crash of a suite is the runner's business (unknown), not the suite's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from properties.op import Op
from properties.verdict import Verdict, Violation


class Profile(StrEnum):
    """How much work: seconds, minutes, hours."""

    QUICK = "quick"
    PR = "pr"
    NIGHTLY = "nightly"


class Label(StrEnum):
    """Where a figure comes from."""

    GIVEN = "given"
    DERIVED = "derived"
    OBSERVED = "observed"
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Figure:
    name: str
    value: float
    unit: str
    label: Label
    note: str = ""


# What the effect of a statistical test is measured in: a distance of two laws, or a difference of two rates.
TOTAL_VARIATION, KOLMOGOROV = "total variation", "Kolmogorov distance"
MISS_RATE, RATE = "difference of miss rates", "difference of rates"
EFFECTS = (TOTAL_VARIATION, KOLMOGOROV, MISS_RATE, RATE)


@dataclass(frozen=True, slots=True)
class Estimate:
    """How far from its null a test's samples seem to be, in what its `effect` names, and an interval that holds the true
    distance with a probability of ``confidence`` or more. It has no part in the verdict."""

    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True, slots=True)
class Statistic:
    """A statistical test with its power, as it appears beside its verdict (the error ledger adds up the alphas)."""

    id: str
    null: str  # the null hypothesis, in words
    statistic: str
    n: int  # samples
    alpha: float  # false-alarm rate taken from the gate's budget
    tv_min: float  # minimum detectable effect, in what `effect` names
    power: float  # at tv_min
    p: float
    verdict: Verdict
    effect: str = TOTAL_VARIATION  # how far from the null: one of `EFFECTS`
    estimate: Estimate | None = None

    @classmethod
    def judged(
        cls, entry_id: str, null: str, statistic: str, *,
        n: int, alpha: float, tv_min: float, power: float, p: float, effect: str = TOTAL_VARIATION,
        estimate: Estimate | None = None,
    ) -> Statistic:  # fmt: skip
        """With the verdict that follows: the null falls where p is below alpha; a test without power says nothing."""
        verdict = Verdict.UNKNOWN if power <= 0 else Verdict.INVALID if p < alpha else Verdict.VALID
        return cls(entry_id, null, statistic, n, alpha, float(tv_min), float(power), float(p), verdict, effect, estimate)

    @property
    def estimated(self) -> str:
        """ "estimated total variation 3.20% (2.51% to 3.90%, confidence 99%)", or that nothing was."""
        found = self.estimate
        if found is None:
            return "no estimate of the effect"
        interval = f"{found.low:.2%} to {found.high:.2%}, confidence {found.confidence:.0%}"
        return f"estimated {self.effect} {found.value:.2%} ({interval})"


@dataclass(frozen=True, slots=True)
class Failure:
    """A counterexample: what broke, and the world and operations that break it, shrunk as far as the suite could.

    ``world`` says how to build the world again: ``{"target": name, "config": {...}, ...}`` (see `models.build.world_from`).
    ``ops_found`` is the number of operations before shrinking.
    """

    violation: Violation
    seed: str
    world: Mapping[str, Any] = field(default_factory=dict)
    ops: tuple[Op, ...] = ()
    ops_found: int = 0


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one suite saw. ``ops`` counts operations that did something; no-ops do not count as work.

    ``reached`` counts states from the target's events; ``missed`` names the floors that were not met: a valid suite with a
    missed floor is unknown. ``invariants`` counts the evaluations of each predicate. ``digests`` (suites with walk seeds):
    a digest of the history of each seed, or of each part of it, in order; whoever runs the suite twice compares them.
    """

    id: str
    verdict: Verdict
    examples: int = 0
    ops: int = 0
    noops: int = 0
    reached: Mapping[str, int] = field(default_factory=dict)
    missed: tuple[str, ...] = ()
    invariants: Mapping[str, int] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    statistics: tuple[Statistic, ...] = ()
    figures: tuple[Figure, ...] = ()
    note: str = ""  # one sentence for the progress line and the report
    digests: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SuiteContext:
    """``progress(done, total)`` may be called as often as the suite likes, with work done and planned (examples, steps).
    ``shrink_s``: how long a counterexample may be shrunk, if the suite can say."""

    profile: Profile
    seed: int
    progress: Callable[[int, int], None] = lambda _done, _total: None
    shrink_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Suite:
    """``run`` is deterministic in profile and seed. ``share_s`` is its aimed wall time on one core in profile pr, used to
    order the work. ``has_walk_seeds``: each seed is run twice, the second time in a fresh process with another hash seed.
    ``extras``: optional parts of the installation, and ``model``: the name of a fetched model, without which it is unknown."""

    id: str
    title: str
    run: Callable[[SuiteContext], CheckResult]
    profiles: frozenset[Profile] = frozenset(Profile)
    share_s: float = 10.0
    has_walk_seeds: bool = False
    extras: tuple[str, ...] = ()
    model: str = ""
