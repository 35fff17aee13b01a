"""A target around one part of the engine: the KV transaction under erratic plans, or the scheduler over plain memory.

Owns the bookkeeping between a planner and a memory, as plainly as the target protocol allows: no retries, no deadlines, no
memos. Whatever goes wrong in such a world is the part's own doing (or this file's), not that of `engine.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from dataclasses import replace
from typing import Protocol

from engine_under_test.caps import Caps
from engine_under_test.config import EngineConfig
from engine_under_test.errors import OutOfBlocks
from engine_under_test.events import Event, EventKind
from engine_under_test.kv.prefix_index import namespace_of
from engine_under_test.scheduling.door import refusal_at_the_door
from engine_under_test.scheduling.policy import key_for
from engine_under_test.scheduling.scheduler import View
from engine_under_test.sequence import PlannedRow, Sequence
from engine_under_test.types import (
    Adapter,
    Admission,
    FinishReason,
    Output,
    Plan,
    PlannedStep,
    RefusalReason,
    Request,
    Reservation,
    RowId,
    Status,
    StepResult,
)

_TRIES = 4  # a planner may ask for more than there is, and a block may be refused


class Planner(Protocol):
    """Decides, over a view; changes nothing."""

    def choose_victims(self, view: View) -> tuple[Sequence, ...]: ...
    def plan(self, view: View) -> Plan | None: ...


class Memory(Protocol):
    """What a plan is reserved in."""

    @property
    def num_free(self) -> int: ...
    @property
    def num_quarantined(self) -> int: ...
    @property
    def ref_counts(self) -> Items[int]: ...
    def is_free(self, block: int) -> bool: ...
    def hits(self, seq: Sequence) -> tuple[int, ...]: ...
    def reserve(self, plan: Plan, seqs: Items[Sequence]) -> Reservation: ...
    def launch(self, plan_id: int) -> None: ...
    def commit(self, plan_id: int) -> None: ...
    def release(self, seq: Sequence) -> None: ...
    def fork(self, parent: Sequence, child: Sequence) -> None: ...


class Flight:
    """A step that is reserved or in flight, its sequences, and those that it admitted."""

    def __init__(self, step: PlannedStep, seqs: list[Sequence], admitted: list[Sequence]) -> None:
        self.step = step
        self.seqs = seqs
        self.admitted = admitted


class Alone:
    """The verbs of a plain target, and the planner's view of itself. Subclasses bring memory, caps and snapshot."""

    def __init__(self, config: EngineConfig, planner: Planner, memory: Memory, caps: Caps, events: list[Event]) -> None:
        self.config = replace(config, max_adapter_overtakes=0)  # nobody counts here who is passed over
        self.caps = caps
        self.generation = 0
        self.next_plan_id = 1
        self.only: Collection[Sequence] | None = None
        self.may_admit = True  # False in the step in which somebody was preempted
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self._planner = planner
        self._memory = memory
        self._events = events
        self._key: Callable[[Sequence], tuple[int, ...]] = key_for(config.order)
        self.flights: deque[Flight] = deque()
        self._early: dict[int, StepResult] = {}
        self._outputs: list[Output] = []
        self._unforked: dict[str, int] = {}  # live requests, with the number of their choices that were never forked
        self._num_accepted = 0

    # ---- the planner's view ----

    num_loading = 0
    max_drafts = 0
    adapters_in_flight: Collection[Adapter] = ()  # there are no slots here

    @property
    def num_adapter_slots(self) -> int:
        return self.config.max_active_adapters

    @property
    def num_free(self) -> int:
        return self._memory.num_free

    @property
    def num_quarantined(self) -> int:
        return self._memory.num_quarantined

    @property
    def ref_counts(self) -> Items[int]:
        return self._memory.ref_counts

    def is_free(self, block: int) -> bool:
        return self._memory.is_free(block)

    def hits(self, seq: Sequence) -> tuple[int, ...]:
        return self._memory.hits(seq)

    def has_landed(self, seq: Sequence) -> bool:
        return all(seq not in flight.seqs for flight in self.flights)

    # ---- verbs ----

    def add(self, request: Request) -> Admission:
        refusal = refusal_at_the_door(request, self.config, 0.0)
        if refusal is None and request.request_id in self._unforked:
            refusal = (RefusalReason.DUPLICATE_ID, "an identifier must not be in use; wait for its end or use another")
        if refusal is not None:
            self._events.append(Event(EventKind.REFUSED, RowId(request.request_id, 0, 0, 0), reason=refusal[0].value))
            return Admission(request.request_id, 0, *refusal)
        self._num_accepted += 1
        number = self._num_accepted
        namespace = namespace_of(request, self.config.model_revision)
        can_fork = len(request.prompt) > 1
        for choice in range(1 if can_fork else request.sampling.n):
            seq = Sequence(request, choice, number, number, namespace)
            seq.pending_forks = request.sampling.n - 1 if can_fork else 0
            self._wait(seq)
        self._unforked[request.request_id] = request.sampling.n - 1 if can_fork else 0
        row = RowId(request.request_id, 0, number, 0)
        self._events.append(Event(EventKind.ACCEPTED, row, tokens=len(request.prompt)))
        return Admission(request.request_id, number)

    def abort(self, request_id: str) -> bool:
        if request_id not in self._unforked:
            return False
        mine = [seq for seq in (*self.running, *self.waiting) if seq.request.request_id == request_id]
        num_unforked, incarnation = self._unforked[request_id], mine[0].incarnation
        for seq in sorted(mine, key=lambda each: each.choice):
            self._tell(seq, (), FinishReason.ABORT)
            self._end(seq, FinishReason.ABORT)
        for choice in range(1, num_unforked + 1):
            row = RowId(request_id, choice, incarnation, 0)
            self._events.append(Event(EventKind.FINISHED, row, reason=FinishReason.ABORT.value))
            self._outputs.append(Output(request_id, choice, incarnation, 0, (), FinishReason.ABORT))
        self._unforked.pop(request_id, None)
        return True

    def plan(self) -> PlannedStep | None:
        flight = self.decide()
        if flight is not None:
            self.launch_flight(flight)
        return None if flight is None else flight.step

    def decide(self) -> Flight | None:
        if len(self.flights) >= self.caps.max_plans_in_flight:
            return None
        preempted = tuple(self._preempt(seq) for seq in self._planner.choose_victims(self))
        self.may_admit = not preempted
        for _ in range(_TRIES):
            plan = self._planner.plan(self)
            if plan is None:
                return None
            self.next_plan_id += 1
            seqs = [self._find(row) for row in plan.row_ids()]
            try:
                reservation = self._memory.reserve(plan, seqs)
            except OutOfBlocks as refused:
                self._events.append(Event(EventKind.ROLLED_BACK, plan_id=plan.plan_id, reason=str(refused)))
                continue
            return self._apply(PlannedStep(plan, reservation, preempted), seqs)
        return None

    def _apply(self, step: PlannedStep, seqs: list[Sequence]) -> Flight:
        plan = step.plan
        admitted = [seq for seq in seqs if seq.status is Status.WAITING]
        for seq, count, samples, hits in zip(seqs, plan.num_tokens, plan.samples, plan.hit_blocks, strict=True):
            if seq in admitted:
                seq.committed_len = len(hits) * self.config.block_size
                self._run(seq)
            seq.rows += (PlannedRow(plan.plan_id, count, samples),)
        return Flight(step, seqs, admitted)

    def withdraw(self, flight: Flight) -> None:
        """A step that came to nothing has no rows any more; whom it admitted waits again."""
        for seq, row in zip(flight.seqs, flight.step.plan.row_ids(), strict=True):
            if seq.row_id == row:
                seq.rows = seq.rows[:-1]
        for seq in flight.admitted:
            if seq.status is Status.RUNNING and not seq.table.blocks:
                self.running.remove(seq)
                seq.committed_len = 0
                self._wait(seq)

    def forget_early(self, plan_id: int) -> None:
        self._early.pop(plan_id, None)

    def launch_flight(self, flight: Flight) -> None:
        self.flights.append(flight)
        for seq in flight.seqs:
            seq.last_plan = flight.step.plan.plan_id
        for number, seq in enumerate(flight.admitted):
            self._count_overtaken(seq, flight.admitted[:number])
        self._memory.launch(flight.step.plan.plan_id)

    def _count_overtaken(self, admitted: Sequence, before: Items[Sequence]) -> None:
        for seq in (*self.waiting, *before):
            seq.overtaken += seq.ordinal < admitted.ordinal
            seq.is_aged = seq.is_aged or seq.overtaken >= self.config.max_overtakes
        self.waiting.sort(key=self._key)
        self.running.sort(key=self._key)

    def commit(self, result: StepResult) -> None:
        plans = [flight.step.plan.plan_id for flight in self.flights]
        if result.generation != self.generation or result.plan_id not in plans:
            self._events.append(Event(EventKind.RESULT_DROPPED, plan_id=result.plan_id))
            return
        self._early.setdefault(result.plan_id, result)
        while self.flights and self.flights[0].step.plan.plan_id in self._early:
            flight = self.flights.popleft()
            self._confirm(flight, self._early.pop(flight.step.plan.plan_id))

    def _confirm(self, flight: Flight, result: StepResult) -> None:
        plan = flight.step.plan
        self._memory.commit(plan.plan_id)
        for number, seq in enumerate(flight.seqs):
            if seq.row_id != plan.row_id(number):
                self._events.append(Event(EventKind.ROW_DROPPED, plan.row_id(number), plan.plan_id))
                continue
            seq.rows = seq.rows[1:]
            seq.committed_len += plan.num_tokens[number]
            for token in result.tokens[number]:
                self._emit(seq, token, plan.plan_id)
        for seq in flight.seqs:
            if seq.status is Status.RUNNING and seq.pending_forks and not seq.rows and seq.committed_len == seq.goal_len:
                self._fork(seq)

    def _emit(self, seq: Sequence, token: int, plan_id: int) -> None:
        seq.tokens.append(token)
        self._events.append(Event(EventKind.EMITTED, seq.row_id, plan_id, tokens=1))
        reason = seq.finish_reason_after(token)
        self._tell(seq, (token,), reason)
        if reason is not None:
            self._end(seq, reason)

    def _fork(self, parent: Sequence) -> None:
        for choice in range(1, parent.pending_forks + 1):
            child = Sequence(parent.request, choice, parent.incarnation, parent.ordinal, parent.namespace)
            child.committed_len, child.last_plan, child.is_aged = parent.committed_len, parent.last_plan, parent.is_aged
            self._memory.fork(parent, child)
            self._run(child)
            self._events.append(Event(EventKind.FORKED, child.row_id, blocks=child.table.blocks))
        self._unforked[parent.request.request_id] = 0
        parent.pending_forks = 0

    # ---- moves between the lists ----

    def _wait(self, seq: Sequence) -> None:
        seq.status = Status.WAITING
        self.waiting.append(seq)
        self.waiting.sort(key=self._key)

    def _run(self, seq: Sequence) -> None:
        if seq in self.waiting:
            self.waiting.remove(seq)
        seq.status = Status.RUNNING
        self.running.append(seq)
        self.running.sort(key=self._key)

    def _preempt(self, seq: Sequence) -> RowId:
        row = seq.row_id
        self._events.append(Event(EventKind.PREEMPTED, row))
        self._memory.release(seq)
        self.running.remove(seq)
        seq.begin_again()
        self._wait(seq)
        return row

    def _end(self, seq: Sequence, reason: FinishReason) -> None:
        self._events.append(Event(EventKind.FINISHED, seq.row_id, reason=reason.value))
        self._memory.release(seq)
        (self.running if seq.status is Status.RUNNING else self.waiting).remove(seq)
        seq.end()
        request_id = seq.request.request_id
        is_last = all(other.request.request_id != request_id for other in (*self.running, *self.waiting))
        if is_last and not self._unforked[request_id]:
            del self._unforked[request_id]

    def _find(self, row: RowId) -> Sequence:
        return next(seq for seq in (*self.running, *self.waiting) if seq.row_id == row)

    def _tell(self, seq: Sequence, tokens: tuple[int, ...], reason: FinishReason | None) -> None:
        index = len(seq.tokens) - seq.prompt_len - len(tokens)
        self._outputs.append(Output(seq.request.request_id, seq.choice, seq.incarnation, index, tokens, reason))

    # ---- windows ----

    def take_outputs(self) -> tuple[Output, ...]:
        outputs, self._outputs = tuple(self._outputs), []
        return outputs

    def take_events(self) -> tuple[Event, ...]:
        events = tuple(self._events)
        self._events.clear()
        return events

    def advance_clock(self, seconds: float) -> None:
        """Nothing here depends on time."""
