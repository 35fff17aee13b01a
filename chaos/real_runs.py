"""What suites on real processes share: an end in bounded time, what was done and seen so far, and a finding with its account.

Owns the words of a hang. Never what a run does, or which bound it has. Real processes are not bit-for-bit repeatable, so a
finding comes with the account of what happened, and there is nothing to shrink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from chaos.watchdog import Hang, within
from properties.invariants.predicate import violation
from properties.suite import CheckResult, Failure, Figure
from properties.verdict import Violation, verdict_of


def hang_in(title: str, run: Callable[[], None], seconds: float, invariant: str) -> Violation | None:
    """Runs it; what breaks the invariant if it is not over by then (nothing hangs, whatever befalls the others)."""
    try:
        with within(seconds):
            run()
    except Hang as hang:
        found = f"not over after {seconds:g} s, at {hang.where}"
        return violation(invariant, title, found, "an end in bounded time, whatever befalls the others")
    return None


def failure_of(suite_id: str, found: Violation, title: str, facts: Iterable[str] = ()) -> Failure:
    """A finding with the account of what happened."""
    return Failure(replace(found, facts=(*found.facts, *facts)), f"{suite_id}: {title}")


@dataclass(slots=True)
class Sums:
    """What was done and seen so far."""

    examples: int = 0
    ops: int = 0
    noops: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def result(self, suite_id: str, failure: Failure | None, note: str, figures: tuple[Figure, ...] = ()) -> CheckResult:
        missed = () if failure else tuple(self.missed)
        return CheckResult(
            suite_id,
            verdict_of(failure, missed),
            examples=self.examples,
            ops=self.ops,
            noops=self.noops,
            reached=dict(sorted(self.reached.items())),
            missed=missed,
            invariants=dict(self.evaluations),
            failures=(failure,) if failure else (),
            figures=figures,
            note=note,
        )
