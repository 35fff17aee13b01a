"""docs/invariants.md says what the predicates say, and stays so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine_under_test.errors import BadInput
from properties.document import PAGE, evaluated_in, main, page, read_evaluated, read_kills, record
from properties.invariants import ALL, CATALOGUE


def test_the_committed_page_is_up_to_date() -> None:
    committed = PAGE.read_text(encoding="utf-8")
    assert committed == page(read_evaluated(), read_kills()), "run: python -m properties.document > docs/invariants.md"


def test_every_identifier_and_every_predicate_stands_on_the_page() -> None:
    text = page({}, {})
    assert [entry.identifier for entry in CATALOGUE.values() if f"### {entry.identifier} {entry.name}" not in text] == []
    assert [predicate.sentence for predicate in ALL if f"| {predicate.sentence} |" not in text] == []


def test_observability_is_what_the_predicate_answers() -> None:
    text = page({}, {})
    assert "| reference counts are true | every moment | counts references by table and shows ref_counts |" in text
    assert "| freed blocks are behind their fence | every moment | has fences |" in text


def test_suites_and_kills_are_named_with_their_identifier(tmp_path: Path) -> None:
    verdict = {"checks": [{"id": "walk", "invariants": {"KV-10": 3, "KV-2": 1, "SC-8": 0}}, {"id": "idle", "invariants": {}}]}
    assert evaluated_in(verdict) == {"walk": ["KV-2", "KV-10"]}
    (tmp_path / "verdict.json").write_text(json.dumps(verdict))
    record(tmp_path / "verdict.json", tmp_path / "evaluated.json")
    kills = {"schema": 1, "mutants": [{"id": "m1", "verdict": "killed", "by": "KV-2"}, {"id": "m2", "verdict": "survived"}]}
    (tmp_path / "kills.json").write_text(json.dumps(kills))
    text = page(read_evaluated(tmp_path / "evaluated.json"), read_kills(tmp_path / "kills.json"))
    section = text.split("### KV-2 ")[1].split("###")[0]
    assert "Suites: walk. Kills: m1." in section


def test_a_predicate_that_killed_nothing_is_listed_as_unproven() -> None:
    unproven = page({}, {"KV-2": ["m1"]}).split("## Unproven")[1].split("##")[0]
    assert "KV-1 conservation" in unproven
    assert "**KV-4** freed once" in unproven
    assert "KV-2" not in unproven
    assert "not hunted yet" in unproven  # which may still prove them


def test_without_a_kill_table_everything_is_unproven() -> None:
    assert "every predicate is unproven" in page({}, {})


@pytest.mark.parametrize(
    "arguments",
    [["--what"], ["--record"], ["--record", "/nowhere/verdict.json"]],
    ids=["an unknown flag", "a missing path", "a missing file"],
)
def test_bad_arguments_get_one_sentence(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 64
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1


def test_a_file_that_is_no_verdict_leaves_the_record_alone(tmp_path: Path) -> None:
    broken, to = tmp_path / "verdict.json", tmp_path / "evaluated.json"
    broken.write_text('{"checks": [1]}')
    with pytest.raises(BadInput, match=r"is not the verdict\.json of a gate"):
        record(broken, to)
    assert not to.exists()
