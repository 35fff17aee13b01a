"""Claims about README.md: whoever follows it line by line meets nothing that it did not name before."""

from __future__ import annotations

import re

from ci.cli import assay
from ci.tree import ROOT

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


def test_it_tells_the_exit_code_of_make_from_that_of_the_command() -> None:
    assert "`make gate` exits 2 whenever the gate is not valid" in TEXT


def test_it_says_how_many_mutants_a_gate_hunts_and_when_there_is_nothing_to_replay() -> None:
    words = " ".join(TEXT.split())
    assert "five of them, drawn by the seed" in words
    assert "A green report has no `replay/`" in words
