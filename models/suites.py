"""The suites of this folder: how much of what in which profile, which floors each must reach, and what makes a verdict.

Owns sizes and floors. What is drawn stands in the machines, what is told in `models.scenarios`, what is counted in
`models.reach`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain

from models.adapter_suite import ADAPTER_SLOTS
from models.compiled import IS_INSTALLED
from models.draft_reach import DRAFT_REACHES
from models.grammar_reach import GRAMMAR_REACHES
from models.grammar_suite import GRAMMAR_WALKS
from models.machines.directed import run_stories
from models.machines.engine import EngineMachine
from models.machines.kv import KvMachine
from models.machines.portable import PortableMachine
from models.machines.portable_worlds import PortableAssayMachine, RadixMachine
from models.machines.running import run_machine
from models.machines.scheduler import SchedulerMachine
from models.machines.tally import Tally
from models.reach import FLOOR_PR, Reach, missed
from models.refusals import refusal_stories
from models.rows_suite import SUITE as KEPT_ROWS
from models.scenarios import Scenario
from models.shrink import run_once, shrink_world
from models.slot_reach import SLOT_REACHES
from models.speculation_suite import SPECULATION
from models.stories import odd_hash_stories, stories
from models.strange_requests import SUITE as STRANGE_REQUESTS
from models.trace.suite import SUITE as TRACE
from models.walk_suite import WALK, run_and_check
from properties.checkers import CHECKERS
from properties.suite import CheckResult, Failure, Profile, Suite, SuiteContext

_SHRINK_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class MachineSize:
    """Work of a machine in profile pr; quick and nightly are shares and multiples of it."""

    examples: int
    steps: int = 50

    def at(self, profile: Profile) -> int:
        return max(1, round(self.examples * {Profile.QUICK: 0.1, Profile.PR: 1, Profile.NIGHTLY: 20}[profile]))


_COPIES = {Profile.QUICK: 1, Profile.PR: 6, Profile.NIGHTLY: 12}

# What a random machine of each kind reaches whatever its seed; the directed stories guarantee the floors of the whole.
MACHINE_FLOOR_PR = 10
KV_FLOORS = (Reach.COPIED, Reach.ROLLED_BACK, Reach.ABANDONED, Reach.QUARANTINED, Reach.REFUSED_BLOCK, Reach.DEPTH_ONE)
SCHEDULER_FLOORS = (Reach.PROMPT_BUDGET, Reach.REUSED_IDENTIFIER, Reach.DEPTH_ONE, Reach.QUARANTINED)
_WITH_GRAMMARS = (Reach.GRAMMAR_CUT, Reach.GRAMMARS_MIXED) if IS_INSTALLED else ()
ENGINE_FLOORS = (
    *KV_FLOORS, Reach.STALE_RESULT, Reach.REUSED_IDENTIFIER, Reach.SAME_PROMPT_TWICE, Reach.ROWS_KEPT, *_WITH_GRAMMARS,
)  # fmt: skip
PORTABLE_FLOORS = (Reach.PROMPT_ONE, Reach.REUSED_IDENTIFIER, Reach.SAME_PROMPT_TWICE, Reach.REFUSED_OTHERWISE)
_NOT_DIRECTED = (Reach.REFUSED_BLOCK, Reach.HASH_TWO_BIT, Reach.HASH_CONSTANT)
_NOT_OURS = (Reach.RESUMED_SWAPPED, Reach.RESUMED_ANEW, Reach.OUTGREW)
_ELSEWHERE = (*DRAFT_REACHES, *SLOT_REACHES, *GRAMMAR_REACHES, Reach.ROWS_KEPT)
DIRECTED_FLOORS = tuple(name for name in Reach if name not in (*_NOT_DIRECTED, *_NOT_OURS, *_ELSEWHERE))


def result_of(
    identifier: str,
    tally: Tally,
    context: SuiteContext,
    floors: Iterable[Reach],
    *,
    at_pr: int = FLOOR_PR,
    astray: Iterable[str] = (),
    note: str = "",
) -> CheckResult:
    """A valid run with anything missed, or with counts that disagree, is unknown. A failure is shrunk."""
    tally.missed += (*missed(tally.reached, floors, context.profile, at_pr), *astray)
    tally.require_ops()
    failure = None if tally.failure is None else _shrunk(identifier, tally, context)
    return tally.result(identifier, [failure], note)


def _shrunk(identifier: str, tally: Tally, context: SuiteContext) -> Failure:
    assert tally.failure is not None
    spec, ops, violation = tally.failure
    is_of_history = violation.invariant in {checker.identifier for checker in CHECKERS}
    run = run_and_check if is_of_history else run_once
    shrunk = shrink_world(spec, ops, violation, run=run, max_seconds=_SHRINK_SECONDS)
    seed = f"{identifier}#{context.seed:#x}"
    return Failure(shrunk.violation, seed, shrunk.spec, shrunk.ops, len(ops))


def machine_suite(
    identifier: str, title: str, machine: type[PortableMachine], size: MachineSize, floors: tuple[Reach, ...], share_s: float
) -> Suite:
    """A machine as a suite."""

    def run(context: SuiteContext) -> CheckResult:
        total = size.at(context.profile)
        tally = run_machine(
            machine,
            examples=total,
            steps=size.steps,
            seed=context.seed,
            on_example=lambda done: context.progress(min(done, total), total),
        )
        return result_of(identifier, tally, context, floors, at_pr=MACHINE_FLOOR_PR)

    return Suite(identifier, title, run, share_s=share_s)


def story_suite(
    identifier: str, title: str, tell: Callable[[int], Iterator[Scenario]], floors: tuple[Reach, ...], share_s: float
) -> Suite:
    """Directed stories as a suite; `tell` is given how many copies of each shape."""

    def run(context: SuiteContext) -> CheckResult:
        told = tuple(tell(_COPIES[context.profile]))
        tally, astray = run_stories(told, lambda done: context.progress(done, len(told)))
        return result_of(identifier, tally, context, floors, astray=astray, note=f"{len(told)} directed stories")

    return Suite(identifier, title, run, share_s=share_s)


def _odd_hashes(copies: int) -> Iterator[Scenario]:
    return chain(odd_hash_stories("two_bit", copies), odd_hash_stories("constant", copies))


KV = machine_suite("kv-machine", "allocator machine", KvMachine, MachineSize(200), KV_FLOORS, 30.0)
SCHEDULER = machine_suite("scheduler-machine", "scheduler machine", SchedulerMachine, MachineSize(150), SCHEDULER_FLOORS, 24.0)
ENGINE = machine_suite("engine-machine", "engine machine", EngineMachine, MachineSize(400), ENGINE_FLOORS, 60.0)
PORTABLE = machine_suite("portable-machine", "portable machine", PortableAssayMachine, MachineSize(80), PORTABLE_FLOORS, 16.0)
RADIX = machine_suite("radix-machine", "portable machine, radix", RadixMachine, MachineSize(80), PORTABLE_FLOORS, 16.0)
DIRECTED = story_suite("directed", "directed stories", stories, DIRECTED_FLOORS, 20.0)
ODD_HASHES = story_suite("odd-hashes", "hashes that collide", _odd_hashes, (Reach.HASH_TWO_BIT, Reach.HASH_CONSTANT), 3.0)
REFUSALS = story_suite("refusals", "every block refused once", refusal_stories, (Reach.REFUSED_BLOCK,), 3.0)

SUITES: tuple[Suite, ...] = (
    KV,
    SCHEDULER,
    ENGINE,
    PORTABLE,
    RADIX,
    DIRECTED,
    ODD_HASHES,
    REFUSALS,
    WALK,
    SPECULATION,
    ADAPTER_SLOTS,
    GRAMMAR_WALKS,
    TRACE,
    KEPT_ROWS,
    STRANGE_REQUESTS,
)
