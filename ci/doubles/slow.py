"""One suite that is done at once and one that goes on for a minute."""

from __future__ import annotations

import time

from properties.suite import CheckResult, Suite, SuiteContext
from properties.verdict import Verdict


def _slow(context: SuiteContext) -> CheckResult:
    for tenth in range(600):
        context.progress(tenth, 600)
        time.sleep(0.1)
    return CheckResult("slow", Verdict.VALID, examples=1, ops=1, invariants={"KV-1": 1})


def _fast(_context: SuiteContext) -> CheckResult:
    return CheckResult("fast", Verdict.VALID, examples=1, ops=1, invariants={"KV-1": 1})


SUITES = (Suite("slow", "slow suite", _slow, share_s=60.0), Suite("fast", "fast suite", _fast, share_s=0.1))
