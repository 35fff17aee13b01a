"""`assay chaos --connector`: a line for each storm and each fault, a verdict, a sentence for what can not be."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

import chaos.connector_storm
import ci.connector_storms
from chaos.connector_account import Account, Sight
from chaos.connector_storm import ConnectorRun, ConnectorStorm
from chaos.faults import ConnectionFault
from ci.connector_storms import connection_kinds_of, run_connector_storms
from ci.storm_outcome import StormsOutcome
from engine_under_test.errors import BadInput, RunnerError
from properties.invariants.predicate import violation
from properties.kv_world import HandClock
from properties.verdict import Verdict, Violation

KINDS = (ConnectionFault.LATENCY, ConnectionFault.PROXY_DOWN)


def ran(storm: ConnectorStorm, touched: int = 3, found: Violation | None = None) -> ConnectorRun:
    account = Account(HandClock())
    account.note("fault", Sight.STRUCK, words="the proxy is down")
    run = ConnectorRun(storm, account, "embedded", num_ops=7, violation=found)
    run.strikes[ConnectionFault.PROXY_DOWN] += 1
    run.touched["proxy-down: connections that were refused"] = touched
    return run


def told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, touched: int = 3, found: Violation | None = None
) -> tuple[StormsOutcome, str]:
    monkeypatch.setattr(chaos.connector_storm, "run_connector_storm", lambda storm, _environ: ran(storm, touched, found))
    monkeypatch.setattr(ci.connector_storms, "_FOLDER", tmp_path)
    text = io.StringIO()
    return run_connector_storms(7, KINDS, None, 2, Console(file=text, width=200)), text.getvalue()


def test_storms_are_told_with_what_each_fault_did(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome, text = told(monkeypatch, tmp_path)
    assert outcome.verdict is Verdict.VALID
    assert "proxy-down: connections that were refused: 3" in text
    assert "VALID  2 connector storms, 2 strikes, 14 operations, embedded Toxiproxy, seed 0x7" in text
    data = json.loads(json.dumps(outcome.to_json()))
    assert data["is_repeatable"] is False
    assert data["toxiproxy"] == "embedded"


def test_a_fault_that_touched_nothing_leaves_the_verdict_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome, text = told(monkeypatch, tmp_path, touched=0)
    assert outcome.verdict is Verdict.UNKNOWN
    assert "touched nothing: proxy-down: connections that were refused" in text


def test_what_breaks_leaves_its_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    outcome, text = told(monkeypatch, tmp_path, found=violation("DI-3", "load 3", "2 answers", "1"))
    assert outcome.verdict is Verdict.INVALID
    assert outcome.storms == 1
    assert "load 3: found 2 answers, expected 1" in text
    lines = (tmp_path / "DI-3-connectors-0x7.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["is_repeatable"] is False
    assert json.loads(lines[1])["what"] == "struck"


def test_a_machine_without_a_store_is_said_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> ConnectorRun:
        raise RunnerError("assay kv-store did not come to listen within 30 s: it said nothing")

    monkeypatch.setattr(chaos.connector_storm, "run_connector_storm", refuse)
    with pytest.raises(BadInput, match="no connector storm could be had here: assay kv-store did not come to listen"):
        run_connector_storms(7, KINDS, None, 1, Console(quiet=True))


def test_toxics_are_known_as_toxiproxy_writes_them() -> None:
    assert connection_kinds_of("limit_data, latency", is_asked=False) == (ConnectionFault.LATENCY, ConnectionFault.LIMIT_DATA)
    assert connection_kinds_of(None, is_asked=True) == tuple(ConnectionFault)
    assert connection_kinds_of(None, is_asked=False) == connection_kinds_of("aborts", is_asked=False) == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("latensy", "found 'latensy'; did you mean latency?"),
        ("latency,aborts", "strike real processes and all others simulated ones, found 'aborts'"),
        ("latency,none", "found 'none'"),
        (",", "takes one kind or several, found ','"),
    ],
)
def test_kinds_that_are_none_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(BadInput) as refused:
        connection_kinds_of(text, is_asked=True)
    assert sentence in str(refused.value)
