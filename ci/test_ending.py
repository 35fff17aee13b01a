"""SIGTERM to a command: one sentence, what was found so far, exit code 130. Two gates do not share a folder."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from ci import cli, generate
from ci.atomic import claimed
from ci.ending import forget
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


def _makes_another_error_of_it(name: str) -> generate.Model:
    try:
        signal.raise_signal(signal.SIGTERM)
    except KeyboardInterrupt:  # as a library in C does that was in the midst of a call
        raise BadInput(f"a safetensors file must be whole, but {name} is not") from None
    raise AssertionError


def _throws_it_away(name: str) -> generate.Model:
    with suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    return _open_model(name)


_open_model = generate.open_model


@pytest.fixture
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    forget()


@pytest.mark.usefixtures("_handlers")
@pytest.mark.parametrize("words", [("generate", "Hi", "--model", "tiny"), ("model", "adapter", "NEW", "--model", "tiny")])
@pytest.mark.parametrize("load", [_makes_another_error_of_it, _throws_it_away])
def test_an_end_that_a_library_turns_into_something_else_is_told_as_an_end(
    words: tuple[str, ...], load: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "open_model", load)
    with pytest.raises(SystemExit) as caught:
        cli.main([str(tmp_path / "new") if word == "NEW" else word for word in words])
    printed = capsys.readouterr()
    assert caught.value.code == 130
    assert "assay: terminated by SIGTERM" in printed.err
    assert "must be whole" not in printed.err
    assert printed.out == ""
    assert list(tmp_path.iterdir()) == []


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
