"""A trace becomes operations at a stated pace, its hits are counted once and held against the infinite cache."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from engine_under_test.events import Event, EventKind
from engine_under_test.types import Request, SamplingParams
from models.build import hasher_of, target_from
from models.shrink import run_once
from models.targets.planted import FreedAtAbortAndAgain
from models.trace.requests import TraceRequest
from models.trace.suite import run_trace
from models.trace.tally import Tally
from models.trace.workload import Setting, TraceRun, begin, ops_of
from models.world import World
from properties.op import Op, OpKind
from properties.suite import Label, Profile, SuiteContext
from properties.verdict import Verdict

SMALL = Setting(num_blocks=24, max_num_seqs=4, output_divisor=8, pace=8, block_size=4, max_tokens_per_step=16)
TARGETS = pytest.mark.parametrize("setting", [SMALL, replace(SMALL, target="radix", num_blocks=96)], ids=["assay", "radix"])


def _trace(*requests: tuple[int, tuple[int, ...]]) -> tuple[TraceRequest, ...]:
    return tuple(TraceRequest(0, input_len, 16, ids) for input_len, ids in requests)


CHAT = _trace((1024, (0, 1)), (1500, (0, 1, 2)), (600, (0, 3)), (2000, (0, 1, 4, 5)), (2000, (0, 1, 4, 5)))


def _ran(trace: tuple[TraceRequest, ...], setting: Setting) -> TraceRun:
    trace_run = begin(trace, setting)
    trace_run.world.run(ops_of(trace_run.requests, setting.pace))
    return trace_run


def test_steps_come_as_fast_as_tokens_are_offered_and_a_drain_comes_last() -> None:
    requests = [Request(str(length), (0,) * length, SamplingParams(max_tokens=2)) for length in (4, 3, 13)]
    kinds = [op.kind for op in ops_of(requests, 10)]
    assert kinds == [OpKind.ADD, OpKind.ADD, OpKind.STEP, OpKind.ADD, OpKind.STEP, OpKind.DRAIN]


@TARGETS
def test_every_request_is_served_and_finds_no_more_than_an_infinite_cache(setting: Setting) -> None:
    trace_run = _ran(CHAT, setting)
    assert trace_run.world.violation is None
    assert trace_run.world.num_live == 0
    assert set(trace_run.tally.found) == {"t0", "t1", "t2", "t3", "t4"}
    assert trace_run.world.evaluations["TR-1"] > 0
    assert 0 < trace_run.hit_rate <= trace_run.hit_rate_bound < 1


def test_requests_served_one_by_one_in_a_large_pool_find_exactly_what_an_infinite_cache_would() -> None:
    trace_run = _ran(CHAT, replace(SMALL, num_blocks=200, pace=1))
    assert trace_run.tally.found == {"t0": 0, "t1": 8, "t2": 4, "t3": 8, "t4": 12}
    assert trace_run.hit_rate == trace_run.hit_rate_bound


@TARGETS
def test_a_hit_above_the_bound_is_a_violation(setting: Setting) -> None:
    tally = Tally({"t1": 3})  # a block less than the trace allows
    world = World(target_from(setting.spec), hasher=hasher_of(setting.spec), predicates=[tally.predicate()])
    world.run(ops_of(setting.scale.requests(CHAT), 1))
    violation = world.violation
    assert violation is not None
    assert violation.invariant == "TR-1"
    assert violation.sentence.startswith("request t1: found ")
    assert violation.sentence.endswith("expected at most 3 (derived from the trace)")


@TARGETS
def test_the_suite_says_what_it_saw_with_the_label_of_each_figure(setting: Setting) -> None:
    done: list[tuple[int, int]] = []
    context = SuiteContext(Profile.QUICK, 1, lambda number, total: done.append((number, total)))
    result = run_trace(context, CHAT, {"small": setting})
    assert result.verdict is Verdict.VALID
    assert result.examples == 5
    assert result.ops + result.noops > len(CHAT)
    assert done[-1] == (5, 5)
    labels = {figure.name: figure.label for figure in result.figures}
    assert labels["trace-mooncake.small.hit_rate"] is Label.OBSERVED
    assert labels["trace-mooncake.small.hit_rate_bound"] is Label.DERIVED
    assert labels["trace-mooncake.requests"] is Label.GIVEN


def test_a_run_that_reached_no_preemption_is_unknown_in_the_profile_of_a_pull_request() -> None:
    result = run_trace(SuiteContext(Profile.PR, 1), CHAT, {"tight": SMALL})
    assert result.verdict is Verdict.UNKNOWN
    assert "tight: preempted choices" in result.missed


def test_a_roomy_pool_that_finds_little_of_what_it_could_is_unknown() -> None:
    result = run_trace(SuiteContext(Profile.QUICK, 1), CHAT, {"roomy": replace(SMALL, num_blocks=200, pace=10_000)})
    assert result.verdict is Verdict.UNKNOWN
    assert result.missed == ("roomy: hit rate of at least 0.9 of its bound",)


def test_hits_read_from_plans_are_the_hits_that_events_tell() -> None:
    trace_run = _ran(CHAT, SMALL)
    told = dict.fromkeys(trace_run.tally.found, 0)
    for event in trace_run.world.history.of(Event):
        if event.kind is EventKind.HIT and event.row is not None and event.row.epoch == 0:
            told[event.row.request_id] = event.tokens
    assert told == trace_run.tally.found
    assert sum(told.values()) > 0


def test_a_violation_is_shrunk_to_operations_that_still_break_the_same_invariant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.targets.radix.RadixTarget", FreedAtAbortAndAgain)
    ops = [Op(OpKind.PLAN), Op(OpKind.ABORT, request_id="t0"), Op(OpKind.LAND)]
    monkeypatch.setattr("models.trace.suite.ops_of", lambda requests, pace: (*islice(ops_of(requests, pace), 1), *ops))
    result = run_trace(SuiteContext(Profile.PR, 1), CHAT, {"radix": replace(SMALL, target="radix", num_blocks=96)})
    assert result.verdict is Verdict.INVALID
    (failure,) = result.failures
    assert failure.violation.invariant == "KV-4"
    assert failure.ops_found == 3
    assert failure.ops[0].request is not None
    assert len(failure.ops[0].request.prompt) < 8
    again = run_once(failure.world, failure.ops)
    assert again is not None
    assert again.invariant == "KV-4"
