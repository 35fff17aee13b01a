"""Two histories are the same, or their first difference is named with both sides."""

from __future__ import annotations

from math import nan

from engine_under_test.events import Event, EventKind
from engine_under_test.types import Request, SamplingParams
from properties import history as histories
from properties.determinism import first_difference
from properties.history import History, OpRecord, Record
from properties.op import Op, OpKind

_POLL, _PLAN = OpRecord(Op(OpKind.POLL)), OpRecord(Op(OpKind.PLAN))
_FREED = (Event(EventKind.FREED, blocks=(1,)), Event(EventKind.FREED, blocks=(2,)))


def _between(one: tuple[Record, ...], other: tuple[Record, ...]) -> tuple[str, str, str] | None:
    found = first_difference(History({}, one), History({}, other))
    return None if found is None else (found.subject, found.found, found.expected)


def test_equal_histories_have_no_difference() -> None:
    assert _between((_POLL, *_FREED), (_POLL, *_FREED)) is None


def test_what_a_run_says_of_itself_is_not_compared() -> None:
    assert first_difference(History({"hash_seed": 1}, (_POLL,)), History({"hash_seed": 2}, (_POLL,))) is None


def test_the_first_difference_is_named_with_both_sides() -> None:
    found = first_difference(History({}, (_POLL, *_FREED)), History({}, (_POLL, _FREED[1], _FREED[0])))
    assert found is not None
    assert found.invariant == "DET"
    assert found.subject == "record 1 of 3 and 3"
    assert found.found == "{'event': 'freed', 'blocks': [2]} in the second run"
    assert found.expected == "{'event': 'freed', 'blocks': [1]}, as in the first run"
    assert found.facts == ("the record before it, in both: {'op': 'poll'}",)


def test_a_run_that_ends_earlier_differs_at_its_end() -> None:
    assert _between((_POLL, _PLAN), (_POLL,)) == (
        "record 1 of 2 and 1",
        "the end of the history in the second run",
        "{'op': 'plan'}, as in the first run",
    )


def test_a_history_equals_itself_read_from_its_file_also_with_nan() -> None:
    odd = OpRecord(Op(OpKind.ADD, request=Request("a", (1,), SamplingParams(temperature=nan))))
    history = History({}, (odd, _POLL))
    back = histories.parse("".join(line + "\n" for line in history.lines()))
    assert first_difference(history, back) is None
