"""An op is a value: what is written as JSON is read as the same op, and anything else is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_under_test.types import Adapter, GrammarKind, GrammarSpec, Media, Request, SamplingParams
from properties.op import Op, OpKind

_tokens = st.lists(st.integers(0, 2**31), max_size=4).map(tuple)
_sampling = st.builds(
    SamplingParams,
    max_tokens=st.integers(-1, 99),
    min_tokens=st.integers(-1, 9),
    temperature=st.floats(allow_nan=False),
    seed=st.integers(0, 2**64),
    n=st.integers(0, 4),
    stop_token_ids=_tokens,
    top_k=st.integers(-1, 9),
    top_p=st.floats(allow_nan=False),
    min_p=st.floats(allow_nan=False),
    grammar=st.none() | st.builds(GrammarSpec, st.sampled_from(GrammarKind), st.lists(st.text(max_size=3)).map(tuple)),
)
_requests = st.builds(
    Request,
    st.text(max_size=5),
    _tokens,
    _sampling,
    priority=st.integers(-5, 5),
    tenant=st.text(max_size=3),
    cache_salt=st.text(max_size=3),
    adapter=st.none() | st.builds(Adapter, st.text(max_size=3), st.integers(0, 9)),
    media=st.lists(st.builds(Media, st.text(max_size=3), st.integers(0, 9), st.integers(0, 9)), max_size=2).map(tuple),
    arrival_s=st.floats(0, 10),
    deadline_s=st.none() | st.floats(0, 10),
)
_ops = st.builds(
    Op,
    st.sampled_from(OpKind),
    request=st.none() | _requests,
    request_id=st.text(max_size=5),
    k=st.integers(0, 9),
    on=st.booleans(),
    seconds=st.floats(0, 100),
)


@given(_ops)
def test_an_op_survives_json(op: Op) -> None:
    assert Op.from_json(json.loads(json.dumps(op.to_json()))) == op


def test_columns_at_their_defaults_are_not_written() -> None:
    assert Op(OpKind.LAND).to_json() == {"op": "land"}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({"op": "explode"}, id="an unknown kind"),
        pytest.param({"op": "land", "why": 1}, id="an unknown field"),
        pytest.param({"op": "land", "k": "1"}, id="a number as text"),
        pytest.param({"op": "land", "k": True}, id="a number as truth value"),
        pytest.param({"op": "add", "request": {"request_id": "a"}}, id="a request without prompt"),
        pytest.param({"op": "add", "request": {"request_id": "a", "prompt": [1], "colour": 1}}, id="an unknown request field"),
        pytest.param({"k": 1}, id="no kind"),
    ],
)
def test_what_is_not_an_op_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        Op.from_json(data)
