"""The gate proves itself in every run: three planted suites go through the same processes and the same judging.

Owns the plants and what each must lead to: an injected violation 1, a crashing checker 2, an empty suite 2. Never trusts an
exit code alone: the violation must be the planted one, the crash must be the planted one.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from ci.jobs import Job, JobReport
from ci.judging import judge
from ci.outcome import Check, Proof
from engine_under_test.types import Request, SamplingParams, Snapshot
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Suite, SuiteContext
from properties.verdict import Verdict, Violation, merge

_CRASH = "this checker crashes on purpose"
_WORLD: dict[str, Any] = {
    "target": "assay",
    "config": {"num_blocks": 6, "block_size": 4, "max_num_seqs": 4, "max_tokens_per_step": 8},
}
_OPS = (
    Op(OpKind.ADD, request=Request("a", tuple(range(9)), SamplingParams(max_tokens=2))),
    Op(OpKind.STEP),
    Op(OpKind.STEP),
)


class BlindTarget:
    """A target whose snapshots lose the head of the free queue: one block is nowhere (KV-1)."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def snapshot(self) -> Snapshot:
        snapshot: Snapshot = self._target.snapshot()
        return dataclasses.replace(snapshot, free=snapshot.free[1:])


def _run_injected_violation(_context: SuiteContext) -> CheckResult:
    from models.build import world_from
    from models.world import World

    world = World(BlindTarget(world_from(_WORLD).target), hasher=None)
    world.run(_OPS)
    return _result("injected-violation", len(_OPS), world.violation)


def _run_crashing_checker(_context: SuiteContext) -> CheckResult:
    from models.build import world_from
    from models.world import World
    from properties.invariants import ALL

    def crash(_moment: Any) -> None:
        raise RuntimeError(_CRASH)

    crashing = dataclasses.replace(ALL[0], check=crash, happenings=None, needs=(), only_with=(), reads=())
    world = World(world_from(_WORLD).target, hasher=None, predicates=(crashing,))
    world.run(_OPS)
    return _result("crashing-checker", len(_OPS), world.violation)


def _run_nothing(_context: SuiteContext) -> CheckResult:
    return CheckResult("empty-suite", Verdict.VALID)


def _result(name: str, num_ops: int, violation: Violation | None) -> CheckResult:
    failures = (Failure(violation, seed="planted", world=_WORLD, ops=_OPS, ops_found=num_ops),) if violation else ()
    return CheckResult(name, Verdict.INVALID if failures else Verdict.VALID, examples=1, ops=num_ops, failures=failures)


@dataclass(frozen=True, slots=True)
class Plant:
    """A planted suite and what it must lead to. ``mark`` must stand in the identifier of the failure or in a reason."""

    suite: Suite
    exit_code: int
    mark: str


PLANTS: tuple[Plant, ...] = (
    Plant(Suite("injected-violation", "a block that no snapshot shows", _run_injected_violation, share_s=0.5), 1, "KV-1"),
    Plant(Suite("crashing-checker", "a checker that raises", _run_crashing_checker, share_s=0.5), 2, _CRASH),
    Plant(Suite("empty-suite", "a suite that does nothing", _run_nothing, share_s=0.5), 2, "it did nothing"),
)
SUITES: tuple[Suite, ...] = tuple(plant.suite for plant in PLANTS)


def prove(job: Job, report: JobReport | None, why_missing: str = "") -> Proof:
    """Whether the planted suite came out as it must, for the planted reason."""
    plant = next(plant for plant in PLANTS if plant.suite.id == job.subject)
    if report is None:
        return Proof(job.subject, plant.exit_code, Verdict.UNKNOWN.exit_code, why_missing or "left no report", False)
    check = judge(job, report)
    found = merge([check.verdict]).exit_code
    seen = _seen(check)
    is_as_planted = found == plant.exit_code and any(plant.mark in word for word in seen)
    note = (
        plant.suite.title if is_as_planted else f"expected exit {plant.exit_code} and {plant.mark!r}, found {found} and {seen}"
    )
    return Proof(job.subject, plant.exit_code, found, note, is_as_planted)


def _seen(check: Check) -> tuple[str, ...]:
    return (
        *(failure.violation.invariant for failure in check.failures),
        *(reason.splitlines()[-1] for reason in check.reasons),
    )
