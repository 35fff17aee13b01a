"""The seeded walk as a suite: a fixed number of walks of a fixed length, each with the digest of its whole history.

Owns how many walks a profile takes and in which worlds. A failing walk is shrunk; it never decides what is wrong.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from models.build import world_from
from models.machines.driving import Driver
from models.reach import Reach
from models.shrink import Spec, run_once, shrink_world
from models.walk import WalkShape, large_shape, priority_shape, small_shape, speculating_shape, walk_ops
from properties.checkers import CHECKERS, run_checkers
from properties.history import History
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Profile, Suite, SuiteContext
from properties.sums import Sums
from properties.verdict import Violation

SHAPES: dict[str, WalkShape] = {
    "small": small_shape(),
    "small-deep": small_shape(1),
    "small-deeper": small_shape(2),
    "small-two-bit": small_shape(1, hasher="two_bit"),
    "priority": priority_shape(),
    "large": large_shape(),
    "large-deeper": large_shape(2, keeps_rows=True),
    "speculating": speculating_shape(1, "lookup"),
}
_WORK = {Profile.QUICK: (1, 250), Profile.PR: (4, 900), Profile.NIGHTLY: (60, 3000)}  # walks a shape, ops a walk
_SHRINK_SECONDS = 20.0


@dataclass(slots=True)
class _Sums(Sums):
    """Of walks."""

    def add(self, name: str, driver: Driver) -> None:
        self.examples += 1
        self.ops += driver.world.ops
        self.noops += driver.world.noops
        self.evaluations.update(driver.world.evaluations)
        self.digests[name] = digest(driver.world.history)
        reached, differences = driver.reached()
        self.reached.update(reached)
        self.missed += differences

    def check(self, history: History) -> Violation | None:
        """The sentences about a whole history; the first that is broken. A crashed checker makes the suite unknown."""
        found: Violation | None = None
        for verdict in run_checkers(history):
            self.evaluations[verdict.identifier] += verdict.evidence
            found = found or verdict.violation
            if "crashed" in verdict.note:
                self.missed.append(f"{verdict.identifier} {verdict.sentence}: {verdict.note}")
        return found


def digest(history: History) -> str:
    """One word for everything that a walk did and saw."""
    return hashlib.blake2b("\n".join(history.lines()).encode(), digest_size=8).hexdigest()


def run_walks(context: SuiteContext) -> CheckResult:
    """Every shape in turn, up to the first violation. Each walk ends with a drain and with what holds of whole histories."""
    walks, num_ops = _WORK[context.profile]
    return run_shapes(context, "walk", SHAPES, walks, num_ops)


def run_shapes(
    context: SuiteContext,
    identifier: str,
    shapes: Mapping[str, WalkShape],
    walks: int,
    num_ops: int,
    floors: Mapping[Reach, int] = MappingProxyType({}),
) -> CheckResult:
    """The same with these shapes. ``floors``: how often each must have been reached, or the run is unknown."""
    sums = _Sums()
    total = walks * len(shapes)
    for index in range(walks):
        for label, shape in shapes.items():
            seed = context.seed * 1000 + index
            name = f"{label}#{seed:#x}"
            driver = Driver(shape.spec(), may_wait=True)
            driver.run((*islice(walk_ops(seed, shape), num_ops), Op(OpKind.DRAIN)))
            violation = driver.violation or sums.check(driver.world.history)
            sums.add(name, driver)
            if violation is not None:
                failure = _failure(name, shape, driver.ops, violation)
                return sums.result(identifier, [failure], f"{sums.examples} walks")
            context.progress(sums.examples, total)
    sums.require({reach.value: least for reach, least in floors.items()})
    sums.require_ops()
    return sums.result(identifier, (), f"{sums.examples} walks")


def run_and_check(spec: Spec, ops: Sequence[Op]) -> Violation | None:
    """What is wrong with these ops, in the eyes of predicates and checkers."""
    found = run_once(spec, ops)
    if found is not None:
        return found
    world = world_from(spec)
    world.run(ops)
    return next((verdict.violation for verdict in run_checkers(world.history) if verdict.violation is not None), None)


def _failure(name: str, shape: WalkShape, ops: Sequence[Op], violation: Violation) -> Failure:
    is_of_history = violation.invariant in {checker.identifier for checker in CHECKERS}
    run = run_and_check if is_of_history else run_once
    shrunk = shrink_world(shape.spec(), ops, violation, run=run, max_seconds=_SHRINK_SECONDS)
    return Failure(shrunk.violation, name, shrunk.spec, shrunk.ops, len(ops))


WALK = Suite("walk", "seeded walk", run_walks, share_s=45.0, has_walk_seeds=True)
