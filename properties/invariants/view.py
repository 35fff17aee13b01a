"""What several predicates derive from the same moment, derived once: what changed in it, and which evidence it holds.

Owns the differences between the two snapshots of a moment and the columns of its plan and result, remembered for the last
moment. Judges nothing. What comes from one snapshot alone stands in `reading`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, compress, repeat
from operator import attrgetter, is_not, itemgetter
from typing import Final, cast

from engine_under_test.events import EventKind
from engine_under_test.types import Output, PlannedStep, PrefixEntry, RowId, SequenceSnapshot
from properties.invariants.reading import (
    COLUMNS,
    ChoiceKey,
    Derived,
    PlanReading,
    Reading,
    RowKey,
    plan_reading,
)
from properties.moment import ChoiceFacts, Content, Happening, Moment

SEQUENCES: Final = ("running", "waiting")
TABLES: Final = "tables"  # of `running` and `waiting` nothing but the tables
BITS: Final = {column: 1 << number for number, column in enumerate((*COLUMNS, TABLES))}
"""The columns of a snapshot as bits, as `View.changed` says them."""
EVERY_COLUMN: Final = sum(BITS.values())
_FREE, _CACHED, _RUNNING, _TABLES = BITS["free"], BITS["cached"], BITS["running"], BITS[TABLES]
_SEQUENCES: Final = sum(BITS[column] for column in SEQUENCES)
_MOST_CHANGED: Final = (1 << len(COLUMNS)) - 1  # beyond, another generation or pool

_row_of = cast("Callable[[SequenceSnapshot], RowKey]", itemgetter(slice(4)))
_NONE: Final = repeat(None)
_reason_of = attrgetter("finish_reason")  # of an Output
_nothing: Final[frozenset[int]] = frozenset()

EVIDENCE: Final = (
    "changed index",  # the index is another one, or an audit looks at all of it
    "commits or changed index",
    "drafts",  # of a plan, or of the plan of a result
    "evicted blocks",
    "freed blocks",
    "freed cached blocks",
    "hits",
    "late rows",
    "no plan",
    "older epochs",  # a plan is in flight, and a planned row was preempted before
    "outdated blocks",
    "owed hits",
    "preempted rows",
    "retried rows",
    "taken blocks",
    "told ends",
    "told frees",
    "told publications",
    "touched entries",
    "victims",
)
"""What a moment may hold for a predicate to look at; most moments hold little of it."""

(
    _CHANGED_INDEX, _COMMITS_OR_CHANGED_INDEX, _DRAFTS, _EVICTED, _FREED, _FREED_CACHED, _HITS, _LATE_ROWS, _NO_PLAN,
    _OLDER_EPOCHS, _OUTDATED, _OWED_HITS, _PREEMPTED, _RETRIED, _TAKEN, _TOLD_ENDS, _TOLD_FREES, _TOLD_PUBLICATIONS, _TOUCHED,
    _VICTIMS,
) = (1 << number for number in range(len(EVIDENCE)))  # fmt: skip

_FREED_EVENT: Final = id(EventKind.FREED)
_PUBLISHED_EVENT: Final = id(EventKind.PUBLISHED)


def bits_of(evidence: Iterable[str]) -> int:
    """The names of `EVIDENCE` as bits, as `View.evidence` says them."""
    return sum(1 << EVIDENCE.index(name) for name in evidence)


class View:
    """A moment, and what changed between its two snapshots. What is about a plan: only where the moment has one."""

    def __init__(self, moment: Moment, before: Reading, after: Reading) -> None:
        self.moment = moment
        self.before = before
        self.after = after

    @Derived
    def changed(self) -> int:
        """The columns in which the two snapshots differ, as bits; all of them across a generation."""
        if self.before is self.after:
            return 0
        changed, bit = 0, 1
        for one, other in zip(self.before.columns, self.after.columns, strict=True):
            if one is not other and one != other:
                changed |= bit
            bit <<= 1
        if changed > _MOST_CHANGED:
            return EVERY_COLUMN
        earlier, now = self.before, self.after
        if not changed & _FREE:
            now.take_over_queue(earlier)
        if not changed & _SEQUENCES:
            now.take_over_choices(earlier)
        elif earlier.tables != now.tables:
            changed |= _TABLES
        return changed

    @Derived
    def evidence(self) -> int:
        """What there is, as bits: see `bits_of`."""
        moment, facts = self.moment, self.moment.facts
        found = _NO_PLAN if moment.planned is None else self._evidence_of_plan(moment.planned)
        if self.before is not self.after or moment.is_audit:
            found |= self._evidence_of_change()
        if moment.happening is Happening.LANDED:
            found |= _COMMITS_OR_CHANGED_INDEX
            if moment.landed is not None and moment.landed.plan.num_drafts:
                found |= _DRAFTS
        if moment.result is not None and self.late_rows:
            found |= _LATE_ROWS
        if moment.outputs and any(map(_reason_of, moment.outputs)):
            found |= _TOLD_ENDS
        if moment.events:
            kinds = self.event_kinds
            if _FREED_EVENT in kinds:
                found |= _TOLD_FREES
            if _PUBLISHED_EVENT in kinds:
                found |= _TOLD_PUBLICATIONS
        if facts.outdated:
            found |= _OUTDATED
        return found

    def _evidence_of_plan(self, step: PlannedStep) -> int:
        moment, facts, plan = self.moment, self.moment.facts, step.plan
        found = _HITS if any(plan.hit_blocks) else 0
        if plan.num_drafts:
            found |= _DRAFTS
        if any(step.reservation.new_blocks):
            found |= _TAKEN
            if self.evicted:
                found |= _EVICTED
        elif moment.caps.evicts_on_demand and self.evicted:
            found |= _EVICTED
        if moment.in_flight and any(plan.epochs):
            found |= _OLDER_EPOCHS
        if step.preempted:
            found |= _PREEMPTED
        owed = facts.owed_hits
        if owed and any(owed.values()):
            found |= _OWED_HITS
        if facts.retried:
            found |= _RETRIED
        return found

    def _evidence_of_change(self) -> int:
        found, changed = 0, self.changed
        if changed & _FREE and self.freed:
            found = _FREED_CACHED | _FREED if self.freed_cached else _FREED
        if changed & _CACHED or self.moment.is_audit:
            found |= _CHANGED_INDEX | _COMMITS_OR_CHANGED_INDEX
            if self.touched_entries:
                found |= _TOUCHED
        if changed & _RUNNING and self.victims:
            found |= _VICTIMS
        return found

    # -- blocks ------------------------------------------------------------------------------------------------

    @Derived
    def freed(self) -> frozenset[int]:
        """Free now and not before."""
        return self.after.free - self.before.free

    @Derived
    def freed_cached(self) -> frozenset[int]:
        """Cached blocks that are free now and were not before."""
        return self.freed.intersection(self.moment.after.cached) if self.freed else _nothing

    @Derived
    def still_held(self) -> frozenset[int]:
        """Blocks with a holder that was there before and is there after: a table of the same row, a plan in flight, a pin."""
        before, after, now = self.moment.before, self.moment.after, self.after.by_row
        tables = [s.table for s in self.before.sequences if s[:4] in now]
        plans = [blocks for plan_id, blocks in before.reservations.items() if plan_id in after.reservations]
        return _nothing.union(*tables, *plans, set(before.pinned).intersection(after.pinned))

    # -- the index ---------------------------------------------------------------------------------------------

    @Derived
    def is_index_changed(self) -> bool:
        return bool(self.changed & _CACHED)

    @Derived
    def touched_entries(self) -> Mapping[int, PrefixEntry]:
        """The index as far as this moment changed it; at an audit all of it."""
        before, after = self.moment.before.cached, self.moment.after.cached
        if self.moment.is_audit:
            return after
        if not self.is_index_changed:
            return {}
        return dict(compress(after.items(), map(is_not, map(before.get, after), after.values())))

    @Derived
    def touched_contents(self) -> list[tuple[int, PrefixEntry, Content | None]]:
        """Each touched entry with its block, and what the models say that it names."""
        translate = self.moment.facts.translate
        return [(block, entry, translate(entry)) for block, entry in self.touched_entries.items()]

    # -- choices -----------------------------------------------------------------------------------------------

    def _read_fresh(self) -> None:
        self.fresh_now = fresh = self.after.fresh(self.before)
        self.fresh_before = list(map(self.before.by_row.get, map(_row_of, fresh)))

    @Derived
    def fresh_now(self) -> list[SequenceSnapshot]:
        """Those of `after` that are no object of `before`: only they can have changed."""
        self._read_fresh()
        return self.fresh_now

    @Derived
    def fresh_before(self) -> list[SequenceSnapshot | None]:
        """What each of `fresh_now` was, if it was live under the same epoch."""
        self._read_fresh()
        return self.fresh_before

    @Derived
    def has_same_rows(self) -> bool:
        """Nobody came, ended, was preempted or was forked in this moment."""
        before, after = self.before, self.after
        return before.by_row is after.by_row or before.by_row.keys() == after.by_row.keys()

    @Derived
    def victims(self) -> list[SequenceSnapshot]:
        """Those that ran before and are live under another epoch, as they were."""
        if self.has_same_rows:  # nobody has a new epoch
            return []
        now = self.after.by_choice
        return [s for s in self.moment.before.running if (t := now.get(s[:3])) is not None and t.epoch != s.epoch]

    @Derived
    def event_kinds(self) -> set[int]:
        """The identities of the kinds of event that there were: a member of an enumeration is slow to hash."""
        return {id(event[0]) for event in self.moment.events}

    # -- the plan of a PLANNED moment --------------------------------------------------------------------------

    def _read_plan(self) -> None:
        """All six at once: one of them is rarely asked for alone."""
        step, live = self.moment.planned, self.moment.facts.live()
        assert step is not None
        self.planned = planned = plan_reading(step.plan)
        self.planned_before = list(map(self.before.by_row.get, planned.rows))
        self.planned_after = list(map(self.after.by_row.get, planned.rows))
        self.planned_facts = list(map(live.get, planned.choices))
        self.taken = list(chain.from_iterable(step.reservation.new_blocks))
        self.new = frozenset(self.taken)

    @Derived
    def planned(self) -> PlanReading:
        self._read_plan()
        return self.planned

    @Derived
    def planned_before(self) -> list[SequenceSnapshot | None]:
        """The choice of each planned row as it was, if it was live under the row's epoch."""
        self._read_plan()
        return self.planned_before

    @Derived
    def planned_after(self) -> list[SequenceSnapshot | None]:
        self._read_plan()
        return self.planned_after

    @Derived
    def planned_facts(self) -> list[ChoiceFacts | None]:
        """What the harness knows of the choice of each planned row, if it is live."""
        self._read_plan()
        return self.planned_facts

    @Derived
    def taken(self) -> list[int]:
        """What the plan took from the free queue, row by row."""
        self._read_plan()
        return self.taken

    @Derived
    def new(self) -> frozenset[int]:
        self._read_plan()
        return self.new

    @Derived
    def evicted(self) -> frozenset[int]:
        """Cached blocks that the plan took, and those that left the index to make room for it."""
        before, planned = self.moment.before, self.moment.planned
        assert planned is not None
        taken = self.new.intersection(before.cached) if self.new else _nothing
        if self.moment.caps.evicts_on_demand and self.is_index_changed:
            return taken.union(before.cached.keys() - self.moment.after.cached.keys())
        evicted = planned.reservation.evicted
        return taken.union(evicted) if evicted else taken

    # -- the plan of a LANDED moment ---------------------------------------------------------------------------

    @Derived
    def landed(self) -> PlanReading:
        assert self.moment.landed is not None
        return plan_reading(self.moment.landed.plan)

    @Derived
    def landed_after(self) -> list[SequenceSnapshot | None]:
        return list(map(self.after.by_row.get, self.landed.rows))

    # -- results and outputs -----------------------------------------------------------------------------------

    @Derived
    def applied(self) -> list[int]:
        """Plans that left flight."""
        after = self.moment.after.plans
        return [plan_id for plan_id in self.moment.before.plans if plan_id not in after]

    @Derived
    def late_rows(self) -> list[RowId]:
        """Rows of the result that were no longer live when it came."""
        assert self.moment.result is not None
        rows, live = self.moment.result.rows, self.before.by_row
        return [] if live.keys() >= set(rows) else [row for row in rows if row not in live]

    @Derived
    def told(self) -> list[tuple[Output, ChoiceKey, ChoiceFacts | None]]:
        """Each output with the choice that it is for, and what the harness knows of it."""
        live, choice = self.moment.facts.live(), self.moment.facts.choice
        keys = [(output.request_id, output.choice, output.incarnation) for output in self.moment.outputs]
        return [
            (output, key, live.get(key) or choice(RowId(*key, 0)))
            for output, key in zip(self.moment.outputs, keys, strict=True)
        ]


_LAST: Final[list[Reading | None]] = [None]  # of the `after` seen last


def view_of(moment: Moment) -> View:
    """For `Moment.view`: one moment's `after` is the next one's `before`, and so is its reading."""
    known, one, other = _LAST[0], moment.before, moment.after
    before = known if known is not None and known.snapshot is one else Reading(one)
    after = _LAST[0] = before if one is other else Reading(other)
    return View(moment, before, after)
