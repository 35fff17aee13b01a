"""Claims about a bug that is put back into a whole gate: every process has it, this one does not, and no such gate is valid."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from ci.gate import _of_planted
from ci.mutants.loader import StaleMutant
from ci.mutants.mutant import Mutant
from ci.mutants.planted import planted
from ci.mutants.runner import select_one
from ci.sources import folder_of
from ci.tree import ROOT
from engine_under_test.errors import BadInput

BUG = Mutant(
    "another-total", "us 1", "https://example.org", "differential/error_budget.py", "TOTAL_ALPHA = 1e-6  #",
    "TOTAL_ALPHA = 2e-6  #", "The budget is twice as large.",
)  # fmt: skip
_ASK = "import subprocess, sys; print(subprocess.run([sys.executable, '-c', {!r}], capture_output=True, text=True).stdout)"
_TOTAL = "from differential.error_budget import TOTAL_ALPHA; print(TOTAL_ALPHA)"


def asked() -> str:
    """What a process's own child says of the total."""
    command = [sys.executable, "-c", _ASK.format(_TOTAL)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def test_processes_and_their_children_have_the_bug_and_then_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with planted(BUG, ROOT):
        assert asked() == "2e-06"
    assert asked() == "1e-06"
    assert os.environ["PYTHONPATH"] == str(ROOT)


def test_nothing_is_changed_without_a_bug() -> None:
    before = dict(os.environ)
    with planted(None, ROOT):
        assert dict(os.environ) == before
    assert _of_planted(None) == ""


def test_a_gate_with_a_bug_says_so_and_has_a_folder_of_its_own() -> None:
    assert "the bug another-total was put back (us 1: The budget is twice as large), so nothing is said" in _of_planted(BUG)
    assert folder_of("4f2a91c", (), "another-total") == "4f2a91c-with-another-total"
    assert folder_of("4f2a91c", ("models.suites",), "b") == "4f2a91c-with-b-only-models.suites"


def test_a_bug_that_does_not_fit_the_source_is_refused() -> None:
    stale = Mutant(BUG.id, BUG.origin, BUG.url, BUG.file, "nothing like it", "", BUG.note)
    with pytest.raises(StaleMutant, match="found 0 times"), planted(stale, ROOT):
        pass
    with pytest.raises(BadInput, match="the nearest of"):
        select_one("shared-draft-noise")
    assert select_one("shared-draft-recover-noise").origin == "vllm 54282"
