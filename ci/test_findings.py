"""Every finding that is written down is a replay file that names its engine, runs, and still says what it said."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from ci.replay import replay
from ci.replay_file import read_replay
from ci.tree import ROOT
from models.others import FAMILIES

_FINDINGS = sorted((ROOT / "docs" / "findings").glob("*.json"))


def test_there_are_findings() -> None:
    assert _FINDINGS


@pytest.mark.parametrize("path", _FINDINGS, ids=lambda path: path.stem)
def test_a_finding_names_its_engine_and_still_fails_there(path: Path) -> None:
    file = read_replay(path)
    engine = str(file.world["target"])
    assert engine in FAMILIES
    assert path.name in (ROOT / "docs" / "findings" / "README.md").read_text(encoding="utf-8")
    if importlib.util.find_spec(engine) is None:
        pytest.skip("the engine is not installed")
    replayed = replay(file)
    assert engine in replayed.header
    if f"{engine}-{importlib.metadata.version(engine)}-" in path.name:
        assert replayed.violation is not None
        assert replayed.violation.invariant == file.violation.invariant
