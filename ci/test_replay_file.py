"""Claims about the replay file: what is written can be read, and everything else is answered by one sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ci.doubles.failing import OPS, VIOLATION, WORLD
from ci.replay_file import read_replay, replay_of, to_text
from engine_under_test.config import EngineConfig, Order
from engine_under_test.errors import BadInput
from engine_under_test.types import Adapter
from models.build import config_from, config_to
from models.trace.tally import IDENTIFIER as TRACE_BOUND
from properties.invariants.catalogue import CATALOGUE
from properties.suite import Failure

REPLAY = replay_of("failing", Failure(VIOLATION, "0x7#1187", WORLD, OPS, ops_found=61))


def test_a_written_file_reads_back_the_same(tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    path.write_text(to_text(REPLAY))
    assert read_replay(path) == REPLAY


def test_every_identifier_that_a_world_may_name_can_be_read_back(tmp_path: Path) -> None:
    path = tmp_path / "replay.json"
    for identifier in (*CATALOGUE, "CRASH", "DET", TRACE_BOUND):
        path.write_text(broken_by(identifier))
        assert read_replay(path).violation.invariant == identifier


def test_a_configuration_with_every_field_is_read(tmp_path: Path) -> None:
    config = EngineConfig(
        num_blocks=6,
        max_num_seqs=2,
        adapters=(Adapter("a", 1),),
        order=Order.PRIORITY,
        chunking=False,
        model_revision="other",
    )
    path = tmp_path / "replay.json"
    path.write_text(changed(world={"target": "assay", "config": config_to(config)}))
    assert config_from(read_replay(path).world["config"]) == config


def test_each_operation_stands_on_a_line_of_its_own() -> None:
    assert sum('{"op": ' in line for line in to_text(REPLAY).splitlines()) == len(OPS)


def changed(**columns: Any) -> str:
    return json.dumps(json.loads(to_text(REPLAY)) | columns)


def broken_by(invariant: object) -> str:
    return changed(violation={**json.loads(to_text(REPLAY))["violation"], "invariant": invariant})


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
        pytest.param(
            lambda: changed(ops=[{"op": "juggle"}]), "op must be one of add, abort, plan, land, step", id="which are known"
        ),
        pytest.param(lambda: changed(ops=[{}]), "operation 1 is not one: op must be one of", id="no operation's name"),
        pytest.param(lambda: changed(ops=[3]), "it must be an object, found 3", id="a number for an operation"),
        pytest.param(lambda: changed(ops=[{"op": "add", "request": {}}]), "the field 'prompt' is missing", id="half a request"),
        pytest.param(lambda: changed(world=3), "world must be an object", id="no world"),
        pytest.param(lambda: broken_by("KV-99"), "docs/invariants.md, found 'KV-99'; the nearest are KV-9", id="no predicate"),
        pytest.param(lambda: broken_by(4), "an identifier of docs/invariants.md, found 4", id="a number for a predicate"),
        pytest.param(
            lambda: changed(world={"config": [1]}), "world.config must be an object, found [1]", id="no configuration"
        ),
        *(
            pytest.param(
                lambda name=name, value=value: changed(world={"config": {name: value}}),
                f"world.config.{name} must be {expected}, found {value!r}",
                id=f"{value!r} for {name}",
            )
            for name, value, expected in (
                ("num_blocks", "six", "a whole number"),
                ("block_size", True, "a whole number"),
                ("vocab_size", 2.5, "a whole number"),
                ("chunking", 1, "true or false"),
                ("model_revision", None, "a text"),
                ("order", "random", "one of first_come, priority"),
                ("adapters", [["a"]], 'a list of ["name", version]'),
                ("adapters", "a", 'a list of ["name", version]'),
            )
        ),
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


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 200_000, "nested deeper than any that a gate writes"),
        (changed(ops_found=12).replace(": 12", f": {'9' * 5000}"), "a number in it is longer than any"),
        (changed(ops_found=12).replace(": 12", ": 1e999"), "ops_found must be a whole number from 0 on, found inf"),
        (
            changed(world={"target": "assay", "config": {"num_blocks": 10**9}}),
            "world.config.num_blocks must be 1048576",
        ),
        (changed(ops=[{"op": "advance", "seconds": float("nan")}]), "seconds must be a number from 0 to 1e+09, found nan"),
        (changed(ops=[{"op": "advance", "seconds": -1}]), "seconds must be a number from 0 to 1e+09, found -1"),
        (changed(ops=[{"op": "step", "choices": [["no stream", 0, 1, 0]]}]), "a choice is of a stream (compute, "),
    ],
    ids=["deep", "thousands of digits", "no count", "a world too large", "no time", "time that runs back", "no stream"],
)
def test_what_no_gate_writes_gets_a_sentence(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "replay.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=re.escape(said)):
        read_replay(path)
