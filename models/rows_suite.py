"""The suite `kept-rows`: walks of rows that are kept from step to step, each field of each judged after every step (SC-13).

Owns how many in which profile, the floors, and the verdict.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Final

from models.rows_world import draw, run, shrink
from properties.suite import CheckResult, Failure, Profile, Suite, SuiteContext
from properties.verdict import Verdict, Violation

SUITE_ID: Final = "kept-rows"
_WALKS: Final = {Profile.QUICK: 60, Profile.PR: 400, Profile.NIGHTLY: 8000}
# In profile quick, of walks of which each does so somewhere between never and six times; one of these is a maximum.
_FLOORS: Final = {
    "steps": 400,
    "most rows": 6,
    "steps of fewer rows": 20,
    "options that the others lack": 40,
    "places of a row with an option": 40,
    "rows that end in front of others": 20,
    "rows that rest": 40,
    "plans given up": 20,
    "preempted": 20,
    "blocks copied": 10,
    "other orders": 10,
    "restarts": 5,
    "drafts that stand": 20,
    "drafts that do not stand": 20,
}


def check_kept_rows(context: SuiteContext) -> CheckResult:
    """The suite: walk after walk, up to the first violation, which is shrunk."""
    reached: Counter[str] = Counter()
    total = _WALKS[context.profile]
    evaluations = ops = 0
    for number in range(total):
        walk = draw(context.seed + number)
        world = run(walk)
        ops += len(walk)
        evaluations += world.num_checks
        most = max(reached["most rows"], world.reached["most rows"])
        reached.update(world.reached)
        reached["most rows"] = most
        context.progress(number + 1, total)
        if world.violation is not None:
            short = shrink(walk)
            violation = run(short).violation or world.violation
            story = ", ".join(map(str, short)) or "nothing but a step"
            failure = Failure(_with(violation, f"{'story':<13} {story}"), f"{SUITE_ID}#{context.seed + number:#x}")
            return CheckResult(
                SUITE_ID, Verdict.INVALID, number + 1, ops, invariants={"SC-13": evaluations}, failures=(failure,)
            )
    scale = 1 if context.profile is Profile.QUICK else 4
    floors = {name: floor * (1 if name == "most rows" else scale) for name, floor in _FLOORS.items()}
    missed = tuple(f"{name} at least {floor}, found {reached[name]}" for name, floor in floors.items() if reached[name] < floor)
    return CheckResult(
        SUITE_ID,
        Verdict.UNKNOWN if missed else Verdict.VALID,
        total,
        ops,
        reached=dict(sorted(reached.items())),
        missed=missed,
        invariants={"SC-13": evaluations},
        note=f"{evaluations:,} rows compared field by field",
    )


def _with(violation: Violation, fact: str) -> Violation:
    return replace(violation, facts=(*violation.facts, fact))


SUITE = Suite(SUITE_ID, "rows kept from step to step", check_kept_rows, share_s=3.0)
