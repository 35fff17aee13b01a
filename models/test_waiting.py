"""Predicates that wait find the very violation that they find at once."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from engine_under_test.execution.fingerprint import FingerprintRunner
from models.build import world_from
from models.walk import WalkShape, small_shape, speculating_shape, walk_ops
from models.world import World
from properties.invariants import ALL
from properties.moment import Moment
from properties.op import Op, OpKind

SHAPES = {"alone": small_shape(), "two in flight": small_shape(2), "with drafts": speculating_shape(1, "lookup")}
WAITING = {predicate.check.__name__ for predicate in ALL if predicate.can_wait}


def another_token(told: Any) -> Any:
    tokens, more = told
    return [(tokens[0] + 1) % 16, *tokens[1:]] if tokens else tokens, more


def another_cell(read: Any) -> Any:
    found = [row.copy() for row in read]
    found[-1][-1] ^= 1
    return found


LIES: dict[str, Callable[[Any], Any]] = {"_sample": another_token, "_compute": another_cell}


def world_with_a_lie(monkeypatch: pytest.MonkeyPatch, shape: WalkShape, verb: str, at: int, may_wait: bool) -> World:
    """What the runner says at one launch, counted from the first, is not what it computed."""
    honest, calls = FingerprintRunner.__dict__[verb], 0

    def lie(runner: FingerprintRunner, *arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        found = honest(runner, *arguments)
        return LIES[verb](found) if calls == at else found

    with monkeypatch.context() as patch:
        patch.setattr(FingerprintRunner, verb, lie)
        world = world_from(shape.spec(), may_wait=may_wait)
        world.run([*islice(walk_ops(at, shape), 400), Op(OpKind.DRAIN)])
        assert world.violation is world.violation
    return world


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("verb", LIES)
@pytest.mark.parametrize("at", [3, 40, 77, 131])
def test_what_waits_finds_the_same(monkeypatch: pytest.MonkeyPatch, shape: WalkShape, verb: str, at: int) -> None:
    at_once, later = (world_with_a_lie(monkeypatch, shape, verb, at, may_wait) for may_wait in (False, True))
    assert later.violation == at_once.violation
    assert later.ops >= at_once.ops


def test_the_lies_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [world_with_a_lie(monkeypatch, SHAPES["alone"], verb, 40, True).violation for verb in LIES]
    assert [violation.invariant for violation in found if violation is not None] == ["SE-1", "SE-1"]


def test_a_valid_run_is_judged_as_often_at_once_and_later() -> None:
    worlds = [world_from(small_shape(1).spec(), may_wait=may_wait) for may_wait in (False, True)]
    for world in worlds:
        world.run(islice(walk_ops(5, small_shape(1)), 300))
        assert world.violation is None
    assert worlds[0].evaluations == worlds[1].evaluations
    assert worlds[0].history.records == worlds[1].history.records


def test_who_waits_looks_at_nothing_that_changes() -> None:
    """Asked again at the end of a run, of moments that are long over, they say what they said."""
    moments: list[Moment] = []
    world = world_from(small_shape(1).spec(), on_moment=moments.append)
    world.run(islice(walk_ops(2, small_shape(1)), 200))
    hidden: Any = None
    for moment in moments:
        if moment.execution is not None:
            moment.facts = moment.events = moment.before = moment.uses = hidden
            assert all(predicate.check(moment) is None for predicate in ALL if predicate.can_wait)
    assert {"cells_are_lawful", "greedy_tokens_are_lawful", "seeded_tokens_are_lawful"} == WAITING
