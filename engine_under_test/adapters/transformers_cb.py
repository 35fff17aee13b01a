"""transformers' continuous batching behind the target protocol, step by step on the CPU; the harness plays the model.

Owns the names of requests and choices on either side, and the translation of a prepared batch into a plan. Never decides
anything in transformers' place and repairs nothing: `plan` is its `prepare_next_batch`, `commit` its `update_batch`, and what
it raises passes through.

What transformers never promised is said in the caps: it refuses nothing at the door (the door here is ours, but for requests
that outgrow the cache), knows no tenants, adapters, media, deadlines or priorities, states no order of admission and no bound
on who runs, and answers a cancellation with silence, at its next iteration. So `abort` tells the user itself; until the batch
in flight has ended, the blocks of a cancelled choice are shown as held by that plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from engine_under_test.adapters.transformers_parts import Memory, Options, load_library, processor_for
from engine_under_test.adapters.transformers_rows import Row, rows_of
from engine_under_test.caps import Caps, DeclaredOrder, VictimSet
from engine_under_test.config import EngineConfig
from engine_under_test.kv.prefix_index import namespace_of
from engine_under_test.scheduling.door import refusal_at_the_door
from engine_under_test.types import (
    Admission,
    BlockCopy,
    FinishReason,
    Output,
    Plan,
    PlannedStep,
    PrefixEntry,
    RefusalReason,
    Request,
    Reservation,
    RowId,
    SequenceSnapshot,
    Snapshot,
    Status,
    StepResult,
)

_PLAIN_OPTIONS = Options()
_Tables = dict[str, tuple[int, ...]]


@dataclass(slots=True, eq=False)
class _Choice:
    """One choice. ``name``: its identifier in transformers. ``told``: the tokens that the user was told.

    ``has_begun``: a row of its present epoch was planned. ``goes_on``: the next row of its epoch goes on behind content that
    a fork or the swap pool brings.
    """

    name: str
    request: Request
    index: int
    incarnation: int
    epoch: int = 0
    told: list[int] = field(default_factory=list)
    is_known: bool = False  # to transformers: a choice behind the first comes with a fork
    has_begun: bool = False
    goes_on: bool = False
    has_ended: bool = False
    is_cancelled: bool = False

    @property
    def row_id(self) -> RowId:
        return RowId(self.request.request_id, self.index, self.incarnation, self.epoch)


@dataclass(frozen=True, slots=True)
class _Flight:
    """A batch that was prepared and not updated yet. ``counts``: the positions of each row, by name. ``io``: its tensors, the
    ``pair``-th of transformers' where there are two."""

    step: PlannedStep
    counts: dict[str, int]
    io: Any
    pair: int


class TransformersTarget:
    """The verbs of a plain target. Of `config`, adapters, order, depth, batching and chunking do not apply."""

    def __init__(self, config: EngineConfig, options: Options = _PLAIN_OPTIONS) -> None:
        self._processor = processor_for(config, options)
        self._scheduler = self._processor.scheduler
        self._ios = self._processor.inputs_and_outputs
        self._depth = 1 + options.overlap
        self._memory = Memory(self._processor)
        self._config = replace(config, num_blocks=self._memory.num_blocks)
        self._caps = caps_of(self._config, self._memory.num_host_blocks, 1 + options.overlap)
        self._choices: dict[str, _Choice] = {}  # by name
        self._lives: dict[str, list[_Choice]] = {}  # the latest life of each identifier
        self._incarnations: dict[str, int] = {}
        self._queued: list[_Choice] = []  # handed over, not yet taken from transformers' queue
        self._cancelling: list[str] = []  # names, while a batch is in flight
        self._outputs: list[Output] = []
        self._copies: list[BlockCopy] = []  # what transformers copied since the last plan
        self._flights: list[_Flight] = []  # oldest first
        self._early: dict[int, StepResult] = {}  # by plan, handed in before an older one
        self._num_plans = 0
        self._namespace = namespace_of(Request("", (0,)), config.model_revision)
        self._entries: dict[int, PrefixEntry] = {}  # by transformers' hash of a block

    @property
    def caps(self) -> Caps:
        return self._caps

    # ---- requests --------------------------------------------------------------------------------------------

    def add(self, request: Request) -> Admission:
        if (refusal := self._refusal(request)) is not None:
            return Admission(request.request_id, 0, *refusal)
        incarnation = self._incarnations[request.request_id] = self._incarnations.get(request.request_id, 0) + 1
        names = _names(request.request_id, request.sampling.n)
        if not self._names_in_use().isdisjoint(names):  # a cancelled life is on its way out
            names = _names(f"{request.request_id}#{incarnation}", request.sampling.n)
        life = [_Choice(name, request, index, incarnation) for index, name in enumerate(names)]
        life[0].is_known = True
        self._lives[request.request_id] = life
        self._choices.update((choice.name, choice) for choice in life)
        self._queued.append(life[0])
        sampling = request.sampling
        state = load_library().state(
            request_id=names[0],
            initial_tokens=list(request.prompt),
            num_children=sampling.n - 1,
            max_new_tokens=sampling.max_tokens,
            eos_token_id=list(sampling.stop_token_ids),
            streaming=True,
        )
        self._processor.input_queue.put(state)
        return Admission(request.request_id, incarnation)

    def _refusal(self, request: Request) -> tuple[RefusalReason, str] | None:
        """Our door, but for the length: transformers takes whatever it is given."""
        if request.tenant or request.cache_salt or request.media or request.deadline_s is not None:
            rule = "there are no tenants, salts, media and deadlines here"
            return RefusalReason.OUT_OF_RANGE, f"{rule}, found one in request {request.request_id!r}; send none"
        refusal = refusal_at_the_door(request, self._config, 0.0)
        if refusal is not None and refusal[0] is not RefusalReason.TOO_LONG:
            return refusal
        if any(not choice.has_ended for choice in self._lives.get(request.request_id, ())):
            rule = f"identifiers of live requests differ, found {request.request_id!r} again; choose another"
            return RefusalReason.DUPLICATE_ID, rule
        return None

    def _names_in_use(self) -> set[str]:
        """Identifiers under which transformers still has something."""
        scheduler = self._scheduler
        return {*scheduler.active_requests, *scheduler.waiting_requests, *(choice.name for choice in self._queued)}

    def abort(self, request_id: str) -> bool:
        live = [choice for choice in self._lives.get(request_id, ()) if not choice.has_ended]
        for choice in live:
            choice.has_ended = choice.is_cancelled = True
            self._outputs.append(self._output(choice, (), FinishReason.ABORT))
        self._cancelling += [choice.name for choice in live]
        self._cancel_at_rest()
        return bool(live)

    def _cancel_at_rest(self) -> None:
        """With nothing in flight: what `prepare_next_batch` begins with. One after the other, since transformers keeps
        cancellations in a set."""
        if self._flights:
            return
        names, self._cancelling = self._cancelling, []
        for name in names:
            self._processor.cancel_queue.put(name)
            self._processor._update_tp_group_state()
            self._queued.clear()
            for state in self._scheduler.clear_cancelled_requests():
                self._processor.offloading_manager.free_request_cpu_cache(state)

    # ---- plans -----------------------------------------------------------------------------------------------

    def plan(self) -> PlannedStep | None:
        if len(self._flights) >= self._depth:
            return None
        cancelling, self._cancelling = self._cancelling, []
        for name in cancelling:
            self._processor.cancel_queue.put(name)
        was_active = set(self._scheduler.active_requests)
        tables = {name: self._memory.table_of(name) for name in self._memory.allocator.block_table}
        has_batch = self._watched(self._processor.prepare_next_batch)
        self._queued.clear()
        preempted = self._put_out(was_active)
        if not has_batch:
            return None
        self._num_plans += 1
        # transformers may put a request without a token into a batch: nothing is computed for it. A batch of nothing stays one.
        pair = self._ios.current_pair if self._depth > 1 else 0
        io = self._ios.io_pairs[pair].host_io if self._depth > 1 else self._ios
        rows = [row for row in rows_of(io, self._memory, self._sampled_before()) if row.num_tokens]
        choices = [self._choices[row.name] for row in rows]
        hits = tuple(map(self._hits, rows, choices))
        step = PlannedStep(self._plan_of(rows, choices, hits), self._reservation_of(rows, hits, tables), preempted)
        for choice in choices:
            choice.has_begun, choice.goes_on = True, False
        self._flights.append(_Flight(step, {row.name: row.num_tokens for row in rows}, io, pair))
        if self._depth > 1:
            self._ios.swap_io_pairs()  # as behind each launch
        return step

    def _sampled_before(self) -> list[str] | None:
        """Who sampled in the batch in flight, in the order of its outputs: tokens that the next one takes over."""
        return list(self._flights[-1].io.req_id_to_new_token_position) if self._flights else None

    def _watched(self, verb: Callable[[], Any]) -> Any:
        """A verb of transformers. What it copied is part of the next plan, in front of its rows."""
        self._memory.stamp()
        answer = verb()
        size = self._memory.block_size
        self._copies += [BlockCopy(source, target, size) for source, target in self._memory.moves()]
        return answer

    def _put_out(self, was_active: set[str]) -> tuple[RowId, ...]:
        """Who waits again, or lies in the swap pool now, begins a new epoch when it comes back."""
        preempted = []
        for name, state in self._scheduler.waiting_requests.items():
            choice = self._choices[name]
            if name in was_active or (state.is_cpu_offloaded and not choice.goes_on):
                preempted.append(choice.row_id)
                choice.epoch += 1
                choice.has_begun = False
            choice.goes_on = state.is_cpu_offloaded
        return tuple(preempted)

    def _hits(self, row: Row, choice: _Choice) -> tuple[int, ...]:
        """What begins behind position 0, and was neither forked nor put out, was found in the prefix cache."""
        return () if choice.has_begun or choice.goes_on else row.table[: row.start // self._memory.block_size]

    def _plan_of(self, rows: list[Row], choices: list[_Choice], hits: tuple[tuple[int, ...], ...]) -> Plan:
        return Plan(
            plan_id=self._num_plans,
            generation=0,
            requests=tuple(choice.request for choice in choices),
            choices=tuple(choice.index for choice in choices),
            incarnations=tuple(choice.incarnation for choice in choices),
            epochs=tuple(choice.epoch for choice in choices),
            starts=tuple(row.start for row in rows),
            num_tokens=tuple(row.num_tokens for row in rows),
            token_ids=tuple(token for row in rows for token in row.tokens),
            num_pending=tuple(row.num_pending for row in rows),
            samples=tuple(row.samples for row in rows),
            hit_blocks=hits,
        )

    def _reservation_of(self, rows: list[Row], hits: tuple[tuple[int, ...], ...], before: _Tables) -> Reservation:
        had = [{*before.get(row.name, ()), *found} for row, found in zip(rows, hits, strict=True)]
        copies, self._copies = tuple(self._copies), []
        return Reservation(
            plan_id=self._num_plans,
            tables=tuple(row.table for row in rows),
            slots=tuple(slot for row in rows for slot in row.slots),
            new_blocks=tuple(
                tuple(block for block in self._memory.table_of(row.name) if block not in known)
                for row, known in zip(rows, had, strict=True)
            ),
            copies=copies,
        )

    def commit(self, result: StepResult) -> None:
        if result.generation == 0 and any(result.plan_id == flight.step.plan.plan_id for flight in self._flights):
            self._early.setdefault(result.plan_id, result)
        while self._flights and self._flights[0].step.plan.plan_id in self._early:
            flight = self._flights[0]
            self._update(flight, self._early.pop(flight.step.plan.plan_id))
        self._cancel_at_rest()

    def _update(self, flight: _Flight, result: StepResult) -> None:
        sampled = [token for tokens in result.tokens for token in tokens]
        flight.io.output_ids[0, : len(sampled)] = load_library().torch.tensor(sampled, dtype=load_library().torch.int32)
        states = [future.state for future in flight.io.requests_in_batch]
        if self._depth > 1:
            self._ios.current_pair = flight.pair
        self._watched(self._processor.update_batch)
        self._flights.pop(0)
        if self._depth > 1 and not self._flights:  # its loop has come to an end, and begins again with nobody before it
            for pair in self._ios.io_pairs:
                pair.host_io.req_id_to_new_token_position = {}
        self._learn_contents(states)
        self._greet_forks()
        self._route_outputs()

    def _learn_contents(self, states: list[Any]) -> None:
        """What a hash of a block stands for, so that the index can be read: transformers keeps the hashes only."""
        lib, size = load_library(), self._memory.block_size
        for state in states:
            tokens = state.initial_tokens + state.generated_tokens
            parent: int | None = None
            for start in range(0, len(tokens) - size + 1, size):
                piece = tuple(tokens[start : start + size])
                key = lib.block_hash(parent, list(piece))
                if key not in self._entries:
                    above = None if parent is None else self._entries[parent]
                    self._entries[key] = PrefixEntry(key.to_bytes(8, "little"), self._namespace, above, piece)
                parent = key

    def _greet_forks(self) -> None:
        """Choices that transformers made of their first one: with a copy of its blocks, or to be computed from the start."""
        active, waiting = self._scheduler.active_requests, self._scheduler.waiting_requests
        for life in self._lives.values():
            for choice in life[1:]:
                if not choice.is_known and (choice.name in active or choice.name in waiting):
                    choice.is_known = True
                    choice.goes_on = choice.name in active and life[0].has_begun

    # ---- outputs ---------------------------------------------------------------------------------------------

    def _route_outputs(self) -> None:
        news = self._processor.output_router.output_queue
        while not news.empty():
            told = news.get()
            choice = self._choices[told.request_id]
            if not choice.is_cancelled:  # of a batch that was in flight when it was
                self._tell(choice, told)

    def _tell(self, choice: _Choice, told: Any) -> None:
        """transformers hands out all tokens so far. Should it take one back, the user is told from the start again."""
        tokens, known = list(told.generated_tokens), choice.told
        index = len(known) if tokens[: len(known)] == known else 0
        news = tuple(tokens[index:])
        reason: FinishReason | None = None
        if told.error is not None:
            reason = FinishReason.ERROR
        elif told.status >= load_library().ended:
            is_stopped = bool(tokens) and tokens[-1] in choice.request.sampling.stop_token_ids
            reason = FinishReason.STOP if is_stopped else FinishReason.LENGTH
        output = self._output(choice, news, reason)
        self._outputs.append(replace(output, index=index, message=told.error or ""))
        choice.told = tokens
        choice.has_ended = reason is not None

    def _output(self, choice: _Choice, tokens: tuple[int, ...], reason: FinishReason | None) -> Output:
        request_id, index, incarnation, _ = choice.row_id
        return Output(request_id, index, incarnation, len(choice.told), tokens, reason)

    def take_outputs(self) -> tuple[Output, ...]:
        outputs, self._outputs = tuple(self._outputs), []
        return outputs

    def poll(self) -> int:
        return len(self._flights)

    def advance_clock(self, seconds: float) -> None:
        """Nothing here depends on time."""

    # ---- what is seen ----------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        memory, ledger = self._memory, self._memory.allocator.ledger
        free = memory.free()
        plans = tuple(flight.step.plan.plan_id for flight in self._flights)
        held = {plans[-1]: tuple(block for name in self._cancelling for block in memory.table_of(name))} if plans else {}
        unknown = PrefixEntry(b"", self._namespace, None, ())
        return Snapshot(
            block_size=memory.block_size,
            num_blocks=memory.num_blocks,
            generation=0,
            cache_generation=0,
            free=free,
            cached={memory.number(block): self._entries.get(key, unknown) for block, key in ledger.block_to_hash.items()},
            ref_counts=memory.ref_counts(free),
            reservations=held,
            pinned=(),
            quarantined={},
            plans=plans,
            unsettled=plans,
            waiting=tuple(self._waiting()),
            running=tuple(
                self._seen(name, state, Status.RUNNING)
                for name, state in self._scheduler.active_requests.items()
                if name not in self._cancelling
            ),
            host_blocks=memory.host_blocks_in_use(),
        )

    def _waiting(self) -> Iterator[SequenceSnapshot]:
        for name, state in self._scheduler.waiting_requests.items():
            if name not in self._cancelling:
                yield self._seen(name, state, Status.WAITING)
        for choice in self._queued:
            if choice.name not in self._cancelling:
                length = len(choice.request.prompt)
                yield SequenceSnapshot(*choice.row_id, Status.WAITING, length, length, 0, 0, 0, (), ())

    def _seen(self, name: str, state: Any, status: Status) -> SequenceSnapshot:
        """What lies in the swap pool is no block of the cache: the choice holds nothing meanwhile."""
        choice, table = self._choices[name], self._memory.table_of(name)
        mine = [flight for flight in self._flights if self._is_of(flight, name, choice)]
        in_flight = sum(flight.counts[name] for flight in mine)
        scheduled = 0 if state.is_cpu_offloaded else state.position_offset
        return SequenceSnapshot(
            *choice.row_id,
            status=status,
            prompt_len=len(choice.request.prompt),
            visible_len=len(state.initial_tokens) + len(state.generated_tokens),
            committed_len=scheduled - in_flight,
            scheduled_len=scheduled,
            allocated_len=len(table) * self._memory.block_size,
            table=table,
            reserved=(),
            plans=tuple(flight.step.plan.plan_id for flight in mine),
        )

    def _is_of(self, flight: _Flight, name: str, choice: _Choice) -> bool:
        """The batch holds a row of the choice's present epoch."""
        return name in flight.counts and choice.row_id in flight.step.plan.row_ids()


def _names(first: str, num_choices: int) -> list[str]:
    """How transformers names a request and the children that it forks from it."""
    return [first, *(f"{first}__child#{number}" for number in range(num_choices - 1))]


def caps_of(config: EngineConfig, num_host_blocks: int, depth: int) -> Caps:
    """What transformers promises. It states no bound of progress; one is needed to tell slow from never, and all that can be
    live in a small world is over long before this one."""
    slots = config.num_blocks * config.block_size
    return Caps(
        name=f"transformers {load_library().version}",
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        num_host_blocks=num_host_blocks,
        max_plans_in_flight=depth,
        has_stream_order=depth > 1,
        max_tokens_per_step=config.max_tokens_per_step,
        max_num_seqs=config.max_num_seqs,
        vocab_size=config.vocab_size,
        model_revision=config.model_revision,
        progress_bound=8 * slots + 64,
        overtake_bound=0,
        order=DeclaredOrder.UNDECLARED,
        victims=VictimSet.ANY_BUT_FIRST,
        evicts_on_demand=True,
        has_prefix_cache=config.prefix_cache,
        has_late_aborts=True,
        has_documented_keys=False,
        has_choices=True,
        has_namespaces=False,
        has_running_bound=False,
        has_length_check=False,
    )
