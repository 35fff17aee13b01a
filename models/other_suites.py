"""An engine written by others as suites, one for each family of its worlds: stories, then the machine, then the walk.

Owns how much of each, and that a finding does not end the search: what breaks is kept once for each way of breaking, shrunk,
and the rest of the work goes on. Not part of the gate: what others' engines violate says nothing about this one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from engine_under_test.caps import Caps
from engine_under_test.errors import BadInput
from models.build import target_from
from models.machines.driving import Driver
from models.machines.other import machine_of
from models.machines.running import run_machine
from models.machines.tally import Tally
from models.others import FAMILIES, Family, Spec
from models.reach import missed
from models.shrink import shrink_world
from models.walk import walk_ops
from models.walk_suite import run_and_check
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Profile, Suite, SuiteContext
from properties.verdict import Violation

_EXAMPLES = {Profile.QUICK: 12, Profile.PR: 80, Profile.NIGHTLY: 1600}  # of the machine
_STEPS = 40
_WALKS = {Profile.QUICK: (1, 400), Profile.PR: (3, 900), Profile.NIGHTLY: (40, 3000)}  # walks, ops a walk
_ROUNDS = 6  # a machine ends at what it finds: so often it is started again
_FLOOR_PR = 3  # the stories alone reach it
_MOST = 6  # findings of a family that are shrunk

Story = tuple[Spec, tuple[Op, ...], Violation]


class _Sums:
    """What the work so far added up to. ``found``: the first story of each way of breaking."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.found: dict[tuple[str, ...], tuple[str, Story]] = {}

    def add(self, origin: str, tally: Tally) -> None:
        mine = self.tally
        mine.examples += tally.examples
        mine.ops += tally.ops
        mine.noops += tally.noops
        mine.reached.update(tally.reached)
        mine.evaluations.update(tally.evaluations)
        mine.missed += tally.missed
        if tally.failure is not None:
            self.found.setdefault(way_of(tally.failure[2]), (origin, tally.failure))


def way_of(violation: Violation) -> tuple[str, ...]:
    """Two violations with the same answer broke in the same way, as far as their words go: numbers and names apart."""
    place = violation.facts[0] if violation.invariant == "CRASH" and violation.facts else ""
    words = (re.sub(r"\d+", "#", text) for text in (violation.found, violation.expected, place))
    return (violation.invariant, *words)


def family_suite(family: Family) -> Suite:
    """One family of worlds as a suite."""
    identifier = f"{family.target}-{family.label}"

    def run(context: SuiteContext) -> CheckResult:
        sums = _Sums()
        for origin, tally in _work(family, context):
            sums.add(origin, tally)
            context.progress(min(sums.tally.examples, _EXAMPLES[context.profile]), _EXAMPLES[context.profile])
        return _result(identifier, family, sums, context)

    return Suite(identifier, f"{family.target}: {family.title}", run, share_s=60.0, extras=("reference",))


def _work(family: Family, context: SuiteContext) -> Iterator[tuple[str, Tally]]:
    """Everything of a family, each piece with what came of it."""
    for story in family.stories():
        yield story.name, _driven(story.spec, story.ops)
    left, seed = _EXAMPLES[context.profile], context.seed
    for number in range(_ROUNDS):
        tally = run_machine(machine_of(family), examples=left, steps=_STEPS, seed=seed + number)
        yield f"machine#{seed + number:#x}", tally
        left -= tally.examples + 1
        if tally.failure is None or left <= 0:
            break
    walks, num_ops = _WALKS[context.profile]
    shape = family.walk()
    for number in range(walks):
        told = islice(walk_ops(seed + number, shape), num_ops)
        yield f"walk#{seed + number:#x}", _driven(shape.spec(), (*told, Op(OpKind.DRAIN)))


def _driven(spec: Spec, ops: Iterable[Op]) -> Tally:
    driver, tally = Driver(spec), Tally()
    driver.run(ops)
    driver.judge_history()
    tally.add(driver)
    if tally.failure is not None:  # what broke had been reached
        tally.reached.update(driver.reached()[0])
    return tally


def _result(identifier: str, family: Family, sums: _Sums, context: SuiteContext) -> CheckResult:
    tally = sums.tally
    tally.missed += missed(tally.reached, family.floors, context.profile, _FLOOR_PR)
    tally.require_ops()
    found = list(sums.found.values())[:_MOST]
    failures = tuple(_shrunk(f"{identifier} {origin}", story, family, context) for origin, story in found)
    note = f"{len(sums.found)} ways of breaking" if sums.found else f"{tally.examples} stories, examples and walks"
    return tally.result(identifier, failures, note)


def _shrunk(seed: str, story: Story, family: Family, context: SuiteContext) -> Failure:
    spec, ops, violation = story

    def run(spec: Any, ops: Sequence[Op]) -> Violation | None:
        """A smaller world must not turn a request that fits into one that does not: that breaks in a way of its own."""
        try:
            caps = target_from(spec).caps
        except BadInput:  # a world that this target does not have
            return None
        return run_and_check(spec, ops) if family.outgrows or _fits(caps, ops) else None

    shrunk = shrink_world(spec, ops, violation, run=run, max_seconds=context.shrink_s)
    return Failure(shrunk.violation, seed, shrunk.spec, shrunk.ops, len(ops))


def _fits(caps: Caps, ops: Iterable[Op]) -> bool:
    pool = caps.num_blocks * caps.block_size
    requests = [op.request for op in ops if op.request is not None]
    return all(len(request.prompt) + request.sampling.max_tokens - 1 <= pool for request in requests)


def suites_of(engine: str) -> tuple[Suite, ...]:
    """The suites of an engine by its name."""
    if engine not in FAMILIES:
        raise BadInput(f"an engine is assay or one of {sorted(FAMILIES)}, found {engine!r}; name one of them")
    return tuple(map(family_suite, FAMILIES[engine]))


SUITES: tuple[Suite, ...] = tuple(suite for engine in FAMILIES for suite in suites_of(engine))
