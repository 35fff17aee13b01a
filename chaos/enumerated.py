"""What suites share that run one small world after the other, each with one thing changed.

Owns a single run, and the result that the runs add up to. Never: what is changed, or how often.
"""

from __future__ import annotations

from collections.abc import Iterable

from models.machines.driving import Driver
from models.machines.tally import Tally
from models.shrink import Spec, shrink_world
from models.walk_suite import run_and_check
from properties.op import Op
from properties.suite import CheckResult, Failure, SuiteContext


def run_alone(spec: Spec, ops: Iterable[Op]) -> Driver:
    """One world, its whole history judged."""
    driver = Driver(spec)
    driver.run(ops)
    driver.judge_history()
    return driver


def result_of(name: str, tally: Tally, context: SuiteContext, missed: tuple[str, ...], note: str) -> CheckResult:
    """``missed``: floors that were not reached. A failure is shrunk."""
    failures: tuple[Failure, ...] = ()
    if tally.failure is not None:
        spec, ops, violation = tally.failure
        shrunk = shrink_world(spec, ops, violation, run=run_and_check, max_seconds=context.shrink_s)
        failures = (Failure(shrunk.violation, f"{name}#{context.seed:#x}", shrunk.spec, shrunk.ops, len(ops)),)
    tally.missed += missed
    return tally.result(name, failures, note)
