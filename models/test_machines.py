"""Claims about the machines: they pass on correct targets, are deterministic, do work, and find bugs planted in targets."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from engine_under_test.adapters.base import Target
from engine_under_test.adapters.ours import AssayTarget
from engine_under_test.scheduling.scheduler import Scheduler, View
from engine_under_test.sequence import Sequence
from engine_under_test.types import Output, Plan, StepResult
from models.build import config_from, hasher_of, target_from
from models.machines.driving import Driver
from models.machines.engine import EngineMachine
from models.machines.kv import KvMachine
from models.machines.portable import PortableMachine
from models.machines.portable_worlds import PortableAssayMachine, RadixMachine
from models.machines.running import run_machine
from models.machines.scheduler import SchedulerMachine
from models.machines.tally import Tally
from models.targets.kv_alone import KvAlone
from models.targets.planted import PLANTED
from models.targets.radix import RadixTarget
from models.targets.scheduler_alone import SchedulerAlone
from models.world import World

MACHINES = (EngineMachine, KvMachine, SchedulerMachine, PortableAssayMachine, RadixMachine)
Builder = Callable[[dict[str, Any]], Target]


def run(machine: type[PortableMachine], *, examples: int = 8, steps: int = 30, seed: int = 1) -> Tally:
    return run_machine(machine, examples=examples, steps=steps, seed=seed)


def with_target(machine: type[PortableMachine], build: Builder) -> type[PortableMachine]:
    """The machine, driving what `build` makes of a spec instead of what the spec names."""

    def world(spec: dict[str, Any], **options: Any) -> World:
        return World(build(spec), hasher=hasher_of(spec), **options)

    def drive(spec: dict[str, Any]) -> Driver:
        return Driver(spec, world)

    return cast("type[PortableMachine]", type(machine.__name__, (machine,), {"drive": staticmethod(drive)}))


def first_violation(machine: type[PortableMachine]) -> str | None:
    """The invariant that the first seeds find broken."""
    for seed in range(6):
        tally = run(machine, examples=40, steps=40, seed=seed)
        if tally.failure is not None:
            return tally.failure[2].invariant
    return None


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.__name__)
def test_a_correct_target_passes(machine: type[PortableMachine]) -> None:
    tally = run(machine)
    assert tally.failure is None
    assert tally.examples >= 8
    assert tally.ops > tally.noops
    assert not tally.missed
    assert {"KV-1", "KV-4", "SC-1", "SC-3", "SE-1", "SE-2"} <= tally.evaluations.keys()
    assert tally.evaluations["SC-5"] > 0  # the sentences about whole histories were judged


@pytest.mark.parametrize("machine", [EngineMachine, RadixMachine], ids=lambda machine: machine.__name__)
def test_the_same_seed_does_the_same_and_another_one_something_else(machine: type[PortableMachine]) -> None:
    one, again, other = run(machine), run(machine), run(machine, seed=2)
    assert (one.ops, one.reached, one.evaluations) == (again.ops, again.reached, again.evaluations)
    assert one.reached != other.reached


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_the_portable_machine_finds_what_is_planted_in_the_radix_target(planted: type[RadixTarget]) -> None:
    found = first_violation(with_target(RadixMachine, lambda spec: planted(config_from(spec["config"]), hasher_of(spec))))
    assert found is not None


# ---- bugs planted in our engine, each behind the target's own verbs --------------------------------------------------------


def _assay(spec: dict[str, Any]) -> AssayTarget:
    return cast("AssayTarget", target_from(spec))


def frees_twice(spec: dict[str, Any]) -> Target:
    """The tail of every released table enters the free queue once more."""
    target = _assay(spec)
    kv = target._engine._kv
    release = kv.release

    def release_twice(table: Any, row: Any = None) -> None:
        release(table, row)
        if table.blocks and kv.pool.is_free[table.blocks[-1]]:
            kv.pool.push_back(table.blocks[-1])

    kv.release = release_twice  # type: ignore[method-assign]  # the bug is planted in this one object
    return target


def skips_a_token(spec: dict[str, Any]) -> Target:
    """The second token of a choice never reaches the user."""

    class Skipping(AssayTarget):
        def take_outputs(self) -> tuple[Output, ...]:
            return tuple(replace(each, token_ids=()) if each.index == 1 else each for each in super().take_outputs())

    return Skipping(config_from(spec["config"]), hasher_of(spec))


def answers_a_stale_result(spec: dict[str, Any]) -> Target:
    """A result that comes a second time is told to the user a second time."""

    class Answering(AssayTarget):
        _told: tuple[Output, ...] = ()

        def take_outputs(self) -> tuple[Output, ...]:
            told, self._told = self._told, ()
            return (*super().take_outputs(), *told)

        def commit(self, result: StepResult) -> None:
            is_stale = result.plan_id not in self._engine.plans_in_flight
            super().commit(result)
            if is_stale and result.tokens[0]:
                row = result.rows[0]
                told = Output(row.request_id, row.choice, row.incarnation, 0, result.tokens[0])
                self._told = (*self._told, told)

    return Answering(config_from(spec["config"]), hasher_of(spec))


def forgets_an_abort(spec: dict[str, Any]) -> Target:
    """An abort in flight is acknowledged and not done."""

    class Forgetting(AssayTarget):
        def abort(self, request_id: str) -> bool:
            live = any(sequence.request_id == request_id for sequence in self.snapshot().sequences())
            return live if self._engine.plans_in_flight else super().abort(request_id)

    return Forgetting(config_from(spec["config"]), hasher_of(spec))


@pytest.mark.parametrize(
    ("planted", "found_by"),
    [
        pytest.param(frees_twice, {"KV-1", "KV-4"}, id="a block freed twice"),
        pytest.param(skips_a_token, {"SC-1", "SC-5", "SC-12"}, id="a token skipped"),
        pytest.param(answers_a_stale_result, {"SC-1", "SC-5", "AS-4"}, id="a stale result answered"),
        pytest.param(forgets_an_abort, {"SC-4", "SC-6", "AS-3"}, id="an abort forgotten"),
    ],
)
def test_the_engine_machine_finds(planted: Builder, found_by: set[str]) -> None:
    assert first_violation(with_target(EngineMachine, planted)) in found_by


# ---- bugs planted in one part --------------------------------------------------------------------------------------------


def rolls_back_in_another_order(spec: dict[str, Any]) -> Target:
    """What a rollback gives back goes to the front of the free queue, one after the other."""

    class Disordered(KvAlone):
        def rollback(self, step: Any) -> None:
            super().rollback(step)
            pool = self._kv.pool
            for block in sorted(pool.free_order(), reverse=True):
                pool.unlink(block)
                pool.push_front(block)

    return Disordered(config_from(spec["config"]), hasher_of(spec))


def ignores_fences(spec: dict[str, Any]) -> Target:
    """A released block is free at once, whoever still uses it."""

    class Hasty(KvAlone):
        def has_passed(self, plan_id: int) -> bool:
            return plan_id > 0

    return Hasty(config_from(spec["config"]), hasher_of(spec))


@pytest.mark.parametrize(
    ("planted", "found_by"),
    [
        pytest.param(rolls_back_in_another_order, {"KV-12"}, id="a rollback that disorders the free queue"),
        pytest.param(ignores_fences, {"KV-4", "KV-10"}, id="a fence ignored"),
    ],
)
def test_the_kv_machine_finds(planted: Builder, found_by: set[str]) -> None:
    assert first_violation(with_target(KvMachine, planted)) in found_by


class OverBudget(Scheduler):
    """A plan that fills the budget has its first row twice."""

    def plan(self, view: View) -> Plan | None:
        plan = super().plan(view)
        is_full = plan is not None and sum(plan.num_tokens) == view.config.max_tokens_per_step
        return _with_row_again(plan) if plan is not None and is_full else plan


def _with_row_again(plan: Plan) -> Plan:
    """The first row stands in the plan twice."""
    first = plan.num_tokens[0] - plan.num_pending[0]
    return replace(
        plan,
        requests=(*plan.requests, plan.requests[0]),
        choices=(*plan.choices, plan.choices[0]),
        incarnations=(*plan.incarnations, plan.incarnations[0]),
        epochs=(*plan.epochs, plan.epochs[0]),
        starts=(*plan.starts, plan.starts[0]),
        num_tokens=(*plan.num_tokens, plan.num_tokens[0]),
        token_ids=(*plan.token_ids, *plan.token_ids[:first]),
        num_pending=(*plan.num_pending, plan.num_pending[0]),
        samples=(*plan.samples, plan.samples[0]),
        hit_blocks=(*plan.hit_blocks, plan.hit_blocks[0]),
    )


class FirstVictim(Scheduler):
    """Preempts from the front."""

    def choose_victims(self, view: View) -> tuple[Sequence, ...]:
        victims = super().choose_victims(view)
        return tuple(view.running[: len(victims)])


class Forgetful(Scheduler):
    """Changes what it looks at."""

    def plan(self, view: View) -> Plan | None:
        for seq in view.running:
            seq.overtaken += 1
        return super().plan(view)


@pytest.mark.parametrize(
    ("scheduler", "found_by"),
    [
        pytest.param(OverBudget, {"SC-2", "SC-3", "KV-3"}, id="a row planned twice, over the budget"),
        pytest.param(FirstVictim, {"SC-9"}, id="the first one preempted"),
        pytest.param(Forgetful, {"CRASH"}, id="a decision that changes its view"),
    ],
)
def test_the_scheduler_machine_finds(scheduler: type[Scheduler], found_by: set[str]) -> None:
    machine = with_target(SchedulerMachine, lambda spec: SchedulerAlone(config_from(spec["config"]), scheduler()))
    assert first_violation(machine) in found_by


_WORK = """
from models.suites import KV
from properties.suite import Profile, SuiteContext

result = KV.run(SuiteContext(Profile.QUICK, 7))
print(result.examples, result.ops, sum(result.reached.values()))
"""


def test_a_seed_does_the_same_work_with_a_cold_cache_and_with_more_modules_imported(tmp_path: Path) -> None:
    told = [
        subprocess.run(
            [sys.executable, "-c", before + _WORK],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "HYPOTHESIS_STORAGE_DIRECTORY": str(tmp_path / "cache")},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for before, hash_seed in (("", "1"), ("", "2"), ("import scipy.stats, jinja2, differential.suites", "3"))
    ]
    assert told[0] == told[1] == told[2]
