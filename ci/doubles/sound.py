"""Two suites that are valid; one walks, and repeats itself exactly; one is kept for the night."""

from __future__ import annotations

from properties.suite import CheckResult, Figure, Label, Profile, Statistic, Suite, SuiteContext
from properties.verdict import Verdict


def _walk(context: SuiteContext) -> CheckResult:
    context.progress(1, 2)
    context.progress(2, 2)
    return CheckResult(
        "sound-walk",
        Verdict.VALID,
        examples=2,
        ops=20,
        noops=3,
        reached={"preempt": 4, "abort": 9},
        invariants={"KV-1": 20, "SC-2": 20},
        digests={f"{context.seed:#x}#0": "aa", f"{context.seed:#x}#1": "bb"},
    )


def _statistics(_context: SuiteContext) -> CheckResult:
    statistic = Statistic("coin", "the coin is fair", "chi-square", 1000, 1e-8, 0.2, 0.999, 0.4, Verdict.VALID)
    figure = Figure("coins_per_s", 1234.5, "1/s", Label.OBSERVED)
    return CheckResult("sound-statistics", Verdict.VALID, statistics=(statistic,), figures=(figure,), note="one coin")


SUITES = (
    Suite("sound-walk", "sound walk", _walk, share_s=0.2, has_walk_seeds=True),
    Suite("sound-statistics", "sound statistics", _statistics, share_s=0.1),
    Suite("night-only", "night only", _statistics, profiles=frozenset({Profile.NIGHTLY})),
)
