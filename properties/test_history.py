"""A history survives its file, line by line; what is not one is refused with one clear sentence."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_under_test.errors import BadInput
from engine_under_test.events import Counters, Event, EventKind
from engine_under_test.types import Admission, FinishReason, Output, RefusalReason, Request, RowId, SamplingParams
from properties import history as histories
from properties.history import History, Landing, OpRecord, Record
from properties.moment import NoiseAddress
from properties.op import Op, OpKind
from properties.verdict import Violation

_ADD = Op(OpKind.ADD, request=Request("a", (1, 2), SamplingParams(max_tokens=3, stop_token_ids=(4,))))
RECORDS: tuple[Record, ...] = (
    OpRecord(_ADD, False, Admission("a", 1)),
    OpRecord(_ADD, False, Admission("a", 0, RefusalReason.DUPLICATE_ID, "identifiers differ")),
    Event(EventKind.RESERVED, RowId("a", 0, 1, 0), 7, (3, 4)),
    Event(EventKind.REFUSED, RowId("a", 0, 0, 0), reason="duplicate_id"),
    Event(EventKind.CACHE_RESET),
    Landing(7, 0, (RowId("a", 0, 1, 0),), ((5,),), (NoiseAddress(9, 0, 2, 0),)),
    Output("a", 0, 1, 0, (5,)),
    Output("a", 0, 1, 1, (), FinishReason.ERROR, "the step failed twice"),
    Counters(accepted=1, finished={FinishReason.ERROR: 1}),
    OpRecord(Op(OpKind.ABORT, request_id="b"), True),
    Violation("KV-4", "freed once", "block 3", "twice", "once", ("freed at op 3",)),
)
HISTORY = History({"target": "example", "seed": "0x1"}, RECORDS)
TEXT = "".join(line + "\n" for line in HISTORY.lines())


def test_a_history_survives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    HISTORY.write(path)
    back = histories.read(path)
    assert back.meta == HISTORY.meta
    assert back.records == HISTORY.records


def test_operations_can_be_taken_out_to_be_done_again() -> None:
    assert HISTORY.ops() == (_ADD, _ADD, Op(OpKind.ABORT, request_id="b"))


def test_records_of_one_kind_come_in_order() -> None:
    assert [output.index for output in HISTORY.of(Output)] == [0, 1]


_text = st.text(max_size=4)
_ints = st.lists(st.integers(0, 9), max_size=3).map(tuple)
_rows = st.builds(RowId, _text, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
_events = st.builds(
    Event, st.sampled_from(EventKind), st.none() | _rows, st.none() | st.integers(0, 99), _ints, st.integers(0, 9), _text
)
_outputs = st.builds(
    Output,
    _text,
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 9),
    _ints,
    st.none() | st.sampled_from(FinishReason),
    _text,
)


@given(st.lists(_events | _outputs, max_size=5))
def test_any_events_and_outputs_survive_their_text(records: list[Event | Output]) -> None:
    text = "".join(line + "\n" for line in History({}, records).lines())
    assert histories.parse(text).records == records


def _with_line(number: int, line: str) -> str:
    lines = TEXT.split("\n")
    lines[number - 1] = line
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("", r"begins with a line .* run is empty", id="an empty file"),
        pytest.param(TEXT[:-1], "run line 12 does not: the file is cut off", id="a last line without its end"),
        pytest.param(TEXT[:-9], "run line 12 does not: the file is cut off", id="a last line cut in the middle"),
        pytest.param(_with_line(4, '{"event": '), "run line 4 is not JSON", id="a line that is not JSON"),
        pytest.param(_with_line(4, "[1]"), r"run line 4 is not a JSON object, found '\[1\]'", id="a line that is no object"),
        pytest.param(_with_line(4, '{"x": 1}'), "run line 4 is not a record .* found \\['x'\\]", id="an unknown record"),
        pytest.param(_with_line(4, '{"event": "melted"}'), "run line 4 is not a record", id="an unknown event"),
        pytest.param(_with_line(4, '{"event": "freed", "blocks": ["3"]}'), "expected int, found '3'", id="a wrong type"),
        pytest.param(_with_line(4, '{"landing": 1}'), "the field 'generation' is missing", id="a missing field"),
        pytest.param(_with_line(1, '{"target": "x"}'), r"found the fields \['target'\]", id="no schema in the first line"),
        pytest.param(_with_line(1, '{"history": 2}'), "of schema 1, run line 1 says 2", id="another schema"),
        pytest.param(_with_line(1, '{"history": true}'), "of schema 1, run line 1 says True", id="a schema that is no number"),
    ],
)
def test_what_is_not_a_history_is_refused_with_one_sentence(text: str, said: str) -> None:
    with pytest.raises(BadInput, match=said) as refusal:
        histories.parse(text, "run")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("data", [b"\xff\xfe", None], ids=["bytes that are no text", "a missing file"])
def test_an_unreadable_file_is_refused_with_one_sentence(tmp_path: Path, data: bytes | None) -> None:
    path = tmp_path / "run.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(BadInput, match="name another file"):
        histories.read(path)


def test_a_record_costs_the_hot_path_one_append() -> None:
    """Under 2 us a record; the best of some tries, for the machine may be busy."""
    event, num_records = Event(EventKind.CACHE_RESET), 10_000

    def seconds() -> float:
        history, start = History(), time.perf_counter()
        for _ in range(num_records):
            history.add(event)
        return time.perf_counter() - start

    assert min(seconds() for _ in range(5)) / num_records < 2e-6
