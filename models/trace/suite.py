"""The suite `trace-mooncake`: the shipped slice through the engine, with every invariant and the infinite cache's bound.

Owns what the runs must have reached to be worth a verdict; the runner reports and shrinks. The slice is run twice: in a
roomy pool, where the hit rate comes near its bound, and in a tight one, where requests evict and preempt each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from engine_under_test.types import Request
from models.shrink import shrink_world
from models.trace.requests import MOONCAKE_SLICE, TraceRequest, load_trace
from models.trace.tally import IDENTIFIER as BOUND_IDENTIFIER
from models.trace.workload import ROOMY, TIGHT, Setting, TraceRun, begin, ops_of
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Figure, Label, Profile, Suite, SuiteContext
from properties.verdict import verdict_of

IDENTIFIER = "trace-mooncake"
SETTINGS: Mapping[str, Setting] = {"roomy": ROOMY, "tight": TIGHT}
QUICK_REQUESTS = 60  # the other profiles take the whole slice
LEAST_SHARE_OF_BOUND = 0.9  # of the hit rate, in the roomy pool
_SHRINK_SECONDS = 20.0
_FLOORS = {"tight: evicted blocks": 50, "tight: preempted choices": 20, "tight: requests with a hit": 50}


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a trace comes from: the ``identifier`` under which it is reported, and a ``note`` beside its figures."""

    identifier: str
    note: str


MOONCAKE = Origin(IDENTIFIER, "conversation trace of Mooncake, FAST '25")


def run(context: SuiteContext) -> CheckResult:
    trace = load_trace(MOONCAKE_SLICE)
    return run_trace(context, trace[:QUICK_REQUESTS] if context.profile is Profile.QUICK else trace, SETTINGS)


def run_trace(
    context: SuiteContext, trace: tuple[TraceRequest, ...], settings: Mapping[str, Setting], origin: Origin = MOONCAKE
) -> CheckResult:
    """Runs each setting over the trace, up to the first violation. The seed plays no part: the trace is the input."""
    runs: dict[str, TraceRun] = {}
    failures: tuple[Failure, ...] = ()
    for number, (name, setting) in enumerate(settings.items()):
        runs[name] = begin(trace, setting)
        _drive(runs[name], setting, context, number * len(trace), len(settings) * len(trace))
        if (failures := _failures(name, runs[name], setting)) != ():
            break
    return _result(trace, runs, failures, context.profile, origin)


def _drive(trace_run: TraceRun, setting: Setting, context: SuiteContext, num_before: int, total: int) -> None:
    """Applies the operations up to the first violation; progress counts requests that ended.

    What waits when all is offered is served step by step, so that progress goes on; then the drain has little left to do.
    """
    world, num_offered = trace_run.world, 0
    for op in ops_of(trace_run.requests, setting.pace):
        while op.kind is OpKind.DRAIN and world.num_live and world.apply(Op(OpKind.STEP)):
            context.progress(num_before + num_offered - world.num_live, total)
        world.apply(op)
        if world.violation is not None:
            return
        num_offered += op.request is not None
        context.progress(num_before + num_offered - world.num_live, total)


def _failures(name: str, trace_run: TraceRun, setting: Setting) -> tuple[Failure, ...]:
    """The violation, shrunk. One of the infinite cache's bound is not: fewer requests would be another trace."""
    violation, ops = trace_run.world.violation, trace_run.world.history.ops()
    if violation is None:
        return ()
    if violation.invariant == BOUND_IDENTIFIER:
        return (Failure(violation, name, setting.spec, ops, len(ops)),)
    shrunk = shrink_world(setting.spec, ops, violation, max_seconds=_SHRINK_SECONDS)
    return (Failure(shrunk.violation, name, shrunk.spec, shrunk.ops, len(ops)),)


def _result(
    trace: tuple[TraceRequest, ...],
    runs: Mapping[str, TraceRun],
    failures: tuple[Failure, ...],
    profile: Profile,
    origin: Origin,
) -> CheckResult:
    reached = {f"{name}: {what}": number for name, each in runs.items() for what, number in _reached(each).items()}
    missed = () if profile is Profile.QUICK else tuple(name for name, floor in _FLOORS.items() if reached.get(name, 0) < floor)
    missed += tuple(
        f"{name}: hit rate of at least {LEAST_SHARE_OF_BOUND} of its bound"
        for name, each in runs.items()
        if name == "roomy" and each.hit_rate < LEAST_SHARE_OF_BOUND * each.hit_rate_bound
    )
    verdict = verdict_of(failures, missed)
    evaluations: Counter[str] = sum((each.world.evaluations for each in runs.values()), Counter())
    bound = max((each.hit_rate_bound for each in runs.values()), default=0.0)
    rates = " and ".join(f"{each.hit_rate:.2f} ({name} pool)" for name, each in runs.items())
    figures = (*_given(trace, runs, origin), *(figure for name, each in runs.items() for figure in _observed(name, each)))
    return CheckResult(
        origin.identifier,
        verdict,
        examples=sum(len(each.tally.found) for each in runs.values()),
        ops=sum(each.world.ops for each in runs.values()),
        noops=sum(each.world.noops for each in runs.values()),
        reached=reached,
        missed=missed,
        invariants=evaluations,
        failures=failures,
        figures=tuple(replace(figure, name=f"{origin.identifier}.{figure.name}") for figure in figures),
        note=f"{len(trace)} requests, hit rate {rates} of at most {bound:.2f} (derived)",
    )


def _reached(trace_run: TraceRun) -> dict[str, int]:
    return {
        "evicted blocks": trace_run.tally.num_evicted,
        "preempted choices": trace_run.tally.num_preempted,
        "requests with a hit": sum(found > 0 for found in trace_run.tally.found.values()),
    }


def _given(trace: tuple[TraceRequest, ...], runs: Mapping[str, TraceRun], origin: Origin) -> tuple[Figure, ...]:
    """What the trace brings, and its lengths at the scale of the runs."""
    requests: tuple[Request, ...] = next(iter(runs.values())).requests if runs else ()
    lengths = [len(request.prompt) for request in requests]
    unscaled = [each.input_len for each in trace]
    scaled = "scaled, see docs/trace.md"
    return (
        _figure("requests", len(trace), "requests", Label.GIVEN, origin.note),
        _figure("unscaled_prompt_len_median", median(unscaled), "tokens", Label.GIVEN),
        _figure("unscaled_prompt_len_max", max(unscaled), "tokens", Label.GIVEN),
        _figure("prompt_tokens", sum(lengths), "tokens", Label.DERIVED, scaled),
        _figure("prompt_len_median", median(lengths), "tokens", Label.DERIVED, scaled),
        _figure("prompt_len_max", max(lengths), "tokens", Label.DERIVED, scaled),
    )


def _observed(name: str, trace_run: TraceRun) -> tuple[Figure, ...]:
    tally, outputs = trace_run.tally, [request.sampling.max_tokens for request in trace_run.requests]
    found = "tokens found when first admitted / prompt tokens"
    return (
        _figure(f"{name}.hit_rate", trace_run.hit_rate, "1", Label.OBSERVED, found),
        _figure(f"{name}.hit_rate_bound", trace_run.hit_rate_bound, "1", Label.DERIVED, "an infinite cache"),
        _figure(f"{name}.output_len_median", median(outputs), "tokens", Label.DERIVED, "scaled, see docs/trace.md"),
        _figure(f"{name}.output_len_max", max(outputs), "tokens", Label.DERIVED, "scaled, see docs/trace.md"),
        _figure(f"{name}.steps", tally.num_steps, "steps", Label.OBSERVED),
        _figure(f"{name}.computed_tokens", tally.num_computed, "tokens", Label.OBSERVED, "recomputed ones included"),
        _figure(f"{name}.preempted", tally.num_preempted, "choices", Label.OBSERVED),
        _figure(f"{name}.evicted", tally.num_evicted, "blocks", Label.OBSERVED),
        _figure(f"{name}.running_max", tally.max_running, "choices", Label.OBSERVED),
        _figure(f"{name}.waiting_max", tally.max_waiting, "choices", Label.OBSERVED),
    )


def _figure(name: str, value: float, unit: str, label: Label, note: str = "") -> Figure:
    return Figure(name, float(value), unit, label, note)


SUITE = Suite(IDENTIFIER, "trace mooncake", run, share_s=20.0)
