"""Claims about README.md: whoever follows it line by line meets nothing that it did not name before."""

from __future__ import annotations

import re

from ci.cli import assay
from ci.tree import ROOT
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.types import GrammarKind, GrammarSpec

TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    assay ([\w-]+)", TEXT, re.MULTILINE)


def test_it_says_where_the_command_lies_before_the_first_line_that_uses_it() -> None:
    first = re.search(r"^    assay ", TEXT, re.MULTILINE)
    assert first is not None
    assert TEXT.index(".venv/bin/assay") < first.start()


def test_each_command_that_it_shows_exists_and_each_that_exists_is_shown() -> None:
    assert set(COMMANDS) <= set(assay.commands)
    assert {name for name in assay.commands if f"assay {name}" not in TEXT} == set()


def test_it_names_the_variables_that_pass_options_on() -> None:
    for name in re.findall(r"^(\w+_ARGS) ", MAKEFILE, re.MULTILINE):
        assert f'{name}="' in TEXT


def test_it_links_every_page() -> None:
    for path in (ROOT / "docs").rglob("*.md"):
        assert f"]({path.relative_to(ROOT)})" in TEXT, path


def test_the_schema_that_it_shows_can_be_compiled() -> None:
    source = TEXT[TEXT.index('    {"type": "object"') :].split("\n\n")[0]
    grammars = CompiledGrammars([bytes([byte]) for byte in range(256)])
    assert grammars.why_not(GrammarSpec(GrammarKind.JSON_SCHEMA, (source,))) is None
    grammars.close()


def test_it_tells_the_exit_code_of_make_from_that_of_the_command() -> None:
    assert "`make gate` exits 2 whenever the gate is not valid" in TEXT


def test_it_says_how_many_mutants_a_gate_hunts_and_when_there_is_nothing_to_replay() -> None:
    words = " ".join(TEXT.split())
    assert "five of them, drawn by the seed" in words
    assert "A green report has no `replay/`" in words
