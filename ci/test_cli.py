"""Claims about the command line: bad input is answered by one sentence, an exit code, and nothing half done."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import click
import pytest

from ci import cli
from ci.doubles.failing import OPS, VIOLATION, WORLD
from ci.environment import require_extra
from ci.outcome import Check, Outcome, Proof
from ci.replay_file import replay_of, to_text
from ci.tree import ROOT, Tree
from engine_under_test.errors import BadInput
from models.trace.requests import MOONCAKE_SLICE
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Profile
from properties.verdict import Verdict, Violation

Run = Callable[..., tuple[int, str, str]]
ABORTS = (Op(OpKind.ABORT, request_id="nobody"), Op(OpKind.ABORT, request_id="nobody else"))


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main(list(words))
        printed = capsys.readouterr()
        return int(caught.value.code or 0), printed.out, printed.err

    return call


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        pytest.param(("gate", "--fast"), "assay gate: No such option", id="an unknown flag"),
        pytest.param(("bake",), "assay: No such command 'bake'; see assay --help", id="an unknown command"),
        pytest.param(("gate", "--profile", "daily"), "'daily' is not one of", id="an unknown profile"),
        pytest.param(("gate", "--seed", "-3"), "a seed is a whole number from 0 to 2**64 - 1", id="a seed out of range"),
        pytest.param(("gate", "--seed", "x"), "found 'x'", id="a seed that is none"),
        pytest.param(("gate", "--budget", "soon"), "a budget is a time above 0 as 90s, 10m or 2h", id="a budget that is none"),
        pytest.param(("gate", "--budget", "0m"), "a budget is a time above 0", id="no budget"),
        pytest.param(("gate", "--workers", "0"), "Invalid value for '--workers'", id="no workers"),
        pytest.param(("replay",), "Missing argument 'FILE'", id="no file"),
        pytest.param(("replay", "/nowhere.json"), "there is no /nowhere.json", id="a missing file"),
        pytest.param(("replay", "/nowhere.json", "--until", "0"), "'--until'", id="no operation"),
        pytest.param(("trace", "/nowhere.jsonl"), "/nowhere.jsonl", id="a missing trace"),
        pytest.param(("mutants", "no-such-mutant"), "found 'no-such-mutant'", id="an unknown mutant"),
        pytest.param(("chaos", "--budget", "0s"), "leave --budget away for five minutes", id="no time for storms"),
        pytest.param(("replay", "."), "Is a directory; name a file that a gate wrote to", id="a folder"),
        pytest.param(("bench", "sprint"), "'sprint' is not one of", id="an unknown benchmark"),
    ],
)
def test_one_sentence_and_64_for(run: Run, words: tuple[str, ...], sentence: str) -> None:
    code, out, err = run(*words)
    assert code == 64
    assert sentence in err
    assert out == ""
    assert len(err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(("--help",), id="the help"),
        pytest.param(("generate", "a", "--model", "tiny"), id="a text"),
        pytest.param(("props", "no such thing"), id="news of a run"),
    ],
)
def test_a_reader_that_leaves_ends_it_quietly_with_141(words: tuple[str, ...]) -> None:
    """Not 1, which is a verdict, nor 0, which is another."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        done = subprocess.run([sys.executable, "-m", "ci", *words], stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 141
    assert [line for line in done.stderr.splitlines() if not line.startswith(("loading tiny", "a tiny"))] == []


def test_a_pipe_that_breaks_elsewhere_is_an_error_of_its_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def speak() -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setitem(cli.assay.commands, "speak", speak)
    code, _, err = run("speak")
    assert (code, "an error of its own" in err) == (2, True)


def test_ctrl_c_while_modules_are_loaded_is_a_sentence_and_130(tmp_path: Path) -> None:
    """It waits for the end of the import: raised in the midst of one it has ended the process in C++."""
    (tmp_path / "click.py").write_text(
        "import os, signal, sys\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.path.remove(os.path.dirname(__file__))\n"
        "del sys.modules['click']\n"
        "import click\n"
    )
    command = [sys.executable, "-c", "from ci.__main__ import main; main()", "props", "no such thing"]
    path = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(command, env={**os.environ, **path}, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert "no test matches" not in done.stdout, "it goes no further than to the first tick of the clock outside of an import"
    assert done.stderr.strip() == "assay: interrupted by Ctrl-C before anything was learned"


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        pytest.param(("gate", "--seed", "x"), "leave --seed away", id="a seed"),
        pytest.param(("mutants", "--seed", "x"), "leave --seed away", id="a seed of mutants"),
        pytest.param(("gate", "--budget", "soon"), "leave --budget away", id="a budget"),
        pytest.param(("mutants", "stop-one-lat"), "the nearest of", id="a mutant"),
        pytest.param(("mutants", "zzz"), "the nearest of", id="a mutant like no other"),
    ],
)
def test_a_remedy_is_named_for(run: Run, words: tuple[str, ...], remedy: str) -> None:
    _, _, err = run(*words)
    assert remedy in err
    assert len(err) < 300


def test_an_unknown_mutant_is_answered_by_the_nearest_names(run: Run) -> None:
    _, _, err = run("mutants", "stop-one-lat")
    assert "are: stop-one-late, " in err


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        pytest.param((), "Usage: assay [OPTIONS] COMMAND [ARGS]...", id="no command"),
        pytest.param(
            ("bench",),
            "Usage: assay bench [OPTIONS]\n                   {walk|scheduler|engine|overlap|attention|storm|sampling}",
            id="no benchmark",
        ),
    ],
)
def test_help_and_64_come_of(run: Run, words: tuple[str, ...], usage: str) -> None:
    code, out, err = run(*words)
    assert (code, out) == (64, "")
    assert err.startswith(usage)
    assert "see assay" not in err
    assert "\nOptions:\n" in err


def test_no_command_is_described_by_half_a_sentence(run: Run) -> None:
    _, _, err = run()
    listed = err.partition("Commands:\n")[2].strip().splitlines()
    assert [line.split()[0] for line in listed] == sorted(cli.assay.commands)
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_a_trace_that_is_a_folder_is_named_once(run: Run, tmp_path: Path) -> None:
    code, _, err = run("trace", str(tmp_path))
    assert (code, err.count(str(tmp_path))) == (64, 1)
    assert "Is a directory" in err


def test_a_report_folder_that_is_a_file_is_refused_before_any_work(run: Run, tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file")
    code, out, err = run("gate", "--report", str(tmp_path / "report"))
    assert (code, out) == (64, "")
    assert "a part of the path is a file: name a folder" in err
    assert (tmp_path / "report").read_text() == "a file"


def test_an_error_of_its_own_is_unknown_and_its_traceback_is_one_flag_away(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def stumble() -> None:
        raise KeyError("lost")

    monkeypatch.setitem(cli.assay.commands, "stumble", stumble)
    code, _, err = run("stumble")
    assert (code, err) == (2, "assay: an error of its own, nothing was judged: KeyError: 'lost'; --traceback shows where\n")
    code, _, err = run("stumble", "--traceback")
    assert code == 2
    assert "Traceback (most recent call last)" in err


def test_ctrl_c_before_anything_began_is_130(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def wait() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(cli.assay.commands, "wait", wait)
    code, _, err = run("wait")
    assert code == 130
    assert "interrupted by Ctrl-C" in err


def test_a_full_disk_ends_a_valid_gate_as_unknown_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code = cli._finish_gate(valid_outcome(), tmp_path, cli.console_for(False), as_json=False)
    printed = capsys.readouterr()
    assert code == 2
    assert "the disk is full: free some space or name a folder on another disk" in printed.err
    assert "report:" not in printed.out
    assert list(tmp_path.iterdir()) == []


def test_a_replay_that_no_longer_fails_says_so_and_exits_0(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(to_text(replay_of("failing", Failure(VIOLATION, "0x7", WORLD, OPS))))
    code, out, _ = run("replay", str(path))
    assert code == 0
    assert "3 operations on pool 6 × 4, budget 8, depth 0 (assay)" in out
    assert "no longer fails: KV-4 freed once holds in every operation" in out


def test_a_replay_that_hardly_applies_any_more_is_unknown_and_exits_2(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(to_text(replay_of("failing", Failure(VIOLATION, "0x7", WORLD, (OPS[0], *ABORTS)))))
    code, out, _ = run("replay", str(path))
    assert code == 2
    assert out.splitlines()[-1] == "2 of 3 operations no longer apply: this replay proves nothing about the present engine"
    assert "no longer fails" not in out


def test_a_replay_of_which_half_applies_is_judged(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(to_text(replay_of("failing", Failure(VIOLATION, "0x7", WORLD, (*OPS[:2], *ABORTS)))))
    assert run("replay", str(path))[0] == 0


@pytest.mark.parametrize(
    ("ops", "violation", "why"),
    [
        pytest.param((), VIOLATION, "the file holds no operation", id="nothing to replay"),
        pytest.param(OPS, replace(VIOLATION, invariant="TR-1"), "TR-1 is judged over its whole suite", id="judged elsewhere"),
    ],
)
def test_a_replay_shows_nothing_where_there_is(
    run: Run, tmp_path: Path, ops: tuple[Op, ...], violation: Violation, why: str
) -> None:
    path = tmp_path / "replay.json"
    path.write_text(to_text(replay_of("failing", Failure(violation, "0x7", WORLD, ops))))
    code, out, _ = run("replay", str(path))
    assert code == 2
    assert why in out.splitlines()[-1]


def test_a_replay_tells_its_timeline_as_json_too(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(to_text(replay_of("failing", Failure(VIOLATION, "0x7", WORLD, OPS))))
    code, out, err = run("replay", str(path), "--json", "--until", "2")
    data = json.loads(out)
    assert (code, err, data["verdict"]) == (0, "", "valid")
    assert [scene["title"] for scene in data["timeline"]] == ["add a", "step"]


def test_a_world_that_can_not_be_built_is_bad_input(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(to_text(replay_of("failing", Failure(VIOLATION, "0x7", {"target": "nobody"}, OPS))))
    code, _, err = run("replay", str(path))
    assert code == 64
    assert "nobody" in err


def test_a_malformed_trace_line_is_named(run: Run, tmp_path: Path) -> None:
    lines = MOONCAKE_SLICE.read_text().splitlines()[:3]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join([lines[0], lines[1][:-9], lines[2]]) + "\n")
    code, out, err = run("trace", str(path))
    assert (code, out, len(err.splitlines())) == (64, "", 1)
    assert f"{path}, line 2: " in err


def test_a_short_trace_runs_through_engine_and_models(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(MOONCAKE_SLICE.read_text().splitlines()[:3]) + "\n")
    code, out, err = run("trace", str(path), "--json")
    data = json.loads(out)
    assert (code, data["verdict"], data["failures"]) == (0, "valid", [])
    assert "VALID" in err
    assert "mooncake" not in (out + err).lower()
    assert data["figures"][0] == {
        "name": "trace.requests",
        "value": 3.0,
        "unit": "requests",
        "label": "given",
        "note": "trace file trace.jsonl",
    }


def test_a_missing_extra_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.environment.find_spec", lambda _name: None)
    with pytest.raises(
        BadInput, match=r"'chaos', but toxiproxy and docker and psutil is not installed; run pip install .*'assay\[chaos\]'"
    ):
        require_extra("chaos", "the storm")


def valid_outcome() -> Outcome:
    result = CheckResult("a", Verdict.VALID, examples=1, ops=1)
    return Outcome(
        verdict=Verdict.VALID,
        tree=Tree("4f2a91c" + "0" * 33, ""),
        seed=7,
        profile=Profile.QUICK,
        command="assay gate --seed 0x7",
        wall_s=1.0,
        started_at="2026-01-01T00:00:00+00:00",
        checks=(Check("a", "a", Verdict.VALID, 7, result=result),),
        proofs=(Proof("p", 1, 1, "", True),),
    )
