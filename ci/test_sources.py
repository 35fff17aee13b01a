"""Claims about named suites: what is not there is refused before anything runs, and no whole gate's report is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from ci import cli
from ci.gate import DEFAULT_SOURCES
from ci.sources import KNOWN, check_sources, folder_of
from engine_under_test.errors import BadInput


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        pytest.param("no.such", "there is none named 'no.such'; the engine's suites are in", id="no package"),
        pytest.param("models.suite", "there is none named 'models.suite'; did you mean models.suites?", id="no module"),
        pytest.param("models.suites.more", "there is none named", id="a module inside a module"),
        pytest.param("models/suites.py", "takes the dotted name of a module", id="a path"),
        pytest.param("", "takes the dotted name of a module", id="nothing"),
        pytest.param(".suites", "takes the dotted name of a module", id="a relative name"),
        pytest.param("models.op", "there is none named", id="another module that is not there"),
        pytest.param("properties.op", "but properties.op has none", id="a module without suites"),
    ],
)
def test_a_source_is_refused(source: str, sentence: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_sources(("ci.doubles.sound", source))
    assert sentence in str(caught.value)


def test_a_module_that_is_there_but_does_not_import_is_left_to_the_gate() -> None:
    check_sources(("ci.doubles.unimportable", *DEFAULT_SOURCES))


def test_the_hint_knows_the_sources_of_a_gate() -> None:
    assert KNOWN == DEFAULT_SOURCES


def test_a_refused_source_leaves_an_earlier_report_as_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "verdict.json").write_text("earlier")
    with pytest.raises(SystemExit) as caught:
        cli.main(["gate", "--suites", "no.such", "--report", str(tmp_path)])
    printed = capsys.readouterr()
    assert (caught.value.code, printed.out, len(printed.err.splitlines())) == (64, "", 1)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"verdict.json": "earlier"}


def test_named_suites_have_a_folder_of_their_own() -> None:
    assert folder_of("4f2a91c", ()) == "4f2a91c"
    assert folder_of("4f2a91c", ("models.suites", "models.suites")) == "4f2a91c-only-models.suites"
    assert len(folder_of("4f2a91c", [f"package.suites{number}" for number in range(99)])) < 200
