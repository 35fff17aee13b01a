"""docs/corpus.md says what is so."""

import json
from pathlib import Path

import pytest

from ci.mutants.catalogue import MUTANTS
from ci.mutants.corpus import Bug, document, read_bugs, read_hunted

PAGE = Path(__file__).parents[2] / "docs" / "corpus.md"


def test_the_page_is_the_one_that_the_data_gives() -> None:
    assert PAGE.read_text(encoding="utf-8") == document(read_bugs(), read_hunted())


def test_each_bug_has_mutants_that_exist_or_a_reason() -> None:
    known = {mutant.id for mutant in MUTANTS}
    for bug in read_bugs():
        assert bool(bug.mutants) != bool(bug.not_expressible), bug.id
        assert set(bug.mutants) <= known, bug.id


@pytest.mark.parametrize(
    ("bug", "hunted", "said"),
    [
        (Bug("a", 1, "t", "u", ("m",), ""), {"m": "KV-1"}, "killed: `m` by KV-1"),
        (Bug("a", 1, "t", "u", ("m",), ""), {"m": ""}, "survived: `m` survived"),
        (Bug("a", 1, "t", "u", ("m",), ""), {}, "not hunted yet: `m` not hunted yet"),
        (Bug("a", 1, "t", "u", ("m", "n"), ""), {"m": ""}, "survived: `m` survived; `n` not hunted yet"),
        (Bug("a", 1, "t", "u", ("m", "n"), ""), {"m": "KV-1"}, "killed: `m` by KV-1; `n` not hunted yet"),
        (Bug("a", 1, "t", "u", (), "no tiers"), {}, "not expressible: no tiers"),
    ],
    ids=["a kill", "a survivor", "no hunt", "a survivor beside no hunt", "a kill beside no hunt", "no place for it"],
)
def test_the_fate_is_told(bug: Bug, hunted: dict[str, str], said: str) -> None:
    assert bug.fate(hunted) == said


def test_only_a_hunt_that_came_to_an_end_is_one(tmp_path: Path) -> None:
    fates = {"k": "killed", "s": "survived", "v": "void", "b": "broken", "n": "not run"}
    table = [{"id": name, "verdict": fate, "by": "KV-1" if fate == "killed" else ""} for name, fate in fates.items()]
    (tmp_path / "kills.json").write_text(json.dumps({"mutants": table}))
    assert read_hunted(tmp_path / "kills.json") == {"k": "KV-1", "s": ""}


def test_a_fix_that_goes_too_far_stands_beside_what_it_fixes() -> None:
    known = {mutant.id: mutant for mutant in MUTANTS}
    over = [mutant for mutant in MUTANTS if mutant.over_corrects]
    assert len(over) >= 5
    for mutant in over:
        assert known[mutant.over_corrects].over_corrects == "", mutant.id
    page = document((), {over[0].id: "SC-7", over[1].id: ""}, tuple(over[:3]))
    assert f"| `{over[0].id}` | `{over[0].over_corrects}` | {over[0].note} | killed by SC-7 |" in page
    assert f"| `{over[1].id}` | `{over[1].over_corrects}` | {over[1].note} | survived |" in page
    assert f"| `{over[2].id}` | `{over[2].over_corrects}` | {over[2].note} | not hunted yet |" in page
