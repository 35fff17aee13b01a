"""The radix target keeps the protocol, by itself and in a small hand-driven world."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine_under_test.config import EngineConfig
from engine_under_test.errors import ProtocolError
from engine_under_test.types import (
    Adapter,
    FinishReason,
    Media,
    PlannedStep,
    RefusalReason,
    Request,
    SamplingParams,
    StepResult,
)
from models.targets.radix import RadixTarget


def _target(num_blocks: int = 12, budget: int = 8) -> RadixTarget:
    return RadixTarget(EngineConfig(num_blocks=num_blocks, max_tokens_per_step=budget, max_num_seqs=4, vocab_size=8))


def _request(name: str, prompt: tuple[int, ...], max_tokens: int = 2, **other: Any) -> Request:
    return Request(name, prompt, SamplingParams(max_tokens=max_tokens), **other)


def _result(step: PlannedStep, token: int = 0) -> StepResult:
    plan = step.plan
    return StepResult(plan.plan_id, 0, tuple(plan.row_ids()), tuple((token,) if samples else () for samples in plan.samples))


def _run_out(target: RadixTarget) -> list[PlannedStep]:
    steps = []
    while (step := target.plan()) is not None:
        target.commit(_result(step))
        steps.append(step)
    return steps


def test_a_prompt_is_prefilled_whole_then_decoded_and_its_pages_stay_cached() -> None:
    target = _target()
    assert target.add(_request("a", (1, 2, 3))).incarnation == 1
    steps = _run_out(target)
    assert [(step.plan.starts, step.plan.num_tokens) for step in steps] == [((0,), (3,)), ((3,), (1,))]
    assert [output.finish_reason for output in target.take_outputs()] == [None, FinishReason.LENGTH]
    cached = target.snapshot().cached
    assert {entry.prefix() for entry in cached.values()} == {(1,), (1, 2), (1, 2, 3), (1, 2, 3, 0)}


def test_a_prompt_longer_than_the_budget_comes_in_chunks_of_which_the_last_samples() -> None:
    target = _target(budget=4)
    target.add(_request("a", (1, 2, 3, 4, 5, 6), max_tokens=1))
    steps = _run_out(target)
    assert [(step.plan.num_tokens, step.plan.samples) for step in steps] == [((4,), (False,)), ((2,), (True,))]


def test_a_repeated_prompt_hits_all_but_its_last_token() -> None:
    target = _target()
    target.add(_request("a", (1, 2, 3)))
    _run_out(target)
    target.add(_request("b", (1, 2, 3)))
    step = target.plan()
    assert step is not None
    assert step.plan.starts == (2,)
    assert len(step.plan.hit_blocks[0]) == 2


@pytest.mark.parametrize(
    "other",
    [{"tenant": "t"}, {"cache_salt": "s"}, {"media": (Media("m", 0, 2),)}],
    ids=["of another tenant", "of another salt", "with media over it"],
)
def test_a_prompt_finds_nothing_of_an_equal_prompt(other: dict[str, Any]) -> None:
    target = _target()
    target.add(_request("a", (1, 2, 3)))
    _run_out(target)
    target.add(_request("b", (1, 2, 3), **other))
    step = target.plan()
    assert step is not None
    assert step.plan.hit_blocks == ((),)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (_request("b", ()), RefusalReason.EMPTY_PROMPT),
        (_request("a", (1,)), RefusalReason.DUPLICATE_ID),
        (_request("b", (1,), max_tokens=0), RefusalReason.OUT_OF_RANGE),
        (Request("b", (1,), SamplingParams(temperature=float("nan"))), RefusalReason.OUT_OF_RANGE),
        (Request("b", (1,), SamplingParams(top_k=-1)), RefusalReason.OUT_OF_RANGE),
        (Request("b", (1,), SamplingParams(top_p=0.0)), RefusalReason.OUT_OF_RANGE),
        (Request("b", (1,), SamplingParams(min_p=float("nan"))), RefusalReason.OUT_OF_RANGE),
        (Request("b", (1,), SamplingParams(max_tokens=1, n=2)), RefusalReason.OUT_OF_RANGE),
        (_request("b", (1,), media=(Media("m", 1, 1),)), RefusalReason.OUT_OF_RANGE),
        (_request("b", (8,)), RefusalReason.TOKEN_OUT_OF_VOCABULARY),
        (_request("b", (1,), adapter=Adapter("x", 1)), RefusalReason.UNKNOWN_ADAPTER),
        (_request("b", (1,) * 12), RefusalReason.TOO_LONG),
    ],
    ids=lambda value: value.value if isinstance(value, RefusalReason) else "",
)
def test_the_door_refuses_with(request_: Request, reason: RefusalReason) -> None:
    target = _target()
    target.add(_request("a", (1,)))
    before = target.snapshot()
    assert target.add(request_).refusal == reason
    assert target.snapshot().waiting == before.waiting


def test_pages_of_an_aborted_row_in_flight_come_back_with_its_result() -> None:
    target = _target()
    target.add(_request("a", (1, 2, 3)))
    step = target.plan()
    assert step is not None
    assert target.abort("a")
    assert not target.abort("a")
    assert len(target.snapshot().free) == 9
    target.commit(_result(step))
    target.commit(_result(step))
    assert sorted(target.snapshot().free) == list(range(1, 13))
    assert [output.finish_reason for output in target.take_outputs()] == [FinishReason.ABORT]


def test_a_result_that_does_not_fit_its_plan_is_an_error() -> None:
    target = _target()
    target.add(_request("a", (1, 2, 3)))
    step = target.plan()
    assert step is not None
    with pytest.raises(ProtocolError, match="hand in what the plan asked for"):
        target.commit(StepResult(step.plan.plan_id, 0, tuple(step.plan.row_ids()), ((),)))


@pytest.mark.parametrize("seed", range(20))
def test_a_random_load_ends_with_every_page_free_or_cached_once(seed: int) -> None:
    rng = random.Random(seed)
    target = _target(num_blocks=rng.randint(4, 16), budget=rng.choice((4, 5, 9)))
    live = 0
    for number in range(120):
        prompt = tuple(rng.randrange(2) for _ in range(rng.randint(1, 8)))
        live += target.add(_request(str(number), prompt, rng.randint(1, 6))).is_accepted
        step = target.plan() if rng.random() < 0.8 else None
        if rng.random() < 0.2:
            target.abort(str(rng.randint(max(0, number - 6), number)))
        if step is not None:
            target.commit(_result(step, rng.randrange(2)))
        _pages_are_conserved(target)
    _run_out(target)
    assert sum(output.finish_reason is not None for output in target.take_outputs()) == live
    assert not target.snapshot().running + target.snapshot().waiting
    _pages_are_conserved(target)


def _pages_are_conserved(target: RadixTarget) -> None:
    seen = target.snapshot()
    held = [page for pages in seen.reservations.values() for page in pages]
    assert sorted([*seen.free, *seen.cached, *held]) == list(range(1, seen.num_blocks + 1))
    assert {page for sequence in seen.running for page in sequence.table} <= set(seen.cached)
