"""Ranks in containers: what is done without a Docker engine, and, where there is one, a container killed in a collective."""

from __future__ import annotations

import pytest

from chaos.container_suites import check_containers, run_in_containers
from chaos.rank_containers import Containers, engine
from engine_under_test.errors import AssayError
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


def has_engine() -> bool:
    try:
        engine().close()
    except AssayError:
        return False
    return True


def test_without_an_engine_the_suite_is_unknown_and_says_how_to_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    result = check_containers(SuiteContext(Profile.PR, 1))
    assert result.verdict is Verdict.UNKNOWN
    assert "dockerd --storage-driver=vfs" in result.note


@pytest.mark.skipif(not has_engine(), reason="needs a Docker engine: chaos/rank_containers.py says how to have one")
def test_a_container_that_is_killed_in_the_middle_of_a_collective_is_outlived() -> None:
    launcher = Containers()
    try:
        run = run_in_containers("container killed", 6, launcher)
    finally:
        launcher.close()
    assert run.violation is None, run.facts
    assert run.num_restarts == 1
    assert run.noticed_s[0] < 10.0
