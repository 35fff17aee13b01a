"""The scheduler alone, as a target: the real `Scheduler` over plain memory, nothing of the engine's KV or loop.

Owns the claim that its decisions are pure: each is asked for twice, and what the view shows must be the same before and after.
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from engine_under_test.adapters.ours import caps_of
from engine_under_test.caps import Caps
from engine_under_test.config import EngineConfig
from engine_under_test.events import Event
from engine_under_test.scheduling.scheduler import Scheduler, View
from engine_under_test.sequence import Sequence
from engine_under_test.types import Plan, Reservation, Snapshot
from models.targets.alone import Alone, Planner
from models.targets.plain_kv import PlainKv


class ImpureDecision(AssertionError):
    """A decision changed what it looked at, or was not the same when asked for again."""


class AskedTwice:
    """A planner whose every decision is asked for twice."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner

    def choose_victims(self, view: View) -> tuple[Sequence, ...]:
        before = _looks(view)
        victims = self._planner.choose_victims(view)
        _compare("victims", [seq.row_id for seq in victims], [seq.row_id for seq in self._planner.choose_victims(view)])
        _compare("the view after choose_victims", before, _looks(view))
        return victims

    def plan(self, view: View) -> Plan | None:
        before = _looks(view)
        plan = self._planner.plan(view)
        _compare("the plan", plan, self._planner.plan(view))
        _compare("the view after plan", before, _looks(view))
        return plan


def _compare(what: str, first: object, second: object) -> None:
    if first != second:
        raise ImpureDecision(f"a decision is a pure function of the view; {what}: first {first}, then {second}")


def _looks(view: View) -> tuple[object, ...]:
    """Everything that a decision may look at, as a value."""
    sequences = tuple(
        (
            *(seq.row_id, seq.status, seq.committed_len, tuple(seq.rows), tuple(seq.tokens), tuple(seq.table.blocks)),
            *(seq.table.num_owned, seq.pending_forks, seq.overtaken, seq.is_aged, seq.last_plan),
        )
        for seq in (*view.running, *view.waiting)
    )
    order = (len(view.running), view.next_plan_id, view.generation)
    return (sequences, order, view.num_free, view.num_quarantined, tuple(view.ref_counts))


class _PlainMemory:
    """`PlainKv` as the bookkeeping of `Alone` wants it."""

    def __init__(self, kv: PlainKv) -> None:
        self._kv = kv

    @property
    def num_free(self) -> int:
        return len(self._kv.free)

    @property
    def num_quarantined(self) -> int:
        return len(self._kv.quarantine)

    @property
    def ref_counts(self) -> Items[int]:
        return self._kv.ref_counts

    def is_free(self, block: int) -> bool:
        return block in self._kv.free

    def hits(self, _seq: Sequence) -> tuple[int, ...]:
        return ()

    def reserve(self, plan: Plan, seqs: Items[Sequence]) -> Reservation:
        return self._kv.reserve(plan, [seq.table for seq in seqs])

    def launch(self, plan_id: int) -> None:
        """Plain memory launches with the reservation."""

    def commit(self, plan_id: int) -> None:
        self._kv.commit(plan_id)

    def release(self, seq: Sequence) -> None:
        self._kv.release(seq.table, seq.row_id)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        self._kv.fork(parent.table, child.table)


class SchedulerAlone(Alone):
    """The plain verbs, with overlap and choices; no prefix cache, no faults."""

    def __init__(self, config: EngineConfig, planner: Planner | None = None) -> None:
        events: list[Event] = []
        self._kv = PlainKv(config.num_blocks, config.block_size, events)
        planner = AskedTwice(planner if planner is not None else Scheduler())
        super().__init__(config, planner, _PlainMemory(self._kv), scheduler_caps(config), events)

    def poll(self) -> int:
        return len(self.flights)

    def snapshot(self) -> Snapshot:
        kv, size = self._kv, self.config.block_size
        return Snapshot(
            size,
            self.config.num_blocks,
            self.generation,
            0,
            tuple(kv.free),
            {},
            tuple(kv.ref_counts),
            kv.reservations(),
            (),
            dict(kv.quarantine),
            tuple(kv.in_flight),
            tuple(kv.unsettled),
            tuple(seq.snapshot(size, None) for seq in self.waiting),
            tuple(seq.snapshot(size, kv.sources(seq.table) or None) for seq in self.running),
        )


def scheduler_caps(config: EngineConfig) -> Caps:
    """What our engine promises, less what only its memory and its loop can do."""
    ours = caps_of(config)
    return Caps(
        name="scheduler",
        block_size=ours.block_size,
        num_blocks=ours.num_blocks,
        max_tokens_per_step=ours.max_tokens_per_step,
        max_num_seqs=ours.max_num_seqs,
        vocab_size=ours.vocab_size,
        progress_bound=ours.progress_bound,
        overtake_bound=ours.overtake_bound,
        max_active_adapters=ours.max_active_adapters,
        adapters=ours.adapters,
        model_revision=ours.model_revision,
        order=ours.order,
        victims=ours.victims,
        max_plans_in_flight=ours.max_plans_in_flight,
        has_prefix_cache=False,
        has_choices=True,
        has_fences=True,
        has_events=True,
    )
