"""What several predicates derive from the same snapshot, plan or moment, derived once.

Owns sets, look-ups and differences, remembered for the last few snapshots, plans and the last moment by identity (one moment's
`after` is the next one's `before`). Judges nothing; forgetting everything would change the cost and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, compress
from operator import add, attrgetter, is_not, itemgetter
from typing import Any, Final, Generic, TypeVar

from engine_under_test.types import EventKind, Output, Plan, PrefixEntry, RowId, SequenceSnapshot, Snapshot
from properties.moment import ChoiceFacts, Content, Happening, Moment

ChoiceKey = tuple[str, int, int]  # request_id, choice, incarnation
RowKey = tuple[str, int, int, int]  # the same, and the epoch: equal to the RowId with these columns

T = TypeVar("T")

COLUMNS: Final = (
    "free", "cached", "ref_counts", "reservations", "pinned", "quarantined", "plans", "unsettled", "waiting", "running",
)  # fmt: skip
SEQUENCES: Final = ("running", "waiting")
TABLES: Final = "tables"  # of `running` and `waiting` nothing but the tables
BITS: Final = {column: 1 << number for number, column in enumerate((*COLUMNS, TABLES))}
"""The columns of a snapshot as bits, as `View.changed` says them."""
EVERY_COLUMN: Final = sum(BITS.values())
_FREE, _CACHED, _RUNNING, _TABLES = BITS["free"], BITS["cached"], BITS["running"], BITS[TABLES]
_SEQUENCES: Final = sum(BITS[column] for column in SEQUENCES)
_COLUMN_BITS: Final = [BITS[column] for column in COLUMNS]
_columns_of = attrgetter(*COLUMNS)
_frame_of = attrgetter("generation", "cache_generation", "block_size", "num_blocks")

_OF_QUEUE: Final = ("free",)  # what a Reading derives from the free queue alone, from choices, from tables
_OF_SEQUENCES: Final = ("sequences", "objects", "choices", "by_choice", "by_row", "tables", "table_counts")
_OF_TABLES: Final = ("table_counts",)

_choice_of = itemgetter(slice(3))  # of a RowId, a SequenceSnapshot: their columns begin with what identifies the choice
_row_of = itemgetter(slice(4))
_table_of: Callable[[SequenceSnapshot], tuple[int, ...]] = itemgetter(SequenceSnapshot._fields.index("table"))
_kind_of = itemgetter(0)  # of an Event
_request_id_of = attrgetter("request_id")
_reason_of = attrgetter("finish_reason")  # of an Output
_nothing: Final[frozenset[int]] = frozenset()


EVIDENCE: Final = (
    "changed index",  # the index is another one, or an audit looks at all of it
    "commits or changed index",
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
    _CHANGED_INDEX, _COMMITS_OR_CHANGED_INDEX, _EVICTED, _FREED, _FREED_CACHED, _HITS, _LATE_ROWS, _NO_PLAN, _OLDER_EPOCHS,
    _OUTDATED, _OWED_HITS, _PREEMPTED, _RETRIED, _TAKEN, _TOLD_ENDS, _TOLD_FREES, _TOLD_PUBLICATIONS, _TOUCHED, _VICTIMS,
) = (1 << number for number in range(len(EVIDENCE)))  # fmt: skip

_FREED_EVENT: Final = id(EventKind.FREED)
_PUBLISHED_EVENT: Final = id(EventKind.PUBLISHED)


def bits_of(evidence: Iterable[str]) -> int:
    """The names of `EVIDENCE` as bits, as `View.evidence` says them."""
    return sum(1 << EVIDENCE.index(name) for name in evidence)


class _Derived(Generic[T]):
    """An attribute that is derived when somebody first asks for it. From then on it stands in its owner's dictionary, where
    it is found without asking here: `functools.cached_property` without the lock."""

    __slots__ = ("_derive", "_name")

    def __init__(self, derive: Callable[[Any], T]) -> None:
        self._derive = derive

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, _kind: type) -> T:
        found = owner.__dict__[self._name] = self._derive(owner)
        return found


class Reading:
    """A snapshot's live choices by identity and its blocks by holder."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    @_Derived
    def sequences(self) -> tuple[SequenceSnapshot, ...]:
        return self.snapshot.running + self.snapshot.waiting

    @_Derived
    def objects(self) -> frozenset[int]:
        """The identities of `sequences` as objects: a choice that did not change is often shown by the same one."""
        return frozenset(map(id, self.sequences))

    @_Derived
    def choices(self) -> list[ChoiceKey]:
        """Which choice each of `sequences` is."""
        return list(map(_choice_of, self.sequences))

    @_Derived
    def by_choice(self) -> dict[ChoiceKey, SequenceSnapshot]:
        return dict(zip(self.choices, self.sequences, strict=True))

    @_Derived
    def by_row(self) -> dict[RowKey, SequenceSnapshot]:
        """By identity, epoch included."""
        return dict(zip(map(_row_of, self.sequences), self.sequences, strict=True))

    @_Derived
    def tables(self) -> list[tuple[int, ...]]:
        """Those of live choices that name a block."""
        return [table for table in map(_table_of, self.sequences) if table]

    @_Derived
    def table_counts(self) -> Counter[int]:
        """How many tables name each owned block."""
        return Counter(chain.from_iterable(self.tables))

    @_Derived
    def held(self) -> frozenset[int]:
        """Named by a table, held by a plan in flight, or pinned."""
        return _nothing.union(*self.tables, *self.snapshot.reservations.values(), self.snapshot.pinned)

    @_Derived
    def holder_counts(self) -> tuple[int, ...] | None:
        """For each physical block, how many tables, reservations and pins name it; None if one names a block of no pool."""
        counts = [0] * (self.snapshot.num_blocks + 1)
        try:
            for block in chain(*self.tables, *self.snapshot.reservations.values(), self.snapshot.pinned):
                counts[block] += 1
        except IndexError:
            return None
        return tuple(counts)

    @_Derived
    def free(self) -> frozenset[int]:
        return frozenset(self.snapshot.free)

    @_Derived
    def placed(self) -> frozenset[int]:
        """Free or held."""
        return self.free | self.held

    @property
    def has_free_held(self) -> bool:
        """True if some block is both free and held."""
        return len(self.placed) != len(self.free) + len(self.held)

    def take_over(self, earlier: Reading, names: Iterable[str]) -> None:
        """What an earlier snapshot, equal in the columns that these come from, has had derived."""
        known, own = earlier.__dict__, self.__dict__
        for name in names:
            if name in known:
                own[name] = known[name]


class PlanReading:
    """A plan's rows by identity."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.names = list(map(_request_id_of, plan.requests))
        self.rows: list[RowKey] = list(zip(self.names, plan.choices, plan.incarnations, plan.epochs, strict=True))
        self.choices: list[ChoiceKey] = list(zip(self.names, plan.choices, plan.incarnations, strict=True))
        self.ends = list(map(add, plan.starts, plan.num_tokens))  # behind the last position that each row computes
        self.has_hits = any(plan.hit_blocks)


class View:
    """A moment, and what changed between its two snapshots. What is about a plan: only where the moment has one."""

    def __init__(self, moment: Moment, before: Reading, after: Reading) -> None:
        self.moment = moment
        self.before = before
        self.after = after

    @_Derived
    def changed(self) -> int:
        """The columns in which the two snapshots differ, as bits; all of them across a generation. What is derived from the
        others is taken over."""
        before, after = self.moment.before, self.moment.after
        if before is after:
            return 0
        if _frame_of(before) != _frame_of(after):
            return EVERY_COLUMN
        pairs: zip[tuple[int, Any, Any]] = zip(_COLUMN_BITS, _columns_of(before), _columns_of(after), strict=True)
        changed = sum([bit for bit, one, other in pairs if one is not other and one != other])
        earlier, now = self.before, self.after
        if not changed & _SEQUENCES:
            now.take_over(earlier, _OF_SEQUENCES)
        elif earlier.tables == now.tables:
            now.take_over(earlier, _OF_TABLES)
        else:
            changed |= _TABLES
        if not changed & _FREE:
            now.take_over(earlier, _OF_QUEUE)
        return changed

    @_Derived
    def evidence(self) -> int:
        """What there is, as bits: see `bits_of`."""
        moment, facts = self.moment, self.moment.facts
        found = self._evidence_of_plan() if moment.planned is not None else _NO_PLAN
        if moment.before is not moment.after or moment.is_audit:
            found |= self._evidence_of_change()
        if moment.happening is Happening.LANDED:
            found |= _COMMITS_OR_CHANGED_INDEX
        if moment.outputs and any(map(_reason_of, moment.outputs)):
            found |= _TOLD_ENDS
        if moment.events:
            kinds = self.event_kinds
            if _FREED_EVENT in kinds:
                found |= _TOLD_FREES
            if _PUBLISHED_EVENT in kinds:
                found |= _TOLD_PUBLICATIONS
        if moment.result is not None and self.late_rows:
            found |= _LATE_ROWS
        if facts.outdated:
            found |= _OUTDATED
        return found

    def _evidence_of_plan(self) -> int:
        moment, facts, planned = self.moment, self.moment.facts, self.planned
        found = 0
        if planned.has_hits:
            found = _HITS
        if self.taken:
            found |= _TAKEN
        if self.evicted:
            found |= _EVICTED
        if moment.in_flight and any(planned.plan.epochs):
            found |= _OLDER_EPOCHS
        if moment.planned is not None and moment.planned.preempted:
            found |= _PREEMPTED
        if any(facts.owed_hits.values()):
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

    @_Derived
    def freed(self) -> frozenset[int]:
        """Free now and not before."""
        return self.after.free - self.before.free

    @_Derived
    def freed_cached(self) -> frozenset[int]:
        """Cached blocks that are free now and were not before."""
        return self.freed.intersection(self.moment.after.cached) if self.freed else _nothing

    @_Derived
    def still_held(self) -> frozenset[int]:
        """Blocks with a holder that was there before and is there after: a table of the same row, a plan in flight, a pin."""
        before, after, now = self.moment.before, self.moment.after, self.after.by_row
        tables = [s.table for s in self.before.sequences if s[:4] in now]
        plans = [blocks for plan_id, blocks in before.reservations.items() if plan_id in after.reservations]
        return _nothing.union(*tables, *plans, set(before.pinned).intersection(after.pinned))

    # -- the index ---------------------------------------------------------------------------------------------

    @_Derived
    def is_index_changed(self) -> bool:
        return bool(self.changed & _CACHED)

    @_Derived
    def touched_entries(self) -> Mapping[int, PrefixEntry]:
        """The index as far as this moment changed it; at an audit all of it."""
        before, after = self.moment.before.cached, self.moment.after.cached
        if self.moment.is_audit:
            return after
        if not self.is_index_changed:
            return {}
        return dict(compress(after.items(), map(is_not, map(before.get, after), after.values())))

    @_Derived
    def touched_contents(self) -> list[tuple[int, PrefixEntry, Content | None]]:
        """Each touched entry with its block, and what the models say that it names."""
        translate = self.moment.facts.translate
        return [(block, entry, translate(entry)) for block, entry in self.touched_entries.items()]

    # -- choices -----------------------------------------------------------------------------------------------

    @_Derived
    def fresh(self) -> list[tuple[SequenceSnapshot | None, SequenceSnapshot]]:
        """Those of `after` that are not shown by the very object that stood in `before`: only they can have changed. Each
        behind what it was, if it was live under the same epoch."""
        known, earlier = self.before.objects, self.before.by_row.get
        return [(earlier(s[:4]), s) for s in self.after.sequences if id(s) not in known]

    @_Derived
    def has_same_rows(self) -> bool:
        """Nobody came, ended, was preempted or was forked in this moment."""
        return self.before.by_row.keys() == self.after.by_row.keys()

    @_Derived
    def victims(self) -> list[SequenceSnapshot]:
        """Those that ran before and are live under another epoch, as they were."""
        if not [s for was, s in self.fresh if was is None]:  # nobody has a new epoch
            return []
        now = self.after.by_choice
        return [s for s in self.moment.before.running if (t := now.get(s[:3])) is not None and t.epoch != s.epoch]

    @_Derived
    def event_kinds(self) -> set[int]:
        """The identities of the kinds of event that there were: a member of an enumeration is slow to hash."""
        return set(map(id, map(_kind_of, self.moment.events)))

    # -- the plan of a PLANNED moment --------------------------------------------------------------------------

    @_Derived
    def planned(self) -> PlanReading:
        assert self.moment.planned is not None
        return plan_reading(self.moment.planned.plan)

    @_Derived
    def planned_before(self) -> list[SequenceSnapshot | None]:
        """The choice of each planned row as it was, if it was live under the row's epoch."""
        return list(map(self.before.by_row.get, self.planned.rows))

    @_Derived
    def planned_after(self) -> list[SequenceSnapshot | None]:
        return list(map(self.after.by_row.get, self.planned.rows))

    @_Derived
    def planned_facts(self) -> list[ChoiceFacts | None]:
        """What the harness knows of the choice of each planned row, if it is live."""
        return list(map(self.moment.facts.live().get, self.planned.choices))

    @_Derived
    def taken(self) -> list[int]:
        """What the plan took from the free queue, row by row."""
        assert self.moment.planned is not None
        return list(chain.from_iterable(self.moment.planned.reservation.new_blocks))

    @_Derived
    def new(self) -> frozenset[int]:
        return frozenset(self.taken)

    @_Derived
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

    @_Derived
    def landed(self) -> PlanReading:
        assert self.moment.landed is not None
        return plan_reading(self.moment.landed.plan)

    @_Derived
    def landed_after(self) -> list[SequenceSnapshot | None]:
        return list(map(self.after.by_row.get, self.landed.rows))

    # -- results and outputs -----------------------------------------------------------------------------------

    @_Derived
    def applied(self) -> list[int]:
        """Plans that left flight."""
        after = self.moment.after.plans
        return [plan_id for plan_id in self.moment.before.plans if plan_id not in after]

    @_Derived
    def late_rows(self) -> list[RowId]:
        """Rows of the result that were no longer live when it came."""
        assert self.moment.result is not None
        rows, live = self.moment.result.rows, self.before.by_row
        return [] if live.keys() >= set(rows) else [row for row in rows if row not in live]

    @_Derived
    def told(self) -> list[tuple[Output, ChoiceKey, ChoiceFacts | None]]:
        """Each output with the choice that it is for, and what the harness knows of it."""
        live, choice = self.moment.facts.live(), self.moment.facts.choice
        keys = [(output.request_id, output.choice, output.incarnation) for output in self.moment.outputs]
        return [
            (output, key, live.get(key) or choice(RowId(*key, 0)))
            for output, key in zip(self.moment.outputs, keys, strict=True)
        ]


_RECENT: Final[dict[int, Reading]] = {}  # by the identity of the snapshot, which a reading keeps alive
_NUM_RECENT: Final = 4
_PLANS: Final[dict[int, PlanReading]] = {}  # likewise
_NUM_PLANS: Final = 8
_LAST: Final[list[View | None]] = [None]


def reading(snapshot: Snapshot) -> Reading:
    known = _RECENT.get(id(snapshot))
    if known is not None:
        return known
    made = _RECENT[id(snapshot)] = Reading(snapshot)
    if len(_RECENT) > _NUM_RECENT:
        del _RECENT[next(iter(_RECENT))]
    return made


def plan_reading(plan: Plan) -> PlanReading:
    known = _PLANS.get(id(plan))
    if known is not None:
        return known
    made = _PLANS[id(plan)] = PlanReading(plan)
    if len(_PLANS) > _NUM_PLANS:
        del _PLANS[next(iter(_PLANS))]
    return made


def view(moment: Moment) -> View:
    known = _LAST[0]
    if known is not None and known.moment is moment:
        return known
    one, other = moment.before, moment.after
    before = known.after if known is not None and known.after.snapshot is one else reading(one)
    made = _LAST[0] = View(moment, before, before if one is other else reading(other))
    return made
