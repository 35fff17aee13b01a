"""Shrinking on failures made up for it: what must stay stays, everything else goes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from engine_under_test.types import Request, SamplingParams
from models.shrink import Spec, shrink, shrink_world
from models.walk import small_shape, walk_ops
from properties.op import Op, OpKind
from properties.verdict import Violation

BROKEN = Violation("KV-4", "freed once", "block 3", "freed twice", "once")
OTHER = Violation("SC-1", "pairing", "plan 1", "a", "b")


def aborted_after_a_long_prompt(spec: Spec, ops: Sequence[Op]) -> Violation | None:
    """Fails when a request of at least 5 tokens is added and aborted later, in a pool of at least 3 blocks."""
    added = set()
    for op in ops:
        if op.kind is OpKind.ADD and op.request is not None and len(op.request.prompt) >= 5:
            added.add(op.request.request_id)
        if op.kind is OpKind.ABORT and op.request_id in added:
            return BROKEN if spec["config"]["num_blocks"] >= 3 else None
    return None


def test_only_the_ops_that_matter_are_left() -> None:
    shape = small_shape()
    shrunk = shrink_world(
        shape.spec(), tuple(islice(walk_ops(1, shape), 400)), BROKEN, run=aborted_after_a_long_prompt, max_seconds=60.0
    )
    add, abort = shrunk.ops
    assert add.request is not None
    assert abort == Op(OpKind.ABORT, request_id=add.request.request_id)
    assert len(add.request.prompt) == 5
    assert add.request.sampling == SamplingParams(max_tokens=1)
    assert shrunk.spec["config"]["num_blocks"] == 3


def test_another_violation_is_not_taken_for_this_one() -> None:
    def either(_spec: Spec, ops: Sequence[Op]) -> Violation | None:
        kinds = [op.kind for op in ops]
        if OpKind.RESTART in kinds:
            return BROKEN
        return OTHER if OpKind.POLL in kinds else None

    ops = [Op(OpKind.POLL), Op(OpKind.STEP), Op(OpKind.RESTART), Op(OpKind.POLL)]
    assert shrink({"config": {}}, ops, BROKEN, run=either) == (Op(OpKind.RESTART),)


def test_tries_are_bounded() -> None:
    calls = []

    def always(_spec: Spec, ops: Sequence[Op]) -> Violation | None:
        calls.append(len(ops))
        return BROKEN if len(ops) > 20 else None

    ops = [Op(OpKind.ADD, request=Request("a", (1, 2, 3)))] * 100
    shrunk = shrink_world({"config": {}}, ops, BROKEN, run=always, max_tries=12)
    assert len(calls) == shrunk.tries == 12


def test_time_is_bounded() -> None:
    clock = iter(range(1000))
    shrunk = shrink_world(
        {"config": {}}, [Op(OpKind.STEP)] * 50, BROKEN, run=lambda _s, _o: BROKEN, max_seconds=5, now=lambda: float(next(clock))
    )
    assert shrunk.tries <= 5


def test_a_payload_that_can_not_be_made_simpler_is_not_tried_for_ever() -> None:
    def ascending(_spec: Spec, ops: Sequence[Op]) -> Violation | None:
        prompts = [op.request.prompt for op in ops if op.request is not None]
        return BROKEN if prompts == [(0, 1, 2)] else None

    shrunk = shrink_world({"config": {}}, [Op(OpKind.ADD, request=Request("a", (0, 1, 2)))], BROKEN, run=ascending)
    assert shrunk.tries < 100
