"""The only place from which state changes: applies the scheduler's decisions, runs the transaction, pairs results with plans.

    step  =  poll; reserve (victims preempted, plan, blocks); launch; when full or idle: land the oldest result

What a landed result does stands in `results.py`, who ends or is sent back in `ends.py`: both act for the engine alone, which
says when. Everything undetermined is handed in. The windows for an observer are `snapshot`, `counters` and the observer itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from engine_under_test.book import Book
from engine_under_test.clock import SystemClock
from engine_under_test.config import EngineConfig
from engine_under_test.drafting import Drafting
from engine_under_test.ends import Ends
from engine_under_test.errors import ConfigError, OutOfBlocks, ProtocolError, RunnerError
from engine_under_test.events import Counters
from engine_under_test.execution.runner import Runner
from engine_under_test.flights import Flights, InFlight
from engine_under_test.journal import Journal
from engine_under_test.kv.prefix_index import blake2b_16
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.results import Results
from engine_under_test.scheduling.door import refusal_at_the_door
from engine_under_test.scheduling.scheduler import Scheduler
from engine_under_test.seams import BlockGate, Clock, Grammars, Hasher, Observer
from engine_under_test.sequence import PlannedRow, Sequence
from engine_under_test.types import (
    Adapter,
    Admission,
    FinishReason,
    Output,
    PlannedStep,
    RefusalReason,
    Request,
    RowId,
    Snapshot,
    Status,
    StepResult,
)
from engine_under_test.window import NOTHING, snapshot_of

if TYPE_CHECKING:
    from engine_under_test.remote import RemotePrefixes  # an engine without a remote pool imports nothing of it

_WAITING = Status.WAITING  # looked up once: a member of an enumeration is dear


class Engine:
    """A paged-KV continuous-batching engine over any runner.

    Depth of overlap is ``config.max_plans_in_flight - 1``. Not thread-safe: one caller at a time. The runner must be built for
    the configuration's pool, block size and vocabulary. `submit`, then `step` while `has_work`, then `take_outputs`.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        clock: Clock | None = None,
        hasher: Hasher = blake2b_16,
        gate: BlockGate | None = None,
        observer: Observer | None = None,
        scheduler: Scheduler | None = None,
        remote: Callable[[KvTransaction, Book], RemotePrefixes] | None = None,
        drafting: Drafting | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        if grammars is not None and grammars.vocab_size != config.vocab_size:
            raise ConfigError(
                f"grammars must be compiled for the vocabulary of the engine, {config.vocab_size} tokens, found "
                f"{grammars.vocab_size}; hand in those of this model"
            )
        self.config = config
        self._grammars = grammars
        self._journal = Journal(observer)
        self._runner = runner
        self._clock = clock if clock is not None else SystemClock()
        self._scheduler = scheduler if scheduler is not None else Scheduler()
        self._kv = KvTransaction(
            config.num_blocks,
            config.block_size,
            hasher=hasher,
            gate=gate,
            observer=observer,
            has_prefix_cache=config.prefix_cache,
        )
        self._book = Book(config, self._kv)
        self._drafting = drafting
        if drafting is not None:
            self._book.max_drafts = drafting.max_drafts
        self._in_flight = Flights()
        self._remote = None if remote is None else remote(self._kv, self._book)
        self._ends = Ends(self._book, self._kv, self._journal, self._clock, self._remote, drafting)
        self._results = Results(self._book, self._kv, self._journal, self._ends, self._remote, drafting)
        self._reserved: InFlight | None = None
        self._next_ordinal = 1
        self._last = NOTHING  # the last snapshot

    # ---- the user's verbs ---------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> Admission:
        """Accepts the request, or refuses it with a reason and keeps nothing of it."""
        refusal = refusal_at_the_door(request, self.config, self._clock.now(), self._book.adapters.listed, self._grammars)
        if refusal is None and request.request_id in self._book.live:
            message = f"an identifier must not be in use, found {request.request_id!r} live; wait for its end or use another"
            refusal = (RefusalReason.DUPLICATE_ID, message)
        if refusal is not None:
            self._journal.refused(request.request_id, refusal[0].value)
            return Admission(request.request_id, 0, *refusal)
        ordinal = self._next_ordinal
        self._next_ordinal += 1
        self._book.open(request, ordinal)
        self._journal.accepted(request, ordinal)
        return Admission(request.request_id, ordinal)

    def abort(self, request_id: str) -> bool:
        """Ends every live choice of the request at once. False if it is not live."""
        self._require_no_reservation()
        live = self._book.live.get(request_id)
        if live is None:
            return False
        self._ends.end_request(live, FinishReason.ABORT)
        return True

    def stop_choice(self, request_id: str, choice: int, incarnation: int | None = None) -> bool:
        """Ends one choice at once, as a stop token would; its siblings go on. False if it is not live or has no token yet.
        ``incarnation``: of the request that is meant, where its name may have come back for another one."""
        self._require_no_reservation()
        live = self._book.live.get(request_id)
        if live is None or live.incarnation != (incarnation or live.incarnation):
            return False
        seq = live.choices.get(choice)
        if seq is None or choice not in live.open_choices or len(seq.tokens) == seq.prompt_len:
            return False
        self._journal.cut_short(seq.row_id, len(seq.tokens) - seq.prompt_len, FinishReason.STOP, "")
        self._ends.close(live, seq, FinishReason.STOP)
        return True

    def load_adapter(self, adapter: Adapter) -> None:
        """From now on requests may name it, and no older version of its name; who named one goes on with that. The weights
        must be where the runner looks for them. Raises BadInput if the version is not higher than every earlier one."""
        self._require_no_reservation()
        self._book.adapters.load(adapter)

    def unload_adapter(self, adapter: Adapter) -> None:
        """From now on no request may name it. Who did goes on, and it is kept until the last of them has ended
        (`adapters`). Raises BadInput if it is not loaded."""
        self._require_no_reservation()
        self._book.adapters.unload(adapter)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Those whose weights are needed: that requests may name, or that live requests still name."""
        return self._book.adapters.kept

    def take_outputs(self) -> tuple[Output, ...]:
        """What users are to be told since the last call, in order."""
        return self._journal.take_outputs()

    @property
    def counters(self) -> Counters:
        """Totals since the engine began (SC-14)."""
        return self._journal.counters

    @property
    def plans_in_flight(self) -> tuple[int, ...]:
        """Launched, neither committed nor abandoned; oldest first."""
        return self._kv.plans_in_flight

    @property
    def has_work(self) -> bool:
        """True while some request has not ended: go on calling `step`."""
        return bool(self._book.live)

    def step(self) -> None:
        """One iteration; at depth 0: plan, run and commit one step. What came of it is fetched with `take_outputs`."""
        self.poll()
        has_room = len(self._in_flight) < self.config.max_plans_in_flight
        step = self.reserve() if has_room else None
        if step is not None:
            self.launch(step)
        if self._in_flight and (step is None or len(self._in_flight) == self.config.max_plans_in_flight):
            self._land_oldest()

    # ---- the stages of a step -----------------------------------------------------------------------------------------

    def poll(self) -> int:
        """Passes fences and deadlines, lets transfers move, unless a step is reserved; the number of plans in flight."""
        self._settle()
        if self._remote is not None and self._reserved is None:
            self._journal.counters.evicted += self._remote.step()
            self._book.num_loading = self._remote.num_loading
        return len(self._in_flight)

    def _settle(self) -> None:
        self._kv.settle()
        if self._book.adapters.has_pins:
            self._book.adapters.settle(self._kv.unsettled, None if self._reserved is None else self._reserved.plan_id)
        if self._book.deadlines and self._reserved is None:
            self._ends.expire()

    def reserve(self) -> PlannedStep | None:
        """Decides the next step and takes what it needs; None if nothing may run now."""
        self._require_no_reservation()
        self._settle()
        book = self._book
        if self._in_flight.has_second_try():
            return None
        preempted: list[RowId] = []
        scheduler, by_row = self._scheduler, book.by_row
        while True:
            if victims := scheduler.choose_victims(book):
                preempted += [self._ends.preempt(seq) for seq in victims]
            book.may_admit = not preempted
            if self._drafting is not None:
                self._drafting.ask(book, self._grammars)
            plan = scheduler.plan(book)
            is_second_try = book.only is not None
            if plan is None:
                if not is_second_try:
                    return None
                book.only = None
                continue
            book.next_plan_id += 1
            seqs = [by_row[request.request_id, choice] for request, choice in zip(plan.requests, plan.choices, strict=True)]
            try:
                reservation = self._kv.reserve(plan, [seq.table for seq in seqs])
            except OutOfBlocks as refused:
                self._journal.blocks_refused(plan.plan_id, str(refused))
                self._ends.try_half(seqs, is_second_try, str(refused))
                continue
            if any(seq.adapter is not None for seq in seqs):
                running = {seq.adapter for seq in book.running if seq.adapter is not None}
                reservation = book.adapters.assign(reservation, [seq.adapter for seq in seqs], running)
            step = PlannedStep(plan, reservation, tuple(preempted))
            self._reserved = self._apply(step, seqs, is_second_try)
            return step

    def _apply(self, step: PlannedStep, seqs: list[Sequence], is_second_try: bool) -> InFlight:
        """The reserved step's rows are in flight; waiting sequences among them run."""
        plan = step.plan
        plan_id = plan.plan_id
        admitted = []
        for seq, count, samples, hits in zip(seqs, plan.num_tokens, plan.samples, plan.hit_blocks, strict=True):
            seq.rows += (PlannedRow(plan_id, count, samples),)
            if seq.status is _WAITING:
                admitted.append(seq)
                seq.committed_len = len(hits) * self.config.block_size
                self._book.leave(seq)
                self._book.run(seq)
        return InFlight(step, seqs, admitted, is_second_try)

    def launch(self, step: PlannedStep) -> None:
        """Hands a reserved step to the runner. If the runner refuses it, the step is abandoned and tried again by half."""
        flight = self._take_reserved(step)
        plan_id = step.plan.plan_id
        self._in_flight.add(flight)
        self._book.oldest_in_flight = self._in_flight.oldest_id
        for seq in flight.seqs:
            seq.last_plan = plan_id
        if flight.admitted:
            self._book.count_overtakes(flight.admitted)
        self._journal.launched(flight, self.config.block_size)
        if self._drafting is not None:
            self._drafting.launched(plan_id)
        try:
            flight.launch = self._runner.launch(step.plan, step.reservation)
        except RunnerError as error:
            self._kv.launch(plan_id, _PASSED)
            self.abandon(plan_id, str(error), error.rows, distrusts=error.distrusts)
            return
        self._kv.launch(plan_id, flight.launch.fence)

    def rollback(self, step: PlannedStep) -> None:
        """Undoes `reserve`; preemptions that made room for it stay."""
        flight = self._take_reserved(step)
        self._kv.rollback(step.plan.plan_id)
        if step.reservation.adapter_slots:
            self._book.adapters.rolled_back(step.plan.plan_id)
        self._journal.counters.rolled_back += 1
        self._ends.withdraw(flight)

    def commit(self, result: StepResult) -> None:
        """Applies a result, or drops it whole if its plan is not in flight, or keeps it until its turn has come.

        Raises ProtocolError, and changes nothing, if the result is not what its plan asked for.
        """
        self._require_no_reservation()
        if not self._in_flight.accept(result, self._book.generation, self.config.vocab_size):
            self._journal.result_dropped(result.plan_id)
            return
        while (due := self._in_flight.pop_due()) is not None:
            self._book.oldest_in_flight = self._in_flight.oldest_id
            if due[0].is_second_try:
                self._book.only = None
            self._results.apply(*due)

    def abandon(self, plan_id: int, reason: str, to_blame: Collection[int] = (), *, distrusts: bool = True) -> bool:
        """The plan and every later one are lost; its rows are tried once more by half. False if it is not in flight.

        If it is known which rows of the plan are `to_blame`, they end, and nobody needs to be tried by half; what they read is
        not found by anybody any more if that may be the cause (`distrusts`).
        """
        self._require_no_reservation()
        abandoned = self._kv.abandon(plan_id, reason)
        if not abandoned:
            return False
        lost = [self._in_flight.pop_newest() for _ in abandoned]
        self._book.oldest_in_flight = self._in_flight.oldest_id
        self._book.adapters.abandoned([flight.step.reservation for flight in lost])
        for flight in lost:
            self._journal.counters.abandoned += 1
            self._ends.withdraw(flight)
        culprit = lost[-1]
        seqs = culprit.current()
        if to_blame:
            for row in to_blame if distrusts else ():  # whoever has the same prefix would be blamed next
                self._kv.distrust(culprit.step.reservation.tables[row])
            blamed = {culprit.step.plan.row_id(row) for row in to_blame}
            seqs = [seq for seq in seqs if seq.row_id in blamed]
        self._ends.try_half(seqs, culprit.is_second_try or bool(to_blame), reason)
        return True

    def reset_cache(self) -> None:
        """Empties the prefix index. Results in flight stay valid but publish nothing."""
        self._require_no_reservation()
        self._kv.reset_cache()
        if self._remote is not None:
            self._remote.reset()
            self._book.num_loading = 0

    def restart(self) -> None:
        """A new generation: memory starts anew, results in flight are void, live requests begin again."""
        self._require_no_reservation()
        book = self._book
        book.generation += 1
        book.oldest_in_flight = None
        book.only = None
        self._in_flight.clear()
        self._kv.restart()
        book.adapters.restart()
        if self._remote is not None:
            self._remote.restart()
            book.num_loading = 0
        for seq in list(book.running):
            self._ends.begin_again(seq)

    def _land_oldest(self) -> None:
        flight = self._in_flight.oldest
        assert flight is not None  # asked only when something is in flight,
        assert flight.launch is not None  # and everything in flight was launched
        try:
            result = flight.launch.result()
            self.commit(result)
        except (RunnerError, ProtocolError) as error:
            known = error if isinstance(error, RunnerError) else RunnerError(str(error))
            self.abandon(flight.plan_id, str(error), known.rows, distrusts=known.distrusts)

    def _require_no_reservation(self) -> None:
        if self._reserved is not None:
            raise ProtocolError("a reserved step must be launched or rolled back before anything else")

    def _take_reserved(self, step: PlannedStep) -> InFlight:
        flight = self._reserved
        if flight is None or flight.step is not step:
            raise ProtocolError("only the step that was reserved last can be launched or rolled back, once")
        self._reserved = None
        return flight

    # ---- windows ----------------------------------------------------------------------------------------------------------

    def lookup(self, request: Request) -> tuple[int, ...]:
        """The blocks that the request would find in the prefix cache if it were admitted now."""
        seq = Sequence(request, 0, 0, 0, self._book.namespace(request))
        return self._kv.lookup(seq.table, (seq.goal_len - 1) // self.config.block_size)

    def snapshot(self) -> Snapshot:
        """Everything the harness may see. Copies; changes nothing. See `window.snapshot_of`."""
        self._last = made = snapshot_of(self._kv, self._book, self._last)
        return made


class _Passed:
    """The fence of a step that never reached the device."""

    def has_passed(self) -> bool:
        return True


_PASSED = _Passed()
