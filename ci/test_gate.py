"""Claims about whole gates, run as a person runs them: exit codes, files, self-proof, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import validate
from rich.console import Console

from ci.doubles import sound as sound_doubles
from ci.gate import GateSettings, collect, hash_seeds, merge_all, run_gate
from ci.jobs import find_suite
from ci.last_seen import read_last_seen
from ci.mutants.draw import draw_mutants
from ci.mutants.mutant import Fate, Mutant, MutantResult
from ci.outcome import Check, Proof
from ci.progress import progress_for
from ci.report.verdict_json import schema
from ci.tree import Tree
from engine_under_test.errors import AssayError
from properties.suite import Profile
from properties.verdict import Verdict

_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class Ran:
    """A gate that ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def data(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads((self.folder / "verdict.json").read_text())
        return loaded

    def check(self, name: str) -> dict[str, Any]:
        return next(check for check in self.data["checks"] if check["id"] == name)


def command(folder: Path, *words: str) -> list[str]:
    return [
        sys.executable,
        "-m",
        "ci.cli",
        "gate",
        "--profile",
        "quick",
        "--seed",
        "0x4f2a91c",
        "--report",
        str(folder),
        *words,
    ]


def gate(folder: Path, *suites: str, more: tuple[str, ...] = ()) -> Ran:
    words = [word for suite in suites for word in ("--suites", f"ci.doubles.{suite}")]
    environment = {**os.environ, "GITHUB_STEP_SUMMARY": str(folder / "steps.md")}
    done = subprocess.run(
        command(folder, *words, *more), capture_output=True, text=True, timeout=_LIMIT_S, env=environment, check=False
    )
    return Ran(done.returncode, done.stdout, done.stderr, folder)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return gate(tmp_path_factory.mktemp("sound"), "sound", more=("--workers", "2"))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("broken")
    return gate(folder, "failing", "crashing", "unrepeatable", "unimportable", more=("--json", "--workers", "2"))


def test_a_sound_gate_is_valid_and_proves_itself(sound: Ran) -> None:
    assert (sound.code, sound.data["verdict"], sound.err) == (0, "valid", "")
    assert "self-proof 3 of 3" in sound.out
    assert [(proof["id"], proof["found_exit"]) for proof in sound.data["self_proof"]] == [
        ("injected-violation", 1),
        ("crashing-checker", 2),
        ("empty-suite", 2),
    ]


def test_piped_progress_is_plain_lines(sound: Ran) -> None:
    assert "\x1b" not in sound.out
    assert "sound walk" in sound.out
    assert "2 of 2 reached" in sound.out


def test_a_suite_of_another_profile_is_shown_as_not_run(sound: Ran) -> None:
    seen_elsewhere = [entry.suite for entry in read_last_seen()]
    assert [entry["suite"] for entry in sound.data["not_run"]] == ["night-only", *seen_elsewhere]
    assert "not run: night-only (not in profile quick; runs in nightly; never recorded)" in sound.out


def test_the_command_to_repeat_names_the_seed(sound: Ran) -> None:
    assert sound.data["command"].startswith("assay gate --profile quick --seed 0x4f2a91c")


def test_both_verdict_files_follow_the_schema(sound: Ran, broken: Ran) -> None:
    validate(sound.data, schema())
    validate(broken.data, schema())


def test_json_goes_to_standard_output_and_words_to_standard_error(broken: Ran) -> None:
    assert json.loads(broken.out) == broken.data
    assert "INVALID   KV-4 freed once" in broken.err


def test_a_failing_gate_exits_1_and_names_both_sides_and_the_line_to_replay(broken: Ran) -> None:
    assert broken.code == 1
    failure = broken.data["failures"][0]
    assert (failure["invariant"], failure["found"], failure["expected"]) == ("KV-4", "2 entries in the free queue", "1")
    assert failure["replay"] == "replay/KV-4-1187.json"
    assert f"assay replay {broken.folder}/replay/KV-4-1187.json" in broken.err
    assert (broken.folder / failure["replay"]).is_file()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("raising", "crashed: RuntimeError: this suite crashes", id="a suite that raises"),
        pytest.param("dying", "its worker process died without a report", id="a worker that dies"),
        pytest.param("ci.doubles.unimportable", "could not be imported: ImportError", id="a module that does not import"),
    ],
)
def test_unknown_is_what_comes_of(broken: Ran, name: str, reason: str) -> None:
    check = broken.check(name)
    assert check["verdict"] == "unknown"
    assert reason in check["reasons"][0]


def test_a_walk_that_depends_on_the_hash_seed_fails_on_its_own(broken: Ran) -> None:
    failure = next(failure for failure in broken.data["failures"] if failure["check"] == "unrepeatable")
    assert (failure["invariant"], failure["subject"]) == ("DET", "second")


def test_junit_counts_failures_and_errors_apart(broken: Ran) -> None:
    suite = ElementTree.parse(broken.folder / "junit.xml").getroot()[0]
    assert (suite.get("failures"), suite.get("errors")) == ("3", "3")


def test_the_page_needs_no_network_and_tells_the_story_as_a_picture(broken: Ran) -> None:
    page = (broken.folder / "index.html").read_text()
    assert '<svg class="timeline"' in page
    assert "prefers-color-scheme: dark" in page
    assert not any(word in page for word in ("http://", "https://", "<script", "<link", "@import"))


def test_the_step_summary_is_the_markdown_summary(broken: Ran) -> None:
    assert (broken.folder / "steps.md").read_text() == (broken.folder / "summary.md").read_text()
    assert (broken.folder / "summary.md").read_text().startswith("# INVALID")


def _heed_interrupts() -> None:
    """A test run in the background of a shell inherits that Ctrl-C is ignored; a person's gate does not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.mark.parametrize(
    ("sign", "words"),
    [
        pytest.param(signal.SIGINT, "interrupted by Ctrl-C", id="Ctrl-C"),
        pytest.param(signal.SIGTERM, "terminated by SIGTERM", id="SIGTERM"),
    ],
)
def test_an_end_from_outside_is_named_once_and_leaves_a_report_and_no_process(
    tmp_path: Path, sign: signal.Signals, words: str
) -> None:
    arguments = command(tmp_path, "--suites", "ci.doubles.slow", "--workers", "2")
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,  # noqa: PLW1509  # no thread of this process holds a lock here
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("fast suite"):
            break
    time.sleep(0.3)
    process.send_signal(sign)
    rest, errors = process.communicate(timeout=_LIMIT_S)
    ran = Ran(process.returncode, rest, errors, tmp_path)
    assert (ran.code, ran.data["verdict"], ran.data["interrupted"], ran.err) == (130, "unknown", True, "")
    assert (ran.check("fast")["verdict"], ran.check("slow")["verdict"]) == ("valid", "unknown")
    assert ran.check("slow")["reasons"][0].startswith("ended early, at ")
    assert ran.data["reasons"] == [words]
    assert ran.out.count(words) == (tmp_path / "summary.md").read_text().count(words) == 1
    assert children_of(str(tmp_path)) == []
    validate(ran.data, schema())


def test_a_cap_that_is_hit_before_the_work_is_done_is_unknown(tmp_path: Path) -> None:
    ran = gate(tmp_path, "slow", more=("--budget", "1s", "--workers", "2"))
    assert (ran.code, ran.data["verdict"]) == (2, "unknown")
    assert ran.data["reasons"] == ["the cap of 1 s was hit before the work was done; raise --budget"]
    assert ran.out.count("the cap of 1 s") == 1


def test_mutants_that_did_not_run_did_not_survive(tmp_path: Path) -> None:
    ran = gate(tmp_path, more=("--budget", "0.2s", "--workers", "2"))
    assert (ran.code, ran.data["verdict"]) == (2, "unknown")
    assert [mutant["verdict"] for mutant in ran.data["mutants"]] == ["not run"] * 5
    assert "survived" not in ran.out + (tmp_path / "summary.md").read_text()
    assert [line.split()[0] for line in ran.out.splitlines() if "did not begin" in line].count("mutants") == 1
    validate(ran.data, schema())


def test_no_suite_at_all_is_unknown() -> None:
    assert merge_all((), (PROVEN,), (), ()) is Verdict.UNKNOWN


def test_a_living_mutant_or_a_failed_proof_makes_a_valid_run_unknown() -> None:
    fine = (Check("a", "a", Verdict.VALID, 1),)
    killed, alive = (MutantResult("m", "o", fate) for fate in (Fate.KILLED, Fate.SURVIVED))
    assert merge_all(fine, (PROVEN,), (killed,), ()) is Verdict.VALID
    assert merge_all(fine, (PROVEN,), (killed, alive), ()) is Verdict.UNKNOWN
    assert merge_all(fine, (Proof("p", 1, 0, "", False),), (), ()) is Verdict.UNKNOWN
    assert merge_all(fine, (), (), ()) is Verdict.UNKNOWN


PROVEN = Proof("p", 1, 1, "", True)


def test_five_mutants_are_drawn_by_the_seed_and_all_at_night() -> None:
    mutants = tuple(Mutant(f"m{number}", "", "", "f.py", "a", "b", "") for number in range(20))
    drawn = draw_mutants(mutants, 7, Profile.PR)
    assert len(set(drawn)) == 5
    assert drawn == draw_mutants(mutants, 7, Profile.PR)
    assert drawn != draw_mutants(mutants, 8, Profile.PR)
    assert draw_mutants(mutants, 7, Profile.NIGHTLY) == mutants


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 2, 2**32 - 1, 2**64 - 1])
def test_the_two_hash_seeds_of_a_walk_differ_and_are_allowed(seed: int) -> None:
    first, second = hash_seeds(seed)
    assert first != second
    assert all(0 <= value < 2**32 for value in (first, second))


def test_a_suite_outside_the_profile_is_left_out_by_name() -> None:
    collection = collect(("ci.doubles.sound",), Profile.PR)
    assert [suite.id for _source, suite in collection.suites] == ["sound-walk", "sound-statistics"]
    assert list(collection.left_out) == ["night-only"]


def children_of(mark: str) -> list[str]:
    """Command lines of processes that still work for the gate with this mark in its line."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if mark in words:
            lines.append(words)
    return lines


def test_suites_that_share_an_identifier_are_refused_and_named(tmp_path: Path) -> None:
    ran = gate(tmp_path, "twice", "sound", more=("--workers", "2"))
    assert (ran.code, ran.data["verdict"]) == (2, "unknown")
    assert [check["id"] for check in ran.data["checks"]] == ["sound-walk", "sound-statistics", "twice"]
    assert "2 suites bear this identifier (in ci.doubles.twice): none of them was run" in ran.check("twice")["reasons"][0]


def test_an_identifier_that_two_sources_share_is_refused_but_a_source_named_twice_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = collect(("ci.doubles.sound", "ci.doubles.sound", "ci.doubles.hollow"), Profile.PR)
    assert [suite.id for _source, suite in both.suites] == ["sound-walk", "sound-statistics"]
    assert list(both.broken) == ["ci.doubles.hollow"]
    copied = ModuleType("copied_sound")
    copied.SUITES = sound_doubles.SUITES[:1]  # type: ignore[attr-defined]  # a module has what is put into it
    monkeypatch.setitem(sys.modules, "copied_sound", copied)
    shared = collect(("ci.doubles.sound", "copied_sound"), Profile.PR)
    assert [suite.id for _source, suite in shared.suites] == ["sound-statistics"]
    assert "(in ci.doubles.sound, copied_sound)" in shared.broken["sound-walk"]


def test_a_source_without_a_suite_is_a_broken_check_of_its_name() -> None:
    assert "its SUITES is empty" in collect(("ci.doubles.hollow",), Profile.PR).broken["ci.doubles.hollow"]


def test_no_job_takes_the_first_of_two_suites_with_its_identifier() -> None:
    with pytest.raises(AssayError, match=r"one suite of ci\.doubles\.twice must bear the identifier 'twice', found 2"):
        find_suite("ci.doubles.twice", "twice")


def test_only_a_gate_over_all_suites_must_have_asked_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ci.gate.DEFAULT_SOURCES", ("ci.doubles.sound",))
    settings = GateSettings(Profile.QUICK, Tree("4f2a91c", ""), 7, 30.0, "", ("ci.doubles.sound",), 2, ())
    outcome = run_gate(settings, lambda: progress_for(Console(quiet=True)))
    assert outcome.verdict is Verdict.UNKNOWN
    assert outcome.reasons[0].startswith("never evaluated in any suite: ")
    assert {check.verdict for check in outcome.checks} == {Verdict.VALID}
