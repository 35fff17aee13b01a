"""The engine on its own, step by step, over the fingerprint runner: what its users and its runner may rely upon."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import pytest

from engine_under_test import (
    Engine,
    EngineConfig,
    EventKind,
    FingerprintRunner,
    FinishReason,
    Order,
    Output,
    ProtocolError,
    Request,
    SamplingParams,
    StepResult,
)
from engine_under_test.adapters.ours import AssayTarget
from engine_under_test.events import Event
from engine_under_test.types import PlannedStep, Status
from properties.doubles import FailingRunner

CONFIG = EngineConfig(num_blocks=12, block_size=4, max_tokens_per_step=8, max_num_seqs=4, vocab_size=32)
PROMPT = tuple(range(10))


def _request(name: str, prompt: Sequence[int] = PROMPT, **sampling: Any) -> Request:
    return Request(name, tuple(prompt), replace(SamplingParams(max_tokens=4), **sampling))


def _runner(config: EngineConfig) -> FingerprintRunner:
    return FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size)


def _drain(engine: Engine, steps: int = 400) -> dict[tuple[str, int], list[Output]]:
    found: dict[tuple[str, int], list[Output]] = {}
    while engine.has_work and steps:
        engine.step()
        steps -= 1
    assert steps, "the engine did not come to its end"
    for output in engine.take_outputs():
        found.setdefault((output.request_id, output.choice), []).append(output)
    return found


def _tokens(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.token_ids]


def _run(config: EngineConfig, requests: Sequence[Request]) -> dict[tuple[str, int], list[int]]:
    engine = Engine(config, _runner(config))
    for request in requests:
        assert engine.submit(request).is_accepted
    return {key: _tokens(outputs) for key, outputs in _drain(engine).items()}


REQUESTS = [
    _request("a"),
    _request("b", PROMPT, temperature=0.8, seed=7),
    _request("c", [*PROMPT[:6], 9, 9], n=3, temperature=1.0, seed=8),
    _request("d", [5], n=2, temperature=1.0, seed=9),
    _request("e", PROMPT[:9], max_tokens=12),
]

SWITCHES = {
    "without prefix cache": replace(CONFIG, prefix_cache=False),
    "without batching": replace(CONFIG, batching=False),
    "without chunking": replace(CONFIG, chunking=False, max_tokens_per_step=24),
    "with a pool that forces preemptions": replace(CONFIG, num_blocks=6),
    "with blocks of one slot": replace(CONFIG, num_blocks=48, block_size=1),
    "by priority": replace(CONFIG, order=Order.PRIORITY),
    "two plans in flight": replace(CONFIG, max_plans_in_flight=2),
    "three plans in flight and a small pool": replace(CONFIG, max_plans_in_flight=3, num_blocks=6),
}


@pytest.mark.parametrize("config", SWITCHES.values(), ids=SWITCHES.keys())
def test_tokens_do_not_depend_on_how_they_are_scheduled(config: EngineConfig) -> None:
    alone = {key: tokens for request in REQUESTS for key, tokens in _run(CONFIG, [request]).items()}
    together = _run(config, REQUESTS)
    assert together == alone
    assert sorted(together) == [("a", 0), ("b", 0), ("c", 0), ("c", 1), ("c", 2), ("d", 0), ("d", 1), ("e", 0)]


def test_choices_of_one_request_differ_and_share_their_prompt() -> None:
    engine = Engine(CONFIG, _runner(CONFIG))
    engine.submit(_request("a", n=3, temperature=1.0, max_tokens=6))
    while len(engine.snapshot().running) < 3:
        engine.step()
    tables = [seq.table for seq in engine.snapshot().running]
    assert tables[0][:2] == tables[1][:2] == tables[2][:2]
    outputs = _drain(engine)
    assert len({tuple(_tokens(each)) for each in outputs.values()}) == 3


def test_a_second_request_with_the_same_prompt_finds_whole_blocks_below_its_last_token() -> None:
    engine = Engine(CONFIG, _runner(CONFIG))
    for name, prompt in (("a", PROMPT[:8]), ("b", PROMPT[:8])):
        engine.submit(_request(name, prompt))
        _drain(engine)
    assert engine.counters.cached_tokens == 4


def test_a_constant_hash_keeps_every_answer_right() -> None:
    engine = Engine(CONFIG, _runner(CONFIG), hasher=lambda _: b"\0")
    for name, prompt in (("a", PROMPT), ("b", tuple(reversed(PROMPT))), ("c", PROMPT)):
        engine.submit(_request(name, prompt))
        _drain(engine)
    assert engine.counters.cached_tokens == 8  # c found a; b found nothing


def _failing(at_launch: Collection[int] = (), at_result: Collection[int] = ()) -> Engine:
    return Engine(CONFIG, FailingRunner(_runner(CONFIG), at_launch=at_launch, at_result=at_result))


FAILURES: dict[str, Callable[[Collection[int]], Engine]] = {
    "at the launch": lambda which: _failing(at_launch=which),
    "at the result": lambda which: _failing(at_result=which),
}


@pytest.mark.parametrize("failing", FAILURES.values(), ids=FAILURES.keys())
def test_one_failed_step_is_tried_again_and_nobody_notices(failing: Callable[[Collection[int]], Engine]) -> None:
    engine = failing({3})
    for name in "abcd":
        engine.submit(_request(name, PROMPT[:3]))
    outputs = _drain(engine)
    assert {outputs[name, 0][-1].finish_reason for name in "abcd"} == {FinishReason.LENGTH}
    assert _tokens(outputs["a", 0]) == _run(CONFIG, [_request("a", PROMPT[:3])])["a", 0]
    assert engine.counters.abandoned == 1


@pytest.mark.parametrize("failing", FAILURES.values(), ids=FAILURES.keys())
def test_a_step_that_fails_twice_ends_half_of_its_rows_and_spares_the_rest(
    failing: Callable[[Collection[int]], Engine],
) -> None:
    engine = failing({3, 4})
    for name in "abcd":
        engine.submit(_request(name, PROMPT[:2]))
    outputs = _drain(engine)
    reasons = [outputs[name, 0][-1].finish_reason for name in "abcd"]
    assert reasons == [FinishReason.ERROR, FinishReason.ERROR, FinishReason.LENGTH, FinishReason.LENGTH]
    assert "injected" in outputs["a", 0][-1].message
    engine.poll()
    snapshot = engine.snapshot()
    assert sorted(snapshot.free) == list(range(1, CONFIG.num_blocks + 1))


def test_every_refused_block_is_survived_whichever_it_is() -> None:
    expected = _run(CONFIG, REQUESTS)
    for kth in range(1, 25):
        target = AssayTarget(CONFIG)
        engine = Engine(CONFIG, _runner(CONFIG), gate=target._gate)
        target.refuse_block(kth)
        for request in REQUESTS:
            engine.submit(request)
        assert {key: _tokens(outputs) for key, outputs in _drain(engine).items()} == expected, kth
        assert engine.counters.rolled_back <= 1


def _launched(target: AssayTarget) -> PlannedStep:
    step = target.plan()
    assert step is not None
    return step


def _result(step: PlannedStep, token: int = 1) -> StepResult:
    plan = step.plan
    tokens = tuple((token,) if samples else () for samples in plan.samples)
    return StepResult(plan.plan_id, plan.generation, tuple(plan.row_ids()), tokens)


def test_results_may_come_early_twice_and_late() -> None:
    target = AssayTarget(replace(CONFIG, max_plans_in_flight=3))
    target.add(_request("a"))
    first, second, third = _launched(target), _launched(target), _launched(target)
    target.commit(_result(second))
    assert target.take_outputs() == ()
    assert target.snapshot().plans == (1, 2, 3)
    target.commit(_result(first))
    assert [output.token_ids for output in target.take_outputs()] == [(1,)]
    target.commit(_result(first))
    target.commit(_result(third, token=2))
    assert [output.token_ids for output in target.take_outputs()] == [(2,)]
    assert target.counters().dropped_results == 1


def test_a_result_for_other_rows_is_refused_and_changes_nothing() -> None:
    target = AssayTarget(CONFIG)
    target.add(_request("a", PROMPT[:4]))
    step = _launched(target)
    before = target.snapshot()
    good = _result(step)
    for bad in (replace(good, rows=()), replace(good, tokens=((),)), replace(good, tokens=((99,),))):
        with pytest.raises(ProtocolError):
            target.commit(bad)
        assert target.snapshot() == before
    target.commit(good)


def test_a_block_in_use_by_a_launched_plan_is_not_free_before_its_fence() -> None:
    target = AssayTarget(replace(CONFIG, max_plans_in_flight=2))
    target.add(_request("a"))
    first = _launched(target)
    used = set(first.reservation.tables[0])
    target.abort("a")
    assert used.isdisjoint(target.snapshot().free)
    target.hold_fences(True)
    target.commit(_result(first))
    target.poll()
    assert set(target.snapshot().quarantined) == used
    target.hold_fences(False)
    target.poll()
    assert used <= set(target.snapshot().free)


def test_rollback_restores_everything_evicted_entries_and_order_included() -> None:
    target = AssayTarget(CONFIG)
    for name, prompt in (("a", PROMPT), ("b", tuple(reversed(PROMPT))), ("c", [3] * 10), ("d", [4] * 9)):
        target.add(_request(name, prompt))
        while (step := target.plan()) is not None:
            target.commit(_result(step))
    target.poll()
    target.add(_request("e", [*PROMPT[:8], *[7] * 20]))
    before = target.snapshot()
    step = target.reserve()
    assert step is not None
    assert step.plan.hit_blocks[0]
    target.rollback(step)
    assert target.snapshot() == before


def test_the_scheduler_may_be_asked_twice_and_changes_nothing() -> None:
    engine = Engine(CONFIG, _runner(CONFIG))
    for request in REQUESTS:
        engine.submit(request)
    for _ in range(4):
        before = engine.snapshot()
        scheduler, view = engine._scheduler, engine._book
        assert scheduler.choose_victims(view) == scheduler.choose_victims(view)
        assert scheduler.plan(view) == scheduler.plan(view)
        assert engine.snapshot() == before
        engine.step()


def test_a_deadline_ends_a_request_with_that_reason() -> None:
    target = AssayTarget(CONFIG)
    target.add(replace(_request("a"), deadline_s=5.0))
    target.add(replace(_request("b"), deadline_s=50.0))
    step = _launched(target)
    target.advance_clock(5.0)
    target.poll()
    assert [(output.request_id, output.finish_reason) for output in target.take_outputs()] == [("a", FinishReason.DEADLINE)]
    target.commit(_result(step))
    assert target.take_outputs() == ()


def test_stop_tokens_end_a_choice_but_not_before_min_tokens() -> None:
    plain = _run(CONFIG, [_request("a", max_tokens=8)])["a", 0]
    stop = plain[2]
    stopped = _run(CONFIG, [_request("a", max_tokens=8, stop_token_ids=(stop,))])["a", 0]
    assert stopped == plain[: plain.index(stop) + 1]
    later = _run(CONFIG, [_request("a", max_tokens=8, stop_token_ids=(stop,), min_tokens=6)])["a", 0]
    assert stop not in later[:6]


def test_a_vocabulary_of_stop_tokens_ends_a_choice_at_min_tokens_and_one() -> None:
    stops = tuple(range(CONFIG.vocab_size))
    assert len(_run(CONFIG, [_request("a", max_tokens=8, stop_token_ids=stops, min_tokens=2)])["a", 0]) == 3
    assert len(_run(CONFIG, [_request("a", max_tokens=8, stop_token_ids=stops)])["a", 0]) == 1


def test_a_restart_begins_every_request_again_and_keeps_what_was_emitted() -> None:
    target = AssayTarget(CONFIG)
    target.add(_request("a", PROMPT[:4]))
    target.commit(_result(_launched(target), token=5))
    old = _launched(target)
    target.restart()
    target.commit(_result(old, token=6))
    snapshot = target.snapshot()
    assert snapshot.generation == 1
    assert [seq.status for seq in snapshot.sequences()] == [Status.WAITING]
    again = _launched(target)
    assert again.plan.token_ids == (*PROMPT[:4], 5)
    assert [output.token_ids for output in target.take_outputs()] == [(5,)]


def test_after_a_cache_reset_results_stay_valid_but_publish_nothing() -> None:
    target = AssayTarget(CONFIG)
    target.add(_request("a", PROMPT[:8], max_tokens=5))
    step = _launched(target)
    target.reset_cache()
    target.commit(_result(step))
    assert target.take_outputs()[0].token_ids == (1,)
    assert not target.snapshot().cached
    assert target.lookup(_request("b", PROMPT[:9])) == ()


def test_every_block_transition_is_told() -> None:
    events: list[Event] = []
    config = replace(CONFIG, num_blocks=6)
    engine = Engine(config, _runner(config), observer=events.append)
    for request in REQUESTS:
        engine.submit(request)
    _drain(engine)
    kinds = {event.kind for event in events}
    assert kinds >= {
        EventKind.RESERVED,
        EventKind.OWNED,
        EventKind.RELEASED,
        EventKind.FREED,
        EventKind.EVICTED,
        EventKind.PUBLISHED,
        EventKind.COPIED,
        EventKind.FORKED,
        EventKind.PREEMPTED,
        EventKind.HIT,
    }
    assert sum(event.tokens for event in events if event.kind is EventKind.SCHEDULED) == engine.counters.scheduled_tokens
