"""Claims about the statistics of the real model: cells expect enough, and without the model nothing is claimed."""

from __future__ import annotations

import numpy as np
import pytest

from differential import smollm2_stats
from differential.error_budget import ENTRIES
from differential.smollm2_stats import PROMPTS, cells_of, check_first_positions
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


@pytest.mark.parametrize("num", [2560, 8000, 32_768])
def test_cells_expect_enough(num: int) -> None:
    law = np.random.default_rng(1).dirichlet(np.full(3000, 0.2))
    cell = cells_of(law, num)
    masses = np.bincount(cell, weights=law)
    assert 2 <= len(masses) <= 16
    assert masses.min() * num >= 1000


def test_without_the_model_it_is_unknown_and_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smollm2_stats, "model_folder", lambda _name: None)
    found = check_first_positions(SuiteContext(Profile.PR, 1))
    assert found.verdict is Verdict.UNKNOWN
    assert "assay model fetch" in found.note


def test_every_prompt_has_its_entry_in_the_budget() -> None:
    assert {f"smollm2-first-{number + 1}" for number in range(len(PROMPTS))} <= {entry.id for entry in ENTRIES}
