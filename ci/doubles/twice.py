"""Two suites with one identifier: a sound one, and behind it one that would find something."""

from __future__ import annotations

from ci.doubles.failing import VIOLATION
from properties.suite import CheckResult, Failure, Suite, SuiteContext
from properties.verdict import Verdict


def _good(_context: SuiteContext) -> CheckResult:
    return CheckResult("twice", Verdict.VALID, examples=1, ops=9, invariants={"KV-4": 9})


def _bad(_context: SuiteContext) -> CheckResult:
    return CheckResult("twice", Verdict.INVALID, examples=1, ops=9, failures=(Failure(VIOLATION, "7"),))


SUITES = (Suite("twice", "good one", _good, share_s=0.1), Suite("twice", "bad one", _bad, share_s=0.1))
