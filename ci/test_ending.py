"""SIGTERM to a command: one sentence, what was found so far, exit code 130. Two gates do not share a folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ci.atomic import claimed
from engine_under_test.errors import BadInput


@pytest.mark.parametrize(
    ("words", "sign"),
    [
        pytest.param(("chaos", "--budget", "5m", "--seed", "7"), "valid ", id="storms"),
        pytest.param(("props", "storms"), "simulated storms …", id="a developer's suites"),
        pytest.param(("mutants", "--seed", "7"), "…", id="a hunt"),
    ],
)
def test_a_command_that_is_terminated_says_what_it_found(words: tuple[str, ...], sign: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "ci", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    seen = ""
    while sign not in seen:
        line = process.stdout.readline()
        assert line, seen
        seen += line
    process.send_signal(signal.SIGTERM)
    rest, _ = process.communicate(timeout=60)
    assert process.returncode == 130, rest
    assert "terminated by SIGTERM" in rest
    assert "Traceback" not in rest


def test_a_report_folder_takes_one_gate_at_a_time(tmp_path: Path) -> None:
    with claimed(tmp_path):
        found = subprocess.run(
            [sys.executable, "-m", "ci", "gate", "--profile", "quick", "--report", str(tmp_path)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        with pytest.raises(BadInput, match="takes one gate at a time"), claimed(tmp_path):
            pass
    assert found.returncode == 64
    assert "a report folder takes one gate at a time, but another one is at work" in found.stderr
    assert list(tmp_path.iterdir()) == []
    with claimed(tmp_path):
        pass
