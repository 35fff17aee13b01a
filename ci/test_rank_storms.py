"""`assay chaos --ranks`: a line for each storm, a verdict, a sentence for what can not be."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import ci.rank_storms
from chaos.rank_kills import RankRun, RankStorm, draw_rank_storm
from chaos.rank_strikes import Blow
from ci.rank_storms import run_rank_storms
from engine_under_test.distributed.rank_supervisor import Policy
from engine_under_test.errors import BadInput
from properties.history import History, read
from properties.invariants.predicate import violation
from properties.verdict import Verdict


def console() -> tuple[Console, io.StringIO]:
    text = io.StringIO()
    return Console(file=text, width=200), text


def test_storms_on_ranks_are_told_and_counted() -> None:
    out, text = console()
    outcome = run_rank_storms(0x5, 2, False, None, 1, out)
    assert outcome.verdict is Verdict.VALID
    assert outcome.counts["losses"] == 1
    assert "kill inside a collective" in text.getvalue()
    assert json.loads(json.dumps(outcome.to_json()))["is_repeatable"] is False


def test_what_breaks_leaves_its_history(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = violation("DI-2", "request a", "no end", "an end")
    run = RankRun(RankStorm(7, 2, Policy.END, ()), History({"storm": "x"}), violation=found)
    monkeypatch.setattr(ci.rank_storms, "run_rank_storm", lambda *_: run)
    monkeypatch.setattr(ci.rank_storms, "_FOLDER", tmp_path)
    out, text = console()
    outcome = run_rank_storms(7, 2, False, None, 5, out)
    assert outcome.verdict is Verdict.INVALID
    assert outcome.storms == 1
    assert read(tmp_path / "DI-2-ranks-0x7.jsonl").meta == {"storm": "x"}
    assert "request a: found no end, expected an end" in text.getvalue()


def test_without_time_nothing_is_known() -> None:
    assert run_rank_storms(7, 2, False, 0.0, None, console()[0]).verdict is Verdict.UNKNOWN


def test_three_ranks_are_refused() -> None:
    with pytest.raises(BadInput, match="--ranks takes 1, 2, 4, found 3"):
        run_rank_storms(7, 3, False, None, 1, console()[0])


def test_one_rank_is_never_parted_from_others() -> None:
    drawn = [draw_rank_storm(seed, 1) for seed in range(200)]
    assert Blow.PART not in {strike.blow for storm in drawn for strike in storm.strikes}
    assert Blow.PART in {strike.blow for seed in range(200) for strike in draw_rank_storm(seed, 2).strikes}
