"""Ranks in containers: what is done without a Docker engine, and, where there is one, every blow, and nothing left behind.

The marker `docker` says which of these need an engine: `pytest -m docker chaos`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chaos.container_blows import BLOWS, ContainerBlow, Striker
from chaos.container_suites import CASES, check_containers, run_in_containers
from chaos.rank_containers import Containers, engine
from chaos.rank_kills import RankStorm, run_rank_storm
from chaos.rank_leftovers import CHECKOUT, LABEL, is_alive, new_owner, remove_leftovers
from chaos.rank_strikes import Blow
from chaos.suites import SUITES
from engine_under_test.distributed.rank_messages import RankPhase
from engine_under_test.distributed.rank_supervisor import Policy
from engine_under_test.types import FinishReason
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

WITHIN_S = 30.0
INSIDE, BEFORE, BEHIND = RankPhase.IN_COLLECTIVE, RankPhase.BEFORE_PLAN, RankPhase.BEFORE_REPLY
# Every blow once, and every phase; all of one with all of the other is the nightly suite's.
CHOSEN = dict(zip(BLOWS, (INSIDE, BEHIND, BEFORE, BEHIND, INSIDE, INSIDE, INSIDE), strict=True))


@pytest.fixture(scope="module")
def launcher() -> Iterator[Containers]:
    """One network for all groups of this module."""
    made = Containers()
    yield made
    made.close()


@pytest.fixture
def client() -> Iterator[Any]:
    made = engine()
    yield made
    made.close()


def test_without_an_engine_the_suite_is_unknown_and_says_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    result = check_containers(SuiteContext(Profile.PR, 1))
    assert result.verdict is Verdict.UNKNOWN
    assert "dockerd --storage-driver=vfs" in result.note


def test_the_nightly_gate_has_every_blow_at_every_phase_of_a_step() -> None:
    (suite,) = [each for each in SUITES if each.id == "ranks-docker"]
    assert suite.profiles == {Profile.NIGHTLY}
    assert set(CASES) == {(blow, phase) for blow in BLOWS for phase in (BEFORE, INSIDE, BEHIND)}


@pytest.mark.docker
@pytest.mark.parametrize(
    ("blow", "phase"), CHOSEN.items(), ids=lambda value: value.name.lower() if value in BLOWS else str(value)
)
def test_what_befalls_a_container_is_noticed_and_outlived(blow: ContainerBlow, phase: RankPhase, launcher: Containers) -> None:
    run = run_in_containers(blow, phase, 6, launcher)
    assert run.violation is None, run.facts
    assert not run.missed, run.facts
    assert {each.verdict for each in run.verdicts} == {Verdict.VALID}
    assert set(run.ends) == {FinishReason.LENGTH}
    if blow.noticed_as:
        assert run.num_restarts == 1
        assert run.noticed_s[0] < 10.0
    elif blow.heals:
        assert run.num_restarts == 0


@pytest.mark.docker
def test_a_blow_that_never_falls_is_missed_and_not_called_outlived(launcher: Containers) -> None:
    striker = Striker(BLOWS[0])
    run = run_rank_storm(RankStorm(6, 1, Policy.CONTINUE, ()), launcher, interface="eth0", struck=striker)
    assert run.violation is None
    assert not striker.has_fallen


_DRIVER = """
import sys, time
from chaos.rank_containers import Containers
launcher = Containers()
ranks = [launcher.start(), launcher.start()]
ranks[1].pause()
print(launcher.owner, launcher.reaper.pid, flush=True)
time.sleep(600)
"""


def left_of(client: Any, owner: str) -> list[str]:
    filters = {"label": f"{LABEL}={owner}"}
    found = client.containers.list(all=True, filters=filters, ignore_removed=True)
    return [each.name for each in (*found, *client.networks.list(filters=filters))]


def is_clean_soon(client: Any, owner: str) -> bool:
    deadline = time.monotonic() + WITHIN_S
    while (left := left_of(client, owner)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not left


@pytest.mark.docker
@pytest.mark.parametrize(
    "is_reaper_killed", [False, True], ids=["by its reaper", "by whoever starts next, if that is killed too"]
)
def test_what_a_killed_driver_leaves_is_removed(is_reaper_killed: bool, client: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": CHECKOUT}
    driver = subprocess.Popen(
        [sys.executable, "-c", _DRIVER], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    )  # wherever it is started
    with driver:
        assert driver.stdout is not None
        owner, reaper = driver.stdout.readline().split()
        assert len(left_of(client, owner)) == 3, "two containers, one of them paused, and their network"
        if is_reaper_killed:
            os.kill(int(reaper), signal.SIGKILL)
        driver.kill()
    if is_reaper_killed:
        assert left_of(client, owner)
        remove_leftovers(client)
    assert is_clean_soon(client, owner)


@pytest.mark.docker
def test_what_a_living_driver_has_is_left_alone_and_gone_when_it_closes(client: Any) -> None:
    launcher = Containers()
    launcher.start()
    remove_leftovers(client)
    assert len(left_of(client, launcher.owner)) == 2
    launcher.close()
    assert not left_of(client, launcher.owner)


def test_a_process_is_not_taken_for_an_earlier_one_of_its_number() -> None:
    owner = new_owner()
    pid, started, name = owner.split("-")
    assert is_alive(owner)
    assert not is_alive(f"{pid}-{int(started) + 1}-{name}")
    assert not is_alive(f"{2**22 + 1}-{started}-{name}")


def test_a_blow_from_outside_that_must_be_noticed_holds_the_rank_until_it_falls() -> None:
    assert {blow.inside for blow in BLOWS if blow.noticed_as} == {Blow.HOLD, Blow.EXHAUST}
    assert {blow.inside for blow in BLOWS if not blow.noticed_as} == {Blow.REST}
