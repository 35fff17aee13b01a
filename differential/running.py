"""Runs requests through an engine on a real model, under a setting, and gathers tokens and logits of every choice.

Owns the recording between engine and runner, preemption on demand, and what a run has reached. Never a judgement
(`compare.py`). Logits are taken where a token was emitted: those of a row that was dropped belong to nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Protocol, cast

import torch

from differential.bucket_watch import BucketWatch, HasGraphs
from differential.compare import Emitted
from differential.faults import Due, StepwiseMemory, due_of, refusals, sick_product, with_sick_tokens
from differential.preempting import PreemptingScheduler
from differential.reached import count_event, count_plan
from differential.rows_watch import HasRows, RowsWatch
from differential.setting import Setting, World, encoder_of, weights_of
from differential.stores import HasStore, StoreWatch, Written
from differential.streamed_store import StreamedRunner, disorder_of
from differential.ways import ALLOCATIONS, counted
from engine_under_test.engine import Engine
from engine_under_test.errors import BadInput, RunnerError
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.scheduling.scheduler import Scheduler
from engine_under_test.seams import Device, Memory
from engine_under_test.types import FinishReason, Logprobs, Output, Plan, Request, Reservation, SamplingParams
from properties.invariants.scheduler_life import held_at_rest
from properties.verdict import Violation

MakeRunner = Callable[[World, Memory], Runner]
ROWS_COMPARED = "rows compared with plans"
_LAUNCHES_KEPT = 8
_TURNS_TO_REST = 1000  # of a slow device
_WARMED = "warm "  # in front of the name of a request that only fills the cache


class LaunchWithLogits(Protocol):
    """A launch of a runner that computes logits: raw ones, float32 [rows that sample, vocab]."""

    @property
    def logits(self) -> torch.Tensor: ...


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a run. ``reached``: how often each thing happened that the setting is about. ``written``: the cells of the
    store, plan by plan; ``due``: what was to come of faults; ``violation``: of the store or of a second try; ``disorder``: of
    accesses by streams."""

    emitted: tuple[Emitted, ...]
    plans: tuple[Plan, ...]
    reached: Mapping[str, int]
    written: tuple[Written, ...] = ()
    due: Due = field(default_factory=lambda: Due(Setting("plain")))
    description: str = ""
    violation: Violation | None = None
    disorder: Violation | None = None


class Recorder:
    """Stands between engine and runner: keeps plans and launches, and takes the logits of each token that is emitted."""

    def __init__(
        self,
        runner: Runner,
        memory: StepwiseMemory,
        watch: StoreWatch | None,
        rows: RowsWatch | None = None,
        buckets: BucketWatch | None = None,
    ) -> None:
        self._runner = runner
        self._memory = memory
        self.watch = watch
        self.rows = rows
        self.buckets = buckets
        self._launches: dict[int, tuple[Plan, Launch]] = {}
        self.plans: list[Plan] = []
        self.reached: Counter[str] = Counter()
        self.logits: dict[tuple[str, int], list[torch.Tensor]] = {}
        self.gone: list[tuple[int, int]] = []  # see `faults.due_of`

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        self._memory.begin()
        self.plans.append(plan)
        if self.buckets is not None:
            self.buckets.before(reservation)
        launch = self._runner.launch(plan, reservation)
        if self.watch is not None or self.rows is not None:
            self._look(plan, reservation, launch)
        self._launches[plan.plan_id] = plan, launch
        if len(self._launches) > _LAUNCHES_KEPT:
            del self._launches[next(iter(self._launches))]
        self._count(plan, reservation)
        return launch

    def _look(self, plan: Plan, reservation: Reservation, launch: Launch) -> None:
        """Waits for it. A launch tells the same each time it is asked, so that the engine hears it too."""
        try:
            result = launch.result()
        except RunnerError as error:
            result = None
            if self.rows is not None and not error.rows:
                self.rows.failed(plan, error)
        if self.watch is not None:
            self.watch.after(plan, reservation, has_run=result is not None)
        if self.rows is not None and result is not None:
            self.rows.after(plan, reservation, result)

    def observe(self, event: Event) -> None:
        """See `seams.Observer`."""
        count_event(self.reached, event)
        if event.kind is EventKind.EMITTED and event.row is not None and event.plan_id is not None:
            plan, launch = self._launches[event.plan_id]
            rows = list(compress(plan.row_ids(), plan.samples))
            if hasattr(launch, "logits"):  # fingerprints have none
                row = cast("LaunchWithLogits", launch).logits[rows.index(event.row)]
                self.logits.setdefault((event.row.request_id, event.row.choice), []).append(row.detach().cpu().clone())
        elif event.kind is EventKind.ABANDONED and event.plan_id is not None:
            if self.gone and self.gone[-1][1] == len(self.plans):
                self.reached["plans lost behind another"] += 1
                self.gone.pop()  # one that was lost with an older one
            self.gone.append((event.plan_id, len(self.plans)))

    def _count(self, plan: Plan, reservation: Reservation) -> None:
        decodes = sum(start >= len(request.prompt) for start, request in zip(plan.starts, plan.requests, strict=True))
        self.reached["steps"] += 1
        self.reached["steps of decodes alone"] += decodes == plan.num_rows
        count_plan(self.reached, plan)
        self.reached[f"steps of {plan.num_rows} rows"] += 1
        self.reached[ALLOCATIONS] += self._memory.asked[-1]
        self.reached["most rows"] = max(self.reached["most rows"], plan.num_rows)
        self.reached["prefills beside decodes"] += 0 < decodes < plan.num_rows
        for start, hits, request in zip(plan.starts, plan.hit_blocks, plan.requests, strict=True):
            if any(item.start < start < item.start + item.length for item in request.media):
                self.reached["hits that end inside an item" if hits else "items cut by a chunk"] += 1
        self.reached["blocks copied"] += len(reservation.copies)
        self.reached["blocks evicted"] += len(reservation.evicted)


def transformer_runner(world: World, memory: Memory) -> Runner:
    """The runner of a world."""
    from engine_under_test.execution.attention import choose_attention
    from engine_under_test.execution.transformer import TransformerRunner

    attention = choose_attention(torch.device("cpu"), world.setting.attention) if world.setting.attention else None

    weights = with_sick_tokens(weights_of(world.model), world.setting)

    def make(device: Device | None) -> TransformerRunner:
        return TransformerRunner(
            weights,
            world.config.num_blocks,
            world.config.block_size,
            attention=attention,
            device=device,
            memory=memory,
            is_batch_invariant=world.setting.is_batch_invariant,
            packs_weights=world.setting.packs_weights,
            buckets=world.setting.buckets,
            media=encoder_of(world.model),
            product=sick_product(weights, world.setting),
        )

    return StreamedRunner(world.setting, make, world.config.block_size) if world.setting.streams else make(None)


def run(
    world: World, requests: Sequence[Request], make_runner: MakeRunner = transformer_runner, *, watches_store: bool = True
) -> Ran:
    """Runs the requests as the setting says, until nothing is left. A request that is refused is a BadInput.

    `watches_store`: the store is compared after each launch; dear where it is large.
    """
    asked = [replace(each, sampling=replace(each.sampling, n=max(world.setting.choices, each.sampling.n))) for each in requests]
    memory = StepwiseMemory(world.setting.refuses)
    runner = make_runner(world, memory)
    watch = StoreWatch(runner, world.config.block_size) if watches_store and isinstance(runner, HasStore) else None
    rows = RowsWatch(runner, world.config.block_size, world.setting) if isinstance(runner, HasRows) else None
    buckets = BucketWatch(runner) if world.setting.buckets and isinstance(runner, HasGraphs) else None
    recorder = Recorder(runner, memory, watch, rows, buckets)
    scheduler = _scheduler(world.setting, asked)
    engine = Engine(world.config, recorder, observer=recorder.observe, scheduler=scheduler)
    outputs: list[Output] = []
    with counted(recorder.reached):
        if world.setting.is_warm:
            _serve(engine, world, [_warming(each) for each in asked], outputs, recorder)
            recorder.reached.clear()
        _serve(engine, world, asked, outputs, recorder)
        disorder = disorder_of(runner)
    if isinstance(runner, StreamedRunner):
        recorder.reached["operations on streams"] += runner.device.num_run
    if buckets is not None:
        recorder.reached.update(buckets.reached())
    if rows is not None:
        recorder.reached[ROWS_COMPARED] += rows.num_compared
    due = due_of(world.setting, recorder.plans, memory.refused, recorder.gone)
    found = [each.violation for each in (rows, watch, due) if each is not None and each.violation is not None]
    if not engine.has_work and (held := _held_at_rest(engine)) is not None:
        found.append(held)
    return Ran(
        emitted=tuple(gather(asked, outputs, recorder)),
        plans=tuple(recorder.plans),
        reached={**recorder.reached, **refusals(world.setting, memory)},
        written=() if watch is None else tuple(watch.written),
        due=due,
        description=getattr(runner, "description", ""),
        violation=found[0] if found else None,
        disorder=disorder,
    )


def _scheduler(setting: Setting, requests: Sequence[Request]) -> Scheduler | None:
    if not setting.preempts_at:
        return None
    chosen = [each for each in requests if setting.preempts in ("", each.request_id)]
    return PreemptingScheduler(chosen, setting.preempts_at)


def _serve(engine: Engine, world: World, requests: Sequence[Request], outputs: list[Output], recorder: Recorder) -> None:
    bound = _most_steps(requests)
    for request in requests:
        admission = engine.submit(request)
        if not admission.is_accepted:
            raise BadInput(f"a request of a comparison must be accepted, found {request.request_id}: {admission.message}")
        steps = bound if world.setting.is_alone else world.setting.gap
        while engine.has_work and steps > 0:
            _step(engine, world, recorder)
            steps -= 1
    while engine.has_work and bound > 0:
        _step(engine, world, recorder)
        bound -= 1
    outputs += engine.take_outputs()


def _step(engine: Engine, world: World, recorder: Recorder) -> None:
    """A step of the engine; or one of which the host gives up the plan that it launches, behind one in flight."""
    last = recorder.gone[-1][1] if recorder.gone else 0
    is_due = world.setting.loses and len(recorder.plans) + 1 - last >= world.setting.loses
    if is_due and 0 < len(engine.plans_in_flight) < world.config.max_plans_in_flight and (step := engine.reserve()) is not None:
        engine.launch(step)
        recorder.reached["plans given up behind one in flight"] += engine.abandon(step.plan.plan_id, "the host gave it up")
    else:
        engine.step()


def _held_at_rest(engine: Engine) -> Violation | None:
    """What is still held when all requests have ended and every fence had its time. (SC-11)"""
    for _ in range(_TURNS_TO_REST):
        engine.poll()
        if not engine.snapshot().unsettled:
            break
    return held_at_rest(engine.snapshot())


def _most_steps(requests: Sequence[Request]) -> int:
    """More than any healthy engine needs: whoever is not through by then has no end, and is judged by that."""
    return 50 + 6 * sum((len(each.prompt) + each.sampling.max_tokens) * each.sampling.n for each in requests)


def _warming(request: Request) -> Request:
    """The same prompt under another name, for a single greedy token."""
    sampling = SamplingParams(max_tokens=1, seed=request.sampling.seed)
    return replace(request, request_id=warmed(request.request_id), sampling=sampling)


def warmed(request_id: str) -> str:
    """The name under which a request fills the cache beforehand."""
    return _WARMED + request_id


def gather(requests: Sequence[Request], outputs: Sequence[Output], recorder: Recorder) -> Iterator[Emitted]:
    """Each choice with its tokens and logits."""
    tokens: dict[tuple[str, int], list[int]] = {}
    ends: dict[tuple[str, int], tuple[FinishReason, str]] = {}
    told: dict[tuple[str, int], tuple[Logprobs, ...]] = {}
    of_prompts: dict[tuple[str, int], tuple[Logprobs, ...]] = {}
    for output in outputs:
        key = output.request_id, output.choice
        tokens.setdefault(key, []).extend(output.token_ids)
        told[key] = told.get(key, ()) + output.logprobs
        of_prompts[key] = of_prompts.get(key, ()) + output.prompt_logprobs
        if output.finish_reason is not None:
            ends[key] = output.finish_reason, output.message
    for request in requests:
        for choice in range(request.sampling.n):
            key = request.request_id, choice
            rows = recorder.logits.get(key, [])
            end, message = ends.get(key, (None, ""))
            logits = torch.stack(rows) if rows else torch.empty(0, 0)
            of_choice = told.get(key, ()), of_prompts.get(key, ())
            yield Emitted(request, choice, tuple(tokens.get(key, ())), logits, end, message, *of_choice)
