"""A kill on a broken engine proves nothing, and is not counted."""

from __future__ import annotations

from typing import Any

import pytest

from ci.mutants import baseline
from ci.mutants.baseline import broken_without_mutant, void
from ci.mutants.mutant import Fate, MutantResult
from ci.mutants.stories import Story
from engine_under_test.adapters.ours import AssayTarget
from models.scenarios import DRAIN, STEP, abort, add, spec


def test_kills_become_void_and_other_fates_stay() -> None:
    results = [MutantResult("a", "o", Fate.KILLED, by="KV-1"), MutantResult("b", "o", Fate.SURVIVED, note="n")]
    voided = void(results)
    assert [(each.fate, each.by) for each in voided] == [(Fate.VOID, ""), (Fate.SURVIVED, "")]
    assert "broken without it" in voided[0].note


def test_a_sound_engine_is_told_from_a_broken_one(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story("a short one", spec(8, 2), (add("a", 5, 3), STEP, abort("a"), DRAIN))
    monkeypatch.setattr(baseline, "sequence", lambda _seed: iter([story]))
    assert broken_without_mutant(7) is None

    def deaf(_self: Any, _request_id: str) -> bool:
        return True

    monkeypatch.setattr(AssayTarget, "abort", deaf)
    found = broken_without_mutant(7)
    assert found is not None
    assert "a short one" in found
