"""Applies operations to one world and keeps both counts of what was reached.

Owns the pairing of a World with its `Witness` (fed with moments) and its `EventReach` (fed with history records), and what
a machine may know of the state when it chooses the next operation. Never chooses one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from engine_under_test.caps import Caps
from engine_under_test.events import Event
from engine_under_test.types import Adapter, Snapshot
from models.build import world_from
from models.draft_reach import DraftReach
from models.event_reach import EventReach
from models.grammar_reach import GrammarReach
from models.reach import Reach, disagreements
from models.slot_reach import SlotReach
from models.witness import COUNTED_BY_BOTH, Witness
from models.world import World, no_collections
from properties.checkers import run_checkers
from properties.history import History, OpRecord
from properties.moment import Moment
from properties.op import Op, OpKind
from properties.verdict import Violation


class Driver:
    """One world under way. ``ops`` are those applied so far, no-ops included: a replay needs no more than them.
    ``may_wait``: see `World`."""

    def __init__(self, spec: Mapping[str, Any], build: Callable[..., World] = world_from, may_wait: bool = False) -> None:
        self.spec = dict(spec)
        self.witness = Witness()
        self.drafts = DraftReach()
        self.slots = SlotReach()
        self.grammars = GrammarReach()
        self.world = build(spec, on_moment=self._see, **({"may_wait": True} if may_wait else {}))
        self.ops: list[Op] = []
        self.evidence: Counter[str] = Counter()  # of checkers, by identifier
        self.crashed_checkers: list[str] = []
        self._of_history: Violation | None = None
        self._early: set[int] = set()  # plans whose result was handed in
        self.has_unsent = False
        self.has_landed = False
        self.are_fences_held = False

    def _see(self, moment: Moment) -> None:
        self.witness.see(moment)
        self.drafts.see(moment)
        self.slots.see(moment)
        self.grammars.see(moment)

    @property
    def caps(self) -> Caps:
        return self.world.caps

    @property
    def violation(self) -> Violation | None:
        return self.world.violation or self._of_history

    @property
    def snapshot(self) -> Snapshot:
        return self.world.snapshot

    @property
    def live(self) -> Iterable[tuple[str, int, int]]:
        """Choices that are live, in order of acceptance."""
        return self.world.facts.live()

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """Those that requests may name now, in a stable order."""
        return tuple(sorted(self.world.facts.adapters.listed, key=lambda each: (each.name, each.version)))

    def waiting_plans(self) -> list[int]:
        """Plans in flight whose result was not handed in yet, oldest first: LAND applies to the k-th of them."""
        return [plan_id for plan_id in self.snapshot.plans if plan_id not in self._early]

    def apply(self, op: Op) -> None:
        self.ops.append(op)
        waiting = self.waiting_plans()
        did = self.world.apply(op)
        if op.kind is OpKind.LAND and did and 0 <= op.k < len(waiting):
            self._early.add(waiting[op.k])
        self.has_landed |= did and op.kind in (OpKind.LAND, OpKind.STEP, OpKind.ABANDON)
        self.has_unsent = op.kind is OpKind.LAND or (self.has_unsent and op.kind not in _DELIVERING)
        if op.kind is OpKind.HOLD_FENCES:
            self.are_fences_held = op.on
        elif op.kind in (OpKind.DRAIN, OpKind.RESTART):
            self.are_fences_held = False

    def run(self, ops: Iterable[Op]) -> None:
        with no_collections():
            for op in ops:
                if self.world.is_over or self._of_history is not None:
                    return
                self.apply(op)

    def judge_history(self) -> None:
        """Behind the last operation: the sentences about a whole history. The first that is broken is the violation."""
        for verdict in run_checkers(self.world.history) if self.world.violation is None else ():
            self.evidence[verdict.identifier] += verdict.evidence
            self._of_history = self._of_history or verdict.violation
            if "crashed" in verdict.note:
                self.crashed_checkers.append(f"{verdict.identifier} {verdict.sentence}: {verdict.note}")

    def reached(self) -> tuple[Counter[str], tuple[str, ...]]:
        """What was reached, and where the two counts of it disagree. A target without events has one count only."""
        if not self.caps.has_events:
            return self.witness.counts, ()
        recount = EventReach(self.caps, str(self.spec.get("hasher", "blake2b")))
        for record, events in _by_op(self.world.history):
            recount.see(record.op, events)
        counts = recount.counts + self.drafts.counts + self.slots.counts + self.grammars.counts
        if (compared := self.world.device.num_rows_compared) > 0:
            counts[Reach.ROWS_KEPT.value] += compared
        return counts, disagreements(recount.counts, self.witness.counts, COUNTED_BY_BOTH)


def _by_op(history: History) -> Iterator[tuple[OpRecord, list[Event]]]:
    """Each operation of a history with the events that it caused."""
    current: OpRecord | None = None
    events: list[Event] = []
    for record in history.records:
        if isinstance(record, OpRecord):
            if current is not None:
                yield current, events
            current, events = record, []
        elif isinstance(record, Event):
            events.append(record)
    if current is not None:
        yield current, events


_DELIVERING = frozenset({OpKind.DELIVER, OpKind.STEP, OpKind.DRAIN})
