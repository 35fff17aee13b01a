"""Claims about .ci/docker-engine that need no engine, and start none."""

from __future__ import annotations

import os
import subprocess

import pytest

from ci.tree import ROOT

SCRIPT = ROOT / ".ci" / "docker-engine"


def said(*arguments: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [SCRIPT, *arguments], env={**os.environ, **environment}, capture_output=True, text=True, timeout=30, check=False
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [(), ("sideways",)], ids=["no word", "another word"])
def test_it_takes_up_or_down(arguments: tuple[str, ...]) -> None:
    assert said(*arguments) == (64, "usage: .ci/docker-engine up|down\n")


def test_an_engine_that_somebody_named_is_theirs() -> None:
    assert said("up", DOCKER_HOST="tcp://nowhere:1") == (0, "Docker engine: the one behind DOCKER_HOST=tcp://nowhere:1\n")
