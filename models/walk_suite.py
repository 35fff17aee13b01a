"""The seeded walk as a suite: a fixed number of walks of a fixed length, each with the digest of its whole history.

Owns how many walks a profile takes and in which worlds. A failing walk is shrunk; it never decides what is wrong.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from models.machines.driving import Driver
from models.shrink import shrink_world
from models.walk import WalkShape, large_shape, priority_shape, small_shape, walk_ops
from properties.history import History
from properties.op import Op
from properties.suite import CheckResult, Failure, Profile, Suite, SuiteContext
from properties.verdict import Verdict

SHAPES: dict[str, WalkShape] = {
    "small": small_shape(),
    "small-deep": small_shape(1),
    "small-deeper": small_shape(2),
    "small-two-bit": small_shape(1, hasher="two_bit"),
    "priority": priority_shape(),
    "large": large_shape(),
    "large-deeper": large_shape(2),
}
_WORK = {Profile.QUICK: (1, 250), Profile.PR: (4, 900), Profile.NIGHTLY: (60, 3000)}  # walks a shape, ops a walk
_SHRINK_SECONDS = 20.0


@dataclass(slots=True)
class _Sums:
    """What the walks so far added up to."""

    walks: int
    ops: int
    noops: int
    reached: Counter[str]
    evaluations: Counter[str]
    digests: dict[str, str]
    differences: dict[str, None]

    def add(self, name: str, driver: Driver) -> None:
        self.walks += 1
        self.ops += driver.world.ops
        self.noops += driver.world.noops
        self.evaluations.update(driver.world.evaluations)
        self.digests[name] = digest(driver.world.history)
        reached, differences = driver.reached()
        self.reached.update(reached)
        self.differences.update(dict.fromkeys(differences))


def digest(history: History) -> str:
    """One word for everything that a walk did and saw."""
    return hashlib.blake2b("\n".join(history.lines()).encode(), digest_size=8).hexdigest()


def run_walks(context: SuiteContext) -> CheckResult:
    """Every shape in turn, up to the first violation."""
    walks, num_ops = _WORK[context.profile]
    sums = _Sums(0, 0, 0, Counter(), Counter(), {}, {})
    total = walks * len(SHAPES)
    for index in range(walks):
        for label, shape in SHAPES.items():
            seed = context.seed * 1000 + index
            name = f"{label}#{seed:#x}"
            driver = Driver(shape.spec())
            ops = tuple(islice(walk_ops(seed, shape), num_ops))
            driver.run(ops)
            sums.add(name, driver)
            if driver.violation is not None:
                return _result(sums, (_failure(name, shape, driver, ops),))
            context.progress(sums.walks, total)
    return _result(sums, ())


def _failure(name: str, shape: WalkShape, driver: Driver, ops: Sequence[Op]) -> Failure:
    violation = driver.violation
    assert violation is not None
    found = ops[: len(driver.ops)]
    shrunk = shrink_world(shape.spec(), found, violation, max_seconds=_SHRINK_SECONDS)
    return Failure(shrunk.violation, name, shrunk.spec, shrunk.ops, len(found))


def _result(sums: _Sums, failures: tuple[Failure, ...]) -> CheckResult:
    missed = list(sums.differences)
    if sums.noops > sums.ops:
        missed.append(f"at most half of the operations may be no-ops, found {sums.noops} of {sums.noops + sums.ops}")
    verdict = Verdict.INVALID if failures else Verdict.UNKNOWN if missed else Verdict.VALID
    return CheckResult(
        "walk",
        verdict,
        examples=sums.walks,
        ops=sums.ops,
        noops=sums.noops,
        reached=dict(sorted(sums.reached.items())),
        missed=tuple(missed),
        invariants=dict(sums.evaluations),
        failures=failures,
        digests=sums.digests,
        note=f"{sums.walks} walks in {len(SHAPES)} worlds",
    )


WALK = Suite("walk", "seeded walk", run_walks, share_s=45.0, has_walk_seeds=True)
