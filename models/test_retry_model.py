"""Second tries, on losses written by hand."""

from __future__ import annotations

from typing import Any

from engine_under_test.types import Plan, Request, SamplingParams
from models.allocator_model import Key
from models.retry_model import RetryModel
from properties.moment import ChoiceFacts

A, B, C = (("a", 0, 1), ("b", 0, 1), ("c", 0, 1))


def plan_of(plan_id: int, *keys: Key) -> Plan:
    zeros, count = (0,) * len(keys), len(keys)
    requests = tuple(Request(key[0], (1,), SamplingParams(max_tokens=9)) for key in keys)
    columns: dict[str, Any] = {
        "choices": zeros, "incarnations": (1,) * count, "epochs": zeros, "starts": zeros, "num_tokens": (1,) * count,
        "token_ids": (1,) * count, "num_pending": zeros, "samples": (True,) * count, "hit_blocks": ((),) * count,
    }  # fmt: skip
    return Plan(plan_id=plan_id, generation=0, requests=requests, **columns)


LIVE = {key: ChoiceFacts(Request(key[0], (1,)), 0, 1, []) for key in (A, B, C)}


def lost_once() -> RetryModel:
    model = RetryModel(LIVE)
    model.planned(plan_of(1, A, B, C))
    model.abandoned([plan_of(1, A, B, C)], LIVE)
    return model


def test_a_first_loss_excuses_nobody() -> None:
    model = lost_once()
    assert not model.excused
    assert not model.lost_twice


def test_the_second_loss_of_a_half_ends_that_half() -> None:
    model = lost_once()
    model.planned(plan_of(2, A, B))
    assert model.retried == (A, B, C)
    model.abandoned([plan_of(2, A, B)], LIVE)
    assert model.lost_twice == {A, B}
    assert model.excused == {("a", 1), ("b", 1)}


def test_a_second_try_that_came_back_is_over() -> None:
    model = lost_once()
    model.planned(plan_of(2, A, B))
    model.committed(2)
    model.planned(plan_of(3, A, B, C))
    model.abandoned([plan_of(3, A, B, C)], LIVE)
    assert not model.lost_twice
    assert not model.excused


def test_a_second_try_that_was_undone_is_still_due() -> None:
    model = lost_once()
    model.planned(plan_of(2, A, B), is_launched=False)
    model.planned(plan_of(3, A))
    assert model.retried == (A, B, C)


def test_a_refused_second_try_excuses_its_rows_only() -> None:
    model = lost_once()
    model.refused(LIVE)
    assert model.excused == {("a", 1), ("b", 1), ("c", 1)}


def test_behind_a_refusal_a_loss_excuses_and_demands_nothing() -> None:
    model = RetryModel(LIVE)
    model.refused(LIVE)
    model.planned(plan_of(2, A))
    model.abandoned([plan_of(2, A)], LIVE)
    assert model.excused == {("a", 1)}
    assert not model.lost_twice


def test_rows_to_blame_end_and_the_others_are_no_second_try() -> None:
    model = RetryModel(LIVE)
    model.planned(plan_of(1, A, B, C))
    model.abandoned([plan_of(1, A, B, C)], LIVE, (1,))
    assert model.lost_twice == {B}
    assert model.excused == {("b", 1)}
    model.planned(plan_of(2, A, C))
    assert model.retried == ()
    model.abandoned([plan_of(2, A, C)], LIVE)
    assert not model.lost_twice


def test_where_the_half_that_was_due_has_ended_the_next_plan_is_a_first_try() -> None:
    live = {C: LIVE[C]}
    model = RetryModel(live)
    model.planned(plan_of(1, A, C))
    model.abandoned([plan_of(1, A, C)], {A: LIVE[A], **live})
    model.planned(plan_of(2, C))  # a is gone by now
    assert not model.retried
    model.abandoned([plan_of(2, C)], live)
    assert not model.excused
    model.planned(plan_of(3, C))
    assert model.retried == (C,)


def test_of_a_plan_undone_behind_a_refusal_it_is_unknown_whether_it_is_tried_again() -> None:
    model = RetryModel(LIVE)
    model.refused(LIVE)
    found = []
    for number, is_launched in ((2, False), (3, True), (4, True)):
        model.planned(plan_of(number, A, B), is_launched=is_launched)
        found.append(model.perhaps_retried)
    assert found == [(), (A, B), ()]
    assert not model.retried


def test_so_it_is_of_a_plan_lost_behind_a_refusal() -> None:
    model = RetryModel(LIVE)
    model.refused(LIVE)
    model.planned(plan_of(2, A))
    model.abandoned([plan_of(2, A)], LIVE)
    model.planned(plan_of(3, A, B))
    assert model.perhaps_retried == (A,)
