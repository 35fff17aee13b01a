"""Drafts drawn from a law are judged row by row: valid on the engine; a history that misses the drafts in front, the noise of
another row, and drafts left out for what they are, are each found."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile
from typing import Any

import numpy as np
import pytest

from differential.drawn_drafts import check_drawn_drafts
from differential.drawn_law import first_of
from engine_under_test.drafting import Drafted, Drafting
from engine_under_test.execution import transformer
from engine_under_test.sampling.processed import RowState
from engine_under_test.sampling.verification import Rows, rows_of
from engine_under_test.seams import Grammars
from engine_under_test.types import History
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict


def _check() -> CheckResult:
    return check_drawn_drafts(SuiteContext(Profile.QUICK, 7))


def test_the_engine_is_valid_and_nearly_all_is_decided() -> None:
    result = _check()
    assert (result.verdict, result.missed, result.failures) == (Verdict.VALID, (), ())
    assert result.ops > 500
    assert set(result.invariants) == {"ST-1", "ST-3", "SE-3"}


def test_a_history_without_the_last_token_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(params: Any, history: History) -> RowState:
        return RowState(params, History(history.prompt, history.output[:-1]))

    monkeypatch.setattr(transformer, "RowState", late)
    assert _found(_check()) == "ST-1"


def test_the_seed_of_another_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_the_first(*asked: Any) -> Rows:
        rows = rows_of(*asked)
        return replace(rows, seeds=np.full_like(rows.seeds, rows.seeds[0]))

    monkeypatch.setattr(transformer, "rows_of", of_the_first)
    assert _found(_check()) == "ST-1"


def test_drawn_drafts_left_out_for_what_they_are_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Drafting.ask

    def without_high_ones(self: Drafting, book: Drafted, grammars: Grammars | None = None) -> None:
        ask(self, book, grammars)
        for seq in book.running:
            seq.drafts = tuple(takewhile(lambda token: token < 50, seq.drafts))

    monkeypatch.setattr(Drafting, "ask", without_high_ones)
    assert _found(_check()) == "ST-1"


def test_a_draw_that_rounding_decides_is_left_out() -> None:
    weights, numbers = np.array([0.5, 0.5, 0.0]), np.array([0.9, 0.9, 0.99])
    assert first_of(weights, numbers) is None
    assert first_of(weights, np.array([0.8, 0.9, 0.99])) == 1


def _found(result: CheckResult) -> str:
    assert result.verdict is Verdict.INVALID
    return result.failures[0].violation.invariant
