"""The KV transaction alone, as a target: real `KvTransaction`, erratic plans, nothing of the engine's scheduler or loop.

Owns the erratic planner and the hands on the transaction (fences, refused blocks, pins). A plan is any legal one: odd chunks,
rows left out, needless victims, now and then more than there is, so that a reservation fails half way.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace

from engine_under_test.caps import Caps, VictimSet
from engine_under_test.config import EngineConfig, Order
from engine_under_test.events import Event
from engine_under_test.kv.prefix_index import namespace_of
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.scheduling.scheduler import View
from engine_under_test.seams import Hasher
from engine_under_test.sequence import Sequence
from engine_under_test.types import Adapter, Plan, PlannedStep, PrefixEntry, Request, Reservation, Snapshot
from models.targets.alone import Alone, Flight

_NEVER = 10**6  # a bound that an erratic planner does not promise


def chance(*numbers: int) -> int:
    """A number that looks drawn and is a pure function of where it is asked for (splitmix64's last steps)."""
    mixed = 0
    for number in numbers:
        mixed = (mixed ^ (number + 0x9E3779B97F4A7C15)) * 0xBF58476D1CE4E5B9 % 2**64
        mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB % 2**64
        mixed ^= mixed >> 31
    return mixed


@dataclass(slots=True)
class _Draft:
    """A plan in the making and what is left for it."""

    budget: int
    free: int
    seats: int
    rows: list[tuple[Sequence, int, int, tuple[int, ...]]] = field(default_factory=list)
    adapters: set[Adapter] = field(default_factory=set)
    revived: set[int] = field(default_factory=set)


class ErraticPlanner:
    """Every choice follows from the plan's number, so that a plan asked for twice is the same plan."""

    def choose_victims(self, view: View) -> tuple[Sequence, ...]:
        others = view.running[1:]
        if not others:
            return ()
        if chance(view.next_plan_id, 1) % 9 == 0:
            return (others[chance(view.next_plan_id, 2) % len(others)],)
        first = view.running[0]
        if view.num_free + view.num_quarantined or not _cost(view, first, first.scheduled_len, 1):
            return ()
        return tuple(reversed(others[-1 - chance(view.next_plan_id, 3) % 2 :]))

    def plan(self, view: View) -> Plan | None:
        config, number = view.config, view.next_plan_id
        overdraft = 2 if chance(number, 4) % 11 == 0 else 0
        draft = _Draft(config.max_tokens_per_step, view.num_free + overdraft, config.max_num_seqs)
        for seq in view.running:
            draft.seats -= seq.num_seats
            if seq.adapter is not None:
                draft.adapters.add(seq.adapter)
        for place, seq in enumerate(view.running):
            if place == 0 or chance(number, 5, place) % 4:
                self._add(view, draft, seq, seq.scheduled_len, ())
        for place, seq in enumerate(view.waiting if view.may_admit else ()):
            if (not draft.rows or chance(number, 6, place) % 4) and self._may_enter(view, draft, seq):
                hits = view.hits(seq)
                draft.free -= len(fresh := {block for block in hits if view.is_free(block)} - draft.revived)
                if self._add(view, draft, seq, len(hits) * config.block_size, hits):
                    draft.seats -= seq.num_seats
                    draft.revived |= fresh
                    if seq.adapter is not None:
                        draft.adapters.add(seq.adapter)
                else:
                    draft.free += len(fresh)
        return _plan_of(view, draft) if draft.rows else None

    def _may_enter(self, view: View, draft: _Draft, seq: Sequence) -> bool:
        is_known = seq.adapter is None or seq.adapter in draft.adapters
        has_place = is_known or len(draft.adapters) < view.config.max_active_adapters
        return draft.seats >= seq.num_seats and has_place and view.has_landed(seq)

    def _add(self, view: View, draft: _Draft, seq: Sequence, start: int, hits: tuple[int, ...]) -> bool:
        most = min(seq.goal_len - start, draft.budget)
        if most < 1 or len(draft.rows) >= view.config.max_num_seqs:
            return False
        count = 1 + chance(view.next_plan_id, 7, seq.ordinal, seq.choice) % most
        cost = _cost(view, seq, start, count, hits)
        if cost > draft.free:
            count, cost = 1, _cost(view, seq, start, 1, hits)
            if cost > draft.free:
                return False
        draft.rows.append((seq, start, count, hits))
        draft.budget -= count
        draft.free -= cost
        return True


def _cost(view: View, seq: Sequence, start: int, count: int, hits: tuple[int, ...] = ()) -> int:
    """Blocks that the row takes from the free queue, a copy on write included, its hits not."""
    blocks: Items[int] = hits or seq.table.blocks
    number, offset = divmod(start, view.config.block_size)
    copies = 1 if offset and view.ref_counts[blocks[number]] > 1 else 0
    return max(-(-(start + count) // view.config.block_size) - len(blocks), 0) + copies


def _plan_of(view: View, draft: _Draft) -> Plan:
    seqs = [seq for seq, _, _, _ in draft.rows]
    spans = [(start, start + count) for _, start, count, _ in draft.rows]
    ends = [(seq, end) for seq, (_, end) in zip(seqs, spans, strict=True)]
    return Plan(
        view.next_plan_id,
        view.generation,
        tuple(seq.request for seq in seqs),
        tuple(seq.choice for seq in seqs),
        tuple(seq.incarnation for seq in seqs),
        tuple(seq.epoch for seq in seqs),
        tuple(start for start, _ in spans),
        tuple(end - start for start, end in spans),
        tuple(token for seq, (start, end) in zip(seqs, spans, strict=True) for token in seq.tokens[start:end]),
        tuple(int(end > len(seq.tokens)) for seq, end in ends),
        tuple(end >= len(seq.tokens) and not seq.pending_forks for seq, end in ends),
        tuple(hits for _, _, _, hits in draft.rows),
    )


class _Gate:
    """Refuses the k-th block from when it was told to, once."""

    def __init__(self) -> None:
        self.left: int | None = None

    def admit(self) -> bool:
        if self.left is None:
            return True
        self.left = self.left - 1 or None
        return self.left is not None


class _Fence:
    def __init__(self, target: KvAlone, plan_id: int) -> None:
        self._target = target
        self._plan_id = plan_id

    def has_passed(self) -> bool:
        return self._target.has_passed(self._plan_id)


class _TransactionMemory:
    """`KvTransaction` as the bookkeeping of `Alone` wants it."""

    def __init__(self, kv: KvTransaction, target: KvAlone) -> None:
        self.kv = kv
        self._target = target

    @property
    def num_free(self) -> int:
        return self.kv.num_free

    @property
    def num_quarantined(self) -> int:
        return self.kv.num_quarantined

    @property
    def ref_counts(self) -> Items[int]:
        return self.kv.pool.ref_counts

    def is_free(self, block: int) -> bool:
        return bool(self.kv.pool.is_free[block])

    def hits(self, seq: Sequence) -> tuple[int, ...]:
        return self.kv.lookup(seq.table, (seq.goal_len - 1) // self.kv.block_size)

    def reserve(self, plan: Plan, seqs: Items[Sequence]) -> Reservation:
        return self.kv.reserve(plan, [seq.table for seq in seqs])

    def launch(self, plan_id: int) -> None:
        self.kv.launch(plan_id, _Fence(self._target, plan_id))

    def commit(self, plan_id: int) -> None:
        self.kv.commit(plan_id)

    def release(self, seq: Sequence) -> None:
        self.kv.release(seq.table, seq.row_id)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        self.kv.fork(parent.table, child.table)


class KvAlone(Alone):
    """Every verb of a transactional target but `restart`."""

    def __init__(self, config: EngineConfig, hasher: Hasher) -> None:
        config = replace(config, order=Order.FIRST_COME)  # orders are the scheduler's business
        events: list[Event] = []
        self._gate = _Gate()
        self._kv = KvTransaction(config.num_blocks, config.block_size, hasher=hasher, gate=self._gate, observer=events.append)
        self._is_held = False
        self._is_starved = False
        self._pinned: tuple[int, ...] = ()
        self._reserved: Flight | None = None
        super().__init__(config, ErraticPlanner(), _TransactionMemory(self._kv, self), kv_caps(config), events)

    def has_passed(self, plan_id: int) -> bool:
        return not self._is_held and all(flight.step.plan.plan_id != plan_id for flight in self.flights)

    def poll(self) -> int:
        """Fences pass, and transfers begin and end, unless a plan is reserved: none lasts when nobody is live or nothing could
        be planned beside it."""
        self._kv.settle()
        if self._reserved is not None:
            return len(self.flights)
        if self._is_starved or not self.running:
            self._pin(())
        elif chance(self.next_plan_id, 8) % 5 == 0:
            self._pin(self._pinnable())
        return len(self.flights)

    def plan(self) -> PlannedStep | None:
        self._kv.settle()
        step = super().plan()
        self._is_starved = step is None
        return step

    def _pinnable(self) -> tuple[int, ...]:
        """What a transfer would read: the committed head of the first running sequence, or, every other time, the prefix
        that was freed last."""
        index, free = self._kv.index, self._kv.pool.free_order()
        cached = [block for block in free if block in index.entry_of]
        if cached and chance(self.next_plan_id, 16) % 2:
            entry: PrefixEntry | None = index.entry_of[cached[-1]]
            blocks: list[int] = []
            while entry is not None:
                blocks.insert(0, index.first_block(entry))
                entry = entry.parent
            return tuple(blocks)
        first = self.running[0]
        if first.table in self._kv.sources():
            return ()  # its head holds a copy in the making, which is not committed
        return tuple(first.table.blocks[: min(first.table.num_owned, 2)])

    def _pin(self, blocks: tuple[int, ...]) -> None:
        """One transfer at a time: the last one lets go when the next one begins."""
        if self._pinned:
            self._kv.unpin(self._pinned)
        self._pinned = blocks
        if blocks:
            self._kv.pin(blocks)

    def reserve(self) -> PlannedStep | None:
        self._reserved = self.decide()
        return None if self._reserved is None else self._reserved.step

    def launch(self, step: PlannedStep) -> None:
        assert self._reserved is not None
        assert self._reserved.step is step
        self.launch_flight(self._reserved)
        self._reserved = None

    def rollback(self, step: PlannedStep) -> None:
        assert self._reserved is not None
        self._kv.rollback(step.plan.plan_id)
        self.withdraw(self._reserved)
        self._reserved = None

    def abandon(self, plan_id: int, reason: str) -> bool:
        lost = self._kv.abandon(plan_id, reason)
        for _ in lost:
            flight = self.flights.pop()
            self.forget_early(flight.step.plan.plan_id)
            self.withdraw(flight)
        return bool(lost)

    def refuse_block(self, kth: int | None) -> None:
        self._gate.left = kth

    def hold_fences(self, held: bool) -> None:
        self._is_held = held

    def reset_cache(self) -> None:
        self._kv.reset_cache()

    def lookup(self, request: Request) -> tuple[int, ...]:
        seq = Sequence(request, 0, 0, 0, namespace_of(request, self.config.model_revision))
        return self._kv.lookup(seq.table, (len(request.prompt) - 1) // self.config.block_size)

    def snapshot(self) -> Snapshot:
        kv, size = self._kv, self.config.block_size
        sources = kv.sources()
        return Snapshot(
            size,
            self.config.num_blocks,
            self.generation,
            kv.cache_generation,
            kv.pool.free_order(),
            dict(kv.index.entry_of),
            tuple(kv.pool.ref_counts),
            kv.reservations(),
            kv.pinned,
            dict(kv.pool.quarantine),
            kv.plans_in_flight,
            kv.unsettled,
            tuple(seq.snapshot(size, None) for seq in self.waiting),
            tuple(seq.snapshot(size, sources.get(seq.table)) for seq in self.running),
        )


def kv_caps(config: EngineConfig) -> Caps:
    """An erratic planner promises no order and no bound."""
    return Caps(
        name="kv",
        block_size=config.block_size,
        num_blocks=config.num_blocks,
        max_tokens_per_step=config.max_tokens_per_step,
        max_num_seqs=config.max_num_seqs,
        vocab_size=config.vocab_size,
        progress_bound=_NEVER,
        overtake_bound=_NEVER,
        max_active_adapters=config.max_active_adapters,
        adapters=config.adapters,
        model_revision=config.model_revision,
        victims=VictimSet.ANY_BUT_FIRST,
        max_plans_in_flight=config.max_plans_in_flight,
        has_lookup=True,
        has_choices=True,
        has_reset=True,
        has_transaction=True,
        has_fences=True,
        has_transfers=True,
        has_events=True,
    )
