"""What a gate knows at its end, as plain values: every report is a function of an `Outcome`.

Owns the shape only. Never computes a verdict (`judging.py`) and never renders one (`report/`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ci.tree import Tree
from properties.suite import CheckResult, Failure, Profile
from properties.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Check:
    """One suite, judged. ``reasons`` say why it is not valid: what broke, or else why it is unknown. ``result`` is None if it
    never returned one."""

    id: str
    title: str
    verdict: Verdict
    seed: int
    reasons: tuple[str, ...] = ()
    wall_s: float = 0.0
    result: CheckResult | None = None
    failures: tuple[Failure, ...] = ()


@dataclass(frozen=True, slots=True)
class Proof:
    """One planted suite: the exit code that it must lead to, and the one that it led to. ``note`` says what was expected."""

    id: str
    expected_exit: int
    found_exit: int
    note: str
    is_as_planted: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """All failures of one identifier. ``lead`` is the place of the shortest story in `Outcome.failures`, ``others`` are the
    places of the rest; ``elsewhere`` names the other suites that found it."""

    lead: int
    others: tuple[int, ...]
    elsewhere: tuple[str, ...]

    @property
    def num_stories(self) -> int:
        return 1 + len(self.others)


@dataclass(frozen=True, slots=True)
class NotRun:
    """A suite that this run did not include, with why, and when and at which commit it was last seen."""

    suite: str
    why: str
    last_seen: str = ""
    commit: str = ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A whole run. ``mutants`` are entries of the kill table (see `ci.mutants.fate`). ``reasons`` are those of the run
    itself (interrupted, cap reached), beside those of its checks."""

    verdict: Verdict
    tree: Tree
    seed: int
    profile: Profile
    command: str
    wall_s: float
    started_at: str  # ISO 8601, UTC
    checks: tuple[Check, ...]
    proofs: tuple[Proof, ...]
    mutants: tuple[dict[str, Any], ...] = ()
    not_run: tuple[NotRun, ...] = ()
    reasons: tuple[str, ...] = ()
    is_interrupted: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def failures(self) -> tuple[tuple[Check, Failure], ...]:
        return tuple((check, failure) for check in self.checks for failure in check.failures)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The failures by identifier, in the order in which the identifiers first appear: one bug breaks many suites."""
        places: dict[str, list[int]] = {}
        for place, (_check, failure) in enumerate(self.failures):
            places.setdefault(failure.violation.invariant, []).append(place)
        return tuple(self._finding(found) for found in places.values())

    def _finding(self, places: list[int]) -> Finding:
        """A story without operations can not be replayed: one that has some goes before it, however long."""
        lead = min(places, key=lambda place: (not self.failures[place][1].ops, len(self.failures[place][1].ops), place))
        others = tuple(place for place in places if place != lead)
        titles = dict.fromkeys(self.failures[place][0].title for place in others)
        own = self.failures[lead][0].title
        return Finding(lead, others, tuple(title for title in titles if title != own))

    @property
    def num_ops(self) -> int:
        return sum(check.result.ops for check in self.checks if check.result)

    @property
    def num_evaluations(self) -> int:
        return sum(sum(check.result.invariants.values()) for check in self.checks if check.result)

    @property
    def alpha_used(self) -> float:
        return sum(item.alpha for check in self.checks if check.result for item in check.result.statistics)

    @property
    def proofs_passed(self) -> int:
        return sum(proof.is_as_planted for proof in self.proofs)

    @property
    def mutants_killed(self) -> int:
        return sum(mutant["verdict"] == "killed" for mutant in self.mutants)


def seed_text(seed: int) -> str:
    return f"{seed:#x}"
