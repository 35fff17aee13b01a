"""Claims about mutants: applied in memory only, killed by predicates only, and loud when they no longer apply."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from dataclasses import asdict, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ci import worker
from ci.doubles import counted as counted_suites
from ci.jobs import read_report, save_jobs
from ci.mutants import runner
from ci.mutants.catalogue import MUTANTS
from ci.mutants.draw import draw_mutants
from ci.mutants.hunt import hunt, is_of_the_catalogue, kill_in
from ci.mutants.loader import StaleMutant, mutated_source
from ci.mutants.mutant import Fate, Mutant, MutantResult
from ci.mutants.runner import fate_of, hunt_all, missing_extras, mutant_job, select
from ci.mutants.stories import sequence
from ci.mutants.table import closing_line, table_lines, write_kills
from ci.tree import ROOT
from engine_under_test.errors import BadInput
from models.build import world_from
from properties.suite import CheckResult, Failure, Profile, Statistic
from properties.verdict import Verdict, Violation

OFF_BY_ONE = Mutant(
    "off-by-one",
    "nobody 1",
    "",
    "ci/doubles/counting.py",
    "found += number",
    "found += number + 1",
    "each number counts one more",
)


def hunted(mutant: Mutant, folder: Path) -> MutantResult:
    """The mutant's fate, found in a process of its own as in a gate."""
    job = mutant_job(mutant, 0, 7, stories="", sources=("ci.doubles.counted",))
    path = save_jobs(folder, (job,))
    subprocess.run([sys.executable, "-m", "ci.mutants.child", str(path), "0"], cwd=ROOT, check=True, timeout=30)
    return fate_of(mutant.id, mutant.origin, read_report(job, folder), "no report")


def test_a_wrong_sum_is_killed_by_the_predicate_that_counts_again(tmp_path: Path) -> None:
    before = (ROOT / OFF_BY_ONE.file).read_bytes()
    result = hunted(OFF_BY_ONE, tmp_path)
    assert (result.fate, result.by, result.where, result.ops, result.shrunk) == (Fate.KILLED, "SC-14", "counted", 5, 1)
    assert (ROOT / OFF_BY_ONE.file).read_bytes() == before


@pytest.mark.parametrize(
    ("change", "fate", "note"),
    [
        pytest.param(
            {"replacement": "found += 1 * number"}, Fate.SURVIVED, "every suite of the hunt was valid", id="an equal sum"
        ),
        pytest.param({"snippet": "found -= number"}, Fate.STALE, "exactly once in ci/doubles/counting.py, found 0", id="gone"),
        pytest.param({"snippet": "number"}, Fate.STALE, "found 5 times", id="not unique"),
        pytest.param({"file": "ci/doubles/nothing.py"}, Fate.STALE, "there is no ci/doubles/nothing.py", id="no file"),
        pytest.param({"replacement": "found +="}, Fate.BROKEN, "nothing ran: SyntaxError", id="no Python"),
        pytest.param({"replacement": "raise KeyError(number)"}, Fate.SURVIVED, "a crash, which proves nothing", id="a crash"),
        pytest.param({"hunts": ("uncounted",)}, Fate.BROKEN, "nothing ran: KeyError: 'uncounted'", id="no such suite"),
    ],
)
def test_no_kill_is_what_comes_of(tmp_path: Path, change: dict[str, Any], fate: Fate, note: str) -> None:
    result = hunted(Mutant(**{**asdict(OFF_BY_ONE), **change}), tmp_path)
    assert result.fate is fate
    assert note in result.note


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_each_mutant_still_applies_and_compiles(mutant: Mutant) -> None:
    compile(mutated_source(mutant, ROOT), mutant.file, "exec")
    assert mutant.origin
    assert mutant.note


def test_identifiers_of_mutants_are_unique() -> None:
    assert len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)


def test_whoever_asks_for_the_source_of_a_function_gets_the_mutated_one() -> None:
    code = (
        "import inspect; from pathlib import Path;"
        "from ci.mutants.catalogue import MUTANTS; from ci.mutants.loader import install;"
        "mutant = next(one for one in MUTANTS if one.id == 'seed-zero-ignored');"
        "module = install(mutant, Path.cwd()); print(mutant.replacement in inspect.getsource(module.sample))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["True"]


def test_a_mutant_names_the_suites_that_look_for_it(tmp_path: Path) -> None:
    result = hunted(replace(OFF_BY_ONE, hunts=("counted",)), tmp_path)
    assert (result.fate, result.where) == (Fate.KILLED, "counted")


def test_every_suite_that_a_mutant_names_is_offered_in_profile_pr() -> None:
    suites = chain.from_iterable(importlib.import_module(source).SUITES for source in runner.SUITES)
    offered = {suite.id for suite in suites if Profile.PR in suite.profiles}
    named = {name for mutant in MUTANTS for name in mutant.hunts}
    assert named <= offered
    assert len([mutant for mutant in MUTANTS if mutant.hunts]) >= 8


def test_a_hunt_without_names_leaves_out_what_needs_an_optional_part(monkeypatch: pytest.MonkeyPatch) -> None:
    (counted,) = counted_suites.SUITES
    monkeypatch.setattr(counted_suites, "SUITES", (replace(counted, extras=("model",)),))
    result = hunt("", ("ci.doubles.counted",), 7)
    assert result["note"] == "every suite of the hunt was valid"


@pytest.mark.parametrize("missing", [(), ("model",), ("model", "reference")])
def test_what_can_not_be_hunted_here_is_told_and_not_drawn(monkeypatch: pytest.MonkeyPatch, missing: tuple[str, ...]) -> None:
    monkeypatch.setattr(runner, "is_installed", lambda extra: extra not in missing)
    mutant = replace(OFF_BY_ONE, hunts=("float-settings",))
    assert missing_extras(mutant) == missing
    assert missing_extras(OFF_BY_ONE) == ()
    drawn = draw_mutants((mutant, OFF_BY_ONE), 7, Profile.QUICK)
    assert drawn == ((OFF_BY_ONE,) if missing else (mutant, OFF_BY_ONE))
    if missing:
        (result,) = hunt_all((mutant,), 7, 1, Console(quiet=True))
        assert (result.fate, "pip install" in result.note) == (Fate.NOT_RUN, True)


@pytest.mark.parametrize(("profile", "most"), [(Profile.QUICK, 1), (Profile.PR, 3)])
def test_a_gate_draws_few_of_those_that_load_a_model(profile: Profile, most: int) -> None:
    drawn = [draw_mutants(MUTANTS, seed, profile) for seed in range(60)]
    assert {len(mutants) for mutants in drawn} == {5}
    named = [sum(bool(mutant.hunts) for mutant in mutants) for mutants in drawn]
    assert max(named) == most
    of_kernels = [mutant for mutants in drawn for mutant in mutants if "float-kernels" in mutant.hunts]
    assert bool(of_kernels) == (profile is Profile.PR)
    assert set(draw_mutants(MUTANTS, 7, Profile.NIGHTLY)) == set(MUTANTS)


def test_a_snippet_that_no_longer_matches_is_loud() -> None:
    with pytest.raises(StaleMutant, match="its snippet must occur exactly once"):
        mutated_source(replace(OFF_BY_ONE, snippet="nothing like it"), ROOT)


@pytest.mark.parametrize("name", ["CRASH", "DET", "", "KV-", "kv-4", "KV4"])
def test_what_is_not_of_the_catalogue_kills_nothing(name: str) -> None:
    failure = Failure(Violation(name, "", "", "", ""), "7")
    assert not is_of_the_catalogue(name)
    assert kill_in(CheckResult("a", Verdict.INVALID, ops=1, failures=(failure,))) is None


def test_a_statistical_test_over_a_run_kills_too() -> None:
    statistic = Statistic("law", "the law holds", "chi-square", 10, 1e-8, 0.1, 0.9, 1e-30, Verdict.INVALID)
    kill = kill_in(CheckResult("a", Verdict.INVALID, statistics=(statistic,)))
    assert kill is not None
    assert kill["by"] == "law"


def test_nothing_is_begun_after_thirty_seconds() -> None:
    clock = iter([0.0, 31.0])
    result = hunt("", ("ci.doubles.counted",), 7, now=lambda: next(clock))
    assert (result["fate"], result["note"]) == (Fate.SURVIVED, "not killed within 30 s of processor time")


def test_the_stories_of_the_hunt_can_be_told_and_break_nothing_on_the_engine_as_it_is() -> None:
    for story in islice(sequence(3), 12):
        world = world_from(story.spec)
        world.run(story.ops[:60])
        assert world.violation is None, story.name


def test_an_unknown_name_is_answered_by_the_closest() -> None:
    with pytest.raises(BadInput, match="the nearest of 1 are: off-by-one"):
        select(("off-by-on",), (OFF_BY_ONE,))


def test_the_table_says_who_killed_and_after_how_many_operations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = (
        MutantResult("free-early", "vllm 1", Fate.KILLED, "KV-10", "lifetime", "walk", 214, 5),
        MutantResult("alive", "vllm 2", Fate.SURVIVED, note="not killed within 30 s"),
    )
    lines = list(table_lines(results))
    assert lines[1].split() == ["free-early", "vllm", "1", "KV-10", "lifetime", "214", "ops", "5", "ops"]
    assert lines[2].split() == ["alive", "vllm", "2", "SURVIVED"]
    assert lines[3] == "alive: not killed within 30 s"
    assert closing_line(results, floor=2) == "1 of 2 killed · floor 2"
    monkeypatch.setattr("ci.mutants.table.PATH", tmp_path / "kills.json")
    write_kills(results)
    assert [entry["id"] for entry in json.loads((tmp_path / "kills.json").read_text())["mutants"]] == ["alive", "free-early"]
    write_kills((MutantResult("alive", "vllm 2", Fate.KILLED, "SC-1"),), known={"alive", "free-early"})
    table = json.loads((tmp_path / "kills.json").read_text())["mutants"]
    assert [(entry["id"], entry["by"]) for entry in table] == [("alive", "SC-1"), ("free-early", "KV-10")]
    write_kills((MutantResult("alive", "vllm 2", Fate.KILLED, "SC-1"),), known={"alive"})
    assert len(json.loads((tmp_path / "kills.json").read_text())["mutants"]) == 1


def test_the_table_says_what_a_shrunk_workload_still_holds() -> None:
    result = MutantResult("late", "vllm 3", Fate.KILLED, "SE-3", "logits", "floats", 8, 1, note="1 request, 3 tokens")
    assert list(table_lines([result]))[1].endswith("8 ops  1 ops (1 request, 3 tokens)")


def test_a_hunt_without_an_end_is_a_survivor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    endless = replace(OFF_BY_ONE, replacement="while True:\n            pass")
    job = mutant_job(endless, 0, 7, "", ("ci.doubles.counted",))
    save_jobs(tmp_path, (job,))
    monkeypatch.setattr(worker, "HUNT_LIMIT_S", 1.0)
    began = time.monotonic()
    worker._run_in_child(job, tmp_path)
    report = read_report(job, tmp_path)
    assert report is not None
    assert report.mutant is not None
    assert (report.mutant["verdict"], report.mutant["note"]) == (
        "survived",
        "its hunt did not end within 1 s of processor time",
    )
    assert time.monotonic() - began < 10
