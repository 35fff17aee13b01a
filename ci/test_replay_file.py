"""Claims about the replay file: what is written can be read, and everything else is answered by one sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.doubles.failing import OPS, VIOLATION, WORLD
from ci.replay_file import read_replay, replay_of, to_text
from engine_under_test.errors import BadInput
from properties.suite import Failure

REPLAY = replay_of("failing", Failure(VIOLATION, "0x7#1187", WORLD, OPS, ops_found=61))


def test_a_written_file_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(to_text(REPLAY))
    assert read_replay(path) == REPLAY


def test_each_operation_stands_on_a_line_of_its_own() -> None:
    assert sum('{"op": ' in line for line in to_text(REPLAY).splitlines()) == len(OPS)


def changed(**columns: Any) -> str:
    return json.dumps(json.loads(to_text(REPLAY)) | columns)


def without(name: str) -> str:
    data = json.loads(to_text(REPLAY))
    del data[name]
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param(lambda: to_text(REPLAY)[:-40], "the JSON breaks off or goes wrong at line", id="truncated"),
        pytest.param(lambda: "", "the JSON breaks off or goes wrong at line 1", id="empty"),
        pytest.param(lambda: "[1, 2]", "it must hold a JSON object, found list", id="another kind of JSON"),
        pytest.param(lambda: '{"a": 1}', "is not a replay file", id="another kind of file"),
        pytest.param(lambda: changed(schema=2), "is too new: its format is schema 2", id="a newer format"),
        pytest.param(lambda: changed(schema=0), "is too old: its format is schema 0", id="an older format"),
        pytest.param(lambda: changed(engine="9.1.0"), "is too new: engine 9.1.0 wrote it", id="a newer engine"),
        pytest.param(lambda: changed(engine="0.0.3"), "is too old: engine 0.0.3 wrote it", id="an older engine"),
        pytest.param(lambda: changed(engine="yes"), "an engine version reads like 0.1.0", id="no version"),
        pytest.param(lambda: without("ops"), "the field 'ops' is missing", id="no operations"),
        pytest.param(lambda: changed(ops=[{"op": "juggle"}]), "operation 1 is not one", id="an unknown operation"),
        pytest.param(lambda: changed(ops=[{"op": "land", "k": "1"}]), "operation 1 is not one", id="a wrong payload"),
        pytest.param(lambda: changed(world=3), "world must be an object", id="no world"),
    ],
)
def test_a_file_that_is_no_whole_replay_is_answered_by_one_sentence(
    tmp_path: Path, text: Callable[[], str], sentence: str
) -> None:
    path = tmp_path / "replay.json"
    path.write_text(text())
    with pytest.raises(BadInput) as caught:
        read_replay(path)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_says_where_replays_are_found(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no .*; a gate writes them to reports"):
        read_replay(tmp_path / "nowhere.json")
