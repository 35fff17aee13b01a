"""Our engine behind the target protocol. Owns the test's hands on the seams: clock, fences, refused blocks, events."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from engine_under_test.book import Book
from engine_under_test.caps import Caps, DeclaredOrder, LinkFault, VictimSet
from engine_under_test.config import EngineConfig, Order
from engine_under_test.drafting import Drafting
from engine_under_test.engine import Engine
from engine_under_test.errors import BadInput
from engine_under_test.events import Counters, Event
from engine_under_test.execution.runner import Move, Mover
from engine_under_test.kv.prefix_index import blake2b_16
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.sampling.speculation import Proposer
from engine_under_test.seams import Clock, Fence, Grammars, Hasher, Observer
from engine_under_test.types import Adapter, Admission, Output, Plan, PlannedStep, Request, Reservation, Snapshot, StepResult

if TYPE_CHECKING:
    from engine_under_test.remote import RemotePrefixes


class RemoteSide(Protocol):
    """A remote pool and the link to it, in the hands of a test. ``load_bound_s``: see `Caps`."""

    @property
    def load_bound_s(self) -> float: ...

    def connect(self, kv: KvTransaction, book: Book, mover: Mover, clock: Clock, observer: Observer) -> RemotePrefixes:
        """The engine's end of it."""

    def disturb(self, fault: LinkFault) -> bool:
        """See `adapters.base.RemoteTarget`."""


class _HandClock:
    """A clock moved by hand."""

    __slots__ = ("_now",)

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


class _RefusingGate:
    """Refuses the k-th block from when it was told to, once."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: int | None = None

    def refuse(self, kth: int | None) -> None:
        self._left = kth

    def admit(self) -> bool:
        if self._left is None:
            return True
        self._left -= 1
        if self._left > 0:
            return True
        self._left = None
        return False


class _Launch:
    """A plan that the harness executes. Its fence passes once the plan is out of flight, unless fences are held."""

    __slots__ = ("_device", "plan_id")

    def __init__(self, plan_id: int, device: _HarnessDevice) -> None:
        self.plan_id = plan_id
        self._device = device

    @property
    def fence(self) -> Fence:
        return self

    def has_passed(self) -> bool:
        return not self._device.is_held and self.plan_id not in self._device.in_flight

    def result(self) -> StepResult:
        raise AssertionError("the harness executes plans and hands results in with `commit`")


class _HarnessDevice:
    """The runner that an engine under harness is given: it only takes note of what was launched, and hands on what moves."""

    __slots__ = ("in_flight", "is_held", "mover")

    def __init__(self) -> None:
        self.in_flight: set[int] = set()
        self.is_held = False
        self.mover: Mover | None = None

    @property
    def block_bytes(self) -> int:
        return self._attached().block_bytes

    def read_block(self, block: int) -> Move:
        return self._attached().read_block(block)

    def write_block(self, block: int, data: bytes) -> Move:
        return self._attached().write_block(block, data)

    def _attached(self) -> Mover:
        assert self.mover is not None  # `attach` comes first
        return self.mover

    def launch(self, plan: Plan, reservation: Reservation) -> _Launch:
        del reservation
        self.in_flight.add(plan.plan_id)
        return _Launch(plan.plan_id, self)


_ORDERS = {Order.FIRST_COME: DeclaredOrder.FIRST_COME, Order.PRIORITY: DeclaredOrder.PRIORITY}


class AssayTarget:
    """Every verb of `adapters.base`, transactional ones included."""

    def __init__(
        self,
        config: EngineConfig,
        hasher: Hasher | None = None,
        remote: RemoteSide | None = None,
        drafting: Drafting | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        self._clock = _HandClock()
        self._gate = _RefusingGate()
        self._device = _HarnessDevice()
        self._events: list[Event] = []
        self._remote = remote
        self._drafting = drafting
        self._engine = Engine(
            config,
            self._device,
            clock=self._clock,
            hasher=hasher if hasher is not None else blake2b_16,
            gate=self._gate,
            observer=self._events.append,
            remote=None if remote is None else self._connect,
            drafting=drafting,
            grammars=grammars,
        )
        self._caps = replace(caps_of(config), has_grammars=grammars is not None)
        if drafting is not None:
            self._caps = replace(self._caps, max_drafts=drafting.max_drafts)
        if remote is not None:
            self._caps = replace(
                self._caps,
                has_transfers=True,
                has_remote=True,
                load_bound_s=remote.load_bound_s,
                max_stored_blocks=config.num_blocks * 3 // 8,  # as docs/kv-transfers.md states
                max_held_blocks=config.num_blocks // 2,
                num_sought=8,
            )

    def _connect(self, kv: KvTransaction, book: Book) -> RemotePrefixes:
        assert self._remote is not None  # asked only then
        return self._remote.connect(kv, book, self._device, self._clock, self._events.append)

    @property
    def caps(self) -> Caps:
        return self._caps

    @property
    def remote(self) -> RemoteSide | None:
        """The remote pool and the link to it."""
        return self._remote

    @property
    def proposer(self) -> Proposer | None:
        """Who names drafts."""
        return None if self._drafting is None else self._drafting.proposer

    def add(self, request: Request) -> Admission:
        return self._engine.submit(request)

    def abort(self, request_id: str) -> bool:
        return self._engine.abort(request_id)

    def plan(self) -> PlannedStep | None:
        step = self._engine.reserve()
        if step is not None:
            self._engine.launch(step)
        return step

    def commit(self, result: StepResult) -> None:
        self._engine.commit(result)
        self._device.in_flight.intersection_update(self._engine.plans_in_flight)

    def take_outputs(self) -> tuple[Output, ...]:
        return self._engine.take_outputs()

    def poll(self) -> int:
        return self._engine.poll()

    def snapshot(self) -> Snapshot:
        return self._engine.snapshot()

    def advance_clock(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def reserve(self) -> PlannedStep | None:
        return self._engine.reserve()

    def launch(self, step: PlannedStep) -> None:
        self._engine.launch(step)

    def rollback(self, step: PlannedStep) -> None:
        self._engine.rollback(step)

    def abandon(self, plan_id: int, reason: str, to_blame: Collection[int] = (), *, distrusts: bool = True) -> bool:
        was_in_flight = self._engine.abandon(plan_id, reason, to_blame, distrusts=distrusts)
        self._device.in_flight.intersection_update(self._engine.plans_in_flight)
        return was_in_flight

    def refuse_block(self, kth: int | None) -> None:
        self._gate.refuse(kth)

    def hold_fences(self, held: bool) -> None:
        self._device.is_held = held

    def reset_cache(self) -> None:
        self._engine.reset_cache()

    def restart(self) -> None:
        self._engine.restart()
        self._device.in_flight.clear()

    def load_adapter(self, adapter: Adapter) -> bool:
        return _is_done(self._engine.load_adapter, adapter)

    def unload_adapter(self, adapter: Adapter) -> bool:
        return _is_done(self._engine.unload_adapter, adapter)

    def lookup(self, request: Request) -> tuple[int, ...]:
        return self._engine.lookup(request)

    def attach(self, mover: Mover) -> None:
        self._device.mover = mover

    def disturb(self, fault: LinkFault) -> bool:
        return self._remote is not None and self._remote.disturb(fault)

    def take_events(self) -> tuple[Event, ...]:
        events = tuple(self._events)
        self._events.clear()
        return events

    def counters(self) -> Counters:
        return self._engine.counters


def _is_done(verb: Callable[[Adapter], None], adapter: Adapter) -> bool:
    try:
        verb(adapter)
    except BadInput:
        return False
    return True


def caps_of(config: EngineConfig) -> Caps:
    """What our engine promises under `config`.

    Progress: the first in order is never preempted and is planned in every step; a prefill gets at least the budget that
    the decodes leave, so it emits within the steps of its prompt. Beside it one retry and the depth in flight are allowed.
    Without batching a step is its alone, so that one behind it waits for all that it still says; what runs together fits in
    the pool with all that it may say.
    Preemptions: a choice enters only if the whole of it fits beside who runs, so that only their growth can put it out again
    before it emits; seen are 2 in a row at most.
    """
    slots = config.num_blocks * config.block_size
    least_chunk = max(config.max_tokens_per_step - config.max_num_seqs, 1)
    of_the_first = 0 if config.batching else slots
    return Caps(
        name="assay",
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        max_tokens_per_step=config.max_tokens_per_step,
        max_num_seqs=config.max_num_seqs,
        vocab_size=config.vocab_size,
        progress_bound=-(-slots // least_chunk) + 4 * config.max_plans_in_flight + 4 + of_the_first,
        overtake_bound=0 if config.order is Order.FIRST_COME else config.max_overtakes,
        preemption_bound=6,
        max_active_adapters=config.max_active_adapters,
        adapters=config.adapters,
        num_adapter_slots=config.max_active_adapters,
        adapter_overtake_bound=config.max_adapter_overtakes if config.order is Order.FIRST_COME else 0,
        model_revision=config.model_revision,
        order=_ORDERS[config.order],
        victims=VictimSet.LAST_IN_ORDER,
        is_closed_behind_victims=True,
        max_plans_in_flight=config.max_plans_in_flight,
        has_prefix_cache=config.prefix_cache,
        has_lookup=True,
        has_choices=True,
        has_deadlines=True,
        has_reset=True,
        has_transaction=True,
        has_fences=True,
        has_restart=True,
        has_adapter_loads=True,
        has_events=True,
    )
