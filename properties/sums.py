"""What a suite has done and seen so far, and what that comes to.

Owns the words for a floor that was missed and for operations that did nothing, and how sums become a `CheckResult`. Never what
is counted, or which floors there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from properties.suite import CheckResult, Failure, Figure
from properties.verdict import verdict_of


@dataclass(slots=True)
class Sums:
    """``missed``: what was due and did not come, checkers that crashed, counts that disagree: each makes a suite unknown that
    has no failure. ``digests``: see `CheckResult`."""

    examples: int = 0
    ops: int = 0
    noops: int = 0
    reached: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    digests: dict[str, str] = field(default_factory=dict)

    def require(self, floors: Mapping[str, int]) -> None:
        """Each must have been reached so often by now."""
        self.missed += [
            f"{name}: {self.reached[name]} of {floor}" for name, floor in floors.items() if self.reached[name] < floor
        ]

    def require_ops(self) -> None:
        """At least as many operations did something as did nothing."""
        if self.noops > self.ops:
            self.missed.append(f"at most half of the operations may be no-ops, found {self.noops} of {self.noops + self.ops}")

    def result(
        self, suite_id: str, failures: Iterable[Failure | None], note: str, figures: tuple[Figure, ...] = ()
    ) -> CheckResult:
        """As a suite's result. With a failure nothing counts as missed: the suite went no further."""
        found = tuple(each for each in failures if each is not None)
        missed = () if found else tuple(dict.fromkeys(self.missed))
        return CheckResult(
            suite_id,
            verdict_of(found, missed),
            examples=self.examples,
            ops=self.ops,
            noops=self.noops,
            reached=dict(sorted(self.reached.items())),
            missed=missed,
            invariants=dict(self.evaluations),
            failures=found,
            figures=figures,
            note=note,
            digests=self.digests,
        )
