"""Whatever befalls a rank is noticed, the group begins anew, every request ends once, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from chaos.document import PAGE
from chaos.rank_kills import PATIENCE, STEP_PHASES, RankStorm, run_rank_storm
from chaos.rank_strikes import IN_CONTAINERS, MEANINGS, Blow, Strike
from chaos.rank_suite import storms_of
from engine_under_test.distributed.rank_config import FingerprintModel, RankConfig
from engine_under_test.distributed.rank_messages import RankPhase
from engine_under_test.distributed.rank_processes import Processes
from engine_under_test.distributed.rank_supervisor import Policy, RankSupervisor
from engine_under_test.distributed.ranks import Ranks
from engine_under_test.engine import Engine
from engine_under_test.events import RankEvent, RankEventKind
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.types import FinishReason
from properties.suite import Profile
from properties.verdict import Verdict

WITHIN_S = 10.0  # where a wall clock judges
INSIDE, BEFORE, BEHIND = RankPhase.IN_COLLECTIVE, RankPhase.BEFORE_PLAN, RankPhase.BEFORE_REPLY


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    """One nursery for all groups of this module."""
    made = Processes()
    yield made
    made.close()


def storm(blow: Blow, phase: RankPhase, policy: Policy = Policy.CONTINUE, world_size: int = 2, depth: int = 1) -> RankStorm:
    return RankStorm(11, world_size, policy, (Strike(blow, phase, world_size - 1, 4),), depth)


@pytest.mark.parametrize(
    "told",
    [
        *(storm(Blow.KILL, phase, policy) for phase in (BEFORE, INSIDE, BEHIND) for policy in Policy),
        storm(Blow.KILL, INSIDE, world_size=4, depth=2),
        storm(Blow.KILL, INSIDE, world_size=1, depth=0),
        storm(Blow.RAISE, INSIDE),
        storm(Blow.CUT, BEFORE, Policy.END),
        storm(Blow.PART, INSIDE),
    ],
    ids=lambda told: told.title.partition("depth ")[2],
)
def test_a_lost_rank_is_noticed_and_no_request_suffers_unsaid(told: RankStorm, processes: Processes) -> None:
    run = run_rank_storm(told, processes)
    assert run.violation is None, run.facts
    assert {each.verdict for each in run.verdicts} == {Verdict.VALID}
    assert run.num_restarts >= 1
    assert run.noticed_s
    if told.policy is Policy.CONTINUE:
        assert set(run.ends) == {FinishReason.LENGTH}
    else:
        assert run.ends[FinishReason.ERROR] >= 1


@pytest.mark.parametrize(
    ("blow", "words"),
    [
        (Blow.KILL, "was killed by SIGKILL"),
        (Blow.RAISE, "failed: ZeroDivisionError: an exception of this rank alone"),
        (Blow.FREEZE, "was silent for 2 s while the driver listened"),
        (Blow.STALL, "has not answered plan 4 for 4 s, though it lives (rank 0: step 4, 1 collectives, rank 1: step 4, 0"),
    ],
)
def test_the_rank_that_is_to_blame_is_named_with_the_reason(blow: Blow, words: str, processes: Processes) -> None:
    run = run_rank_storm(storm(blow, BEFORE, depth=0), processes)
    assert run.violation is None, run.facts
    (loss,) = [event for event in run.history.of(RankEvent) if event.kind is RankEventKind.LOST]
    assert loss.rank == 1
    assert words in loss.reason


def test_a_plan_that_kills_every_time_ends_its_requests_and_no_others(processes: Processes) -> None:
    strikes = tuple(Strike(Blow.KILL, BEFORE, 0, 1, generation) for generation in (1, 2, 3))
    run = run_rank_storm(RankStorm(12, 2, Policy.CONTINUE, strikes), processes)
    assert run.violation is None, run.facts
    assert run.num_restarts == 3
    assert run.ends[FinishReason.ERROR] >= 1
    assert run.ends[FinishReason.LENGTH] >= 1


def test_a_group_that_does_not_come_up_any_more_ends_every_request_with_an_error(processes: Processes) -> None:
    again = tuple(Strike(Blow.KILL, RankPhase.JOINING, 0, 0, generation) for generation in (2, 3, 4))
    run = run_rank_storm(RankStorm(13, 2, Policy.CONTINUE, (Strike(Blow.KILL, INSIDE, 1, 3), *again)), processes)
    assert run.violation is None, run.facts
    assert run.num_restarts == 0
    assert set(run.ends) == {FinishReason.ERROR}


def test_an_engine_that_does_not_begin_anew_with_its_ranks_is_found(
    processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_forgets(engine: Engine) -> None:
        for plan_id in engine.plans_in_flight[:1]:
            engine.abandon(plan_id, "a rank was lost")

    monkeypatch.setattr(Engine, "restart", only_forgets)
    run = run_rank_storm(storm(Blow.KILL, INSIDE), processes)
    assert run.violation is not None
    assert run.violation.invariant in ("DI-2", "SE-2")


def test_a_driver_that_forgets_to_begin_anew_is_found(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RankSupervisor, "_restart_group", lambda _self: None)
    run = run_rank_storm(storm(Blow.KILL, INSIDE), processes)
    assert run.violation is not None
    assert run.violation.invariant in ("DI-2", "SC-5", "SC-11")


def test_a_nursery_that_is_killed_takes_its_ranks_along_and_is_replaced(processes: Processes) -> None:
    with Ranks(RankConfig(2, FingerprintModel(16), 8, 4, patience=PATIENCE), processes) as group:
        pids = [int(process.name.split()[1]) for process in group.processes]
        assert processes.nursery_pid is not None
        os.kill(processes.nursery_pid, signal.SIGKILL)
        assert all(is_gone_soon(pid) for pid in pids)
        deadline = time.monotonic() + WITHIN_S
        while not group.is_broken and time.monotonic() < deadline:
            group.wait()  # a rank whose first thread is gone keeps its connection until its last thread is
        assert group.is_broken
        group.restart()
        assert not group.is_broken


_DRIVER = """
import os, signal, sys, time
from engine_under_test.distributed.rank_config import FingerprintModel, RankConfig
from engine_under_test.distributed.ranks import Ranks
group = Ranks(RankConfig(2, FingerprintModel(16), 8, 4))
frozen = group.processes[1].pid
os.kill(frozen, signal.SIGSTOP)
print(group._owned.nursery_pid, group.processes[0].pid, frozen, flush=True)
time.sleep(600)
"""


def test_a_driver_that_is_killed_leaves_no_process_behind_not_even_a_frozen_one() -> None:
    driver = subprocess.Popen([sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1])
    with driver:
        assert driver.stdout is not None
        pids = [int(word) for word in driver.stdout.readline().split()]
        assert len(pids) == 3
        assert not any(map(is_gone, pids))
        driver.kill()
        assert all(is_gone_soon(pid) for pid in pids)


def is_gone(pid: int) -> bool:
    """It has ended, whether or not somebody has asked how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def is_gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + WITHIN_S
    while not is_gone(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_gone(pid)


def test_every_blow_is_told_on_the_page_of_faults() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert set(MEANINGS) == set(Blow)
    assert all(f"| `{blow}` | {meaning} |" in page for blow, meaning in MEANINGS.items())


@pytest.mark.parametrize(
    ("profile", "seeds", "left_out"),
    [(Profile.NIGHTLY, (7,), ()), (Profile.PR, (7, 8, 9), (Blow.STALL,))],
    ids=str,
)
def test_each_blow_falls_at_each_phase_every_night_and_by_turns_in_a_day(
    profile: Profile, seeds: tuple[int, ...], left_out: tuple[Blow, ...]
) -> None:
    fallen = {(strike.blow, strike.phase) for seed in seeds for told in storms_of(profile, seed) for strike in told.strikes}
    expected = set(product(set(Blow) - {*IN_CONTAINERS, *left_out}, STEP_PHASES))
    assert {(blow, phase) for blow, phase in fallen if phase is not RankPhase.JOINING} == expected


def test_a_storm_says_what_it_is_in_one_line() -> None:
    told = replace(storm(Blow.FREEZE, INSIDE), depth=2)
    assert told.title == "2 ranks, seed 0xb, depth 2, continue: rank 1, generation 1: freeze inside a collective of step 4"


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_of_a_llama_begin_anew_and_everybody_gets_the_tokens_of_one_rank(world_size: int, processes: Processes) -> None:
    """Four ranks share two KV heads."""
    strike = Strike(Blow.KILL, INSIDE, 0, 4)
    run = run_rank_storm(RankStorm(70, world_size, Policy.CONTINUE, (strike,), is_llama=True), processes)
    assert run.violation is None, run.facts
    assert (len(run.losses), run.num_restarts) == (1, 1)
    assert set(run.ends) == {FinishReason.LENGTH}


def test_tokens_of_another_llama_are_found(processes: Processes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.rank_kills._alone", lambda config, _model: FingerprintRunner(config.num_blocks, 4, 64))
    run = run_rank_storm(RankStorm(70, 2, Policy.CONTINUE, (), is_llama=True), processes)
    assert run.violation is not None
    assert run.violation.invariant == "SE-2"
