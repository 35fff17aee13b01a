"""What several predicates derive from the same snapshot, derived once.

Owns sets and look-ups over snapshots, remembered for the last few snapshots by identity (one moment's `after` is the next
one's `before`). Judges nothing; forgetting everything would change the cost and nothing else.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from itertools import chain
from typing import Final

from engine_under_test.types import Plan, PrefixEntry, RowId, SequenceSnapshot, Snapshot
from properties.moment import Moment

ChoiceKey = tuple[str, int, int]  # request_id, choice, incarnation


class Reading:
    """A snapshot's live choices by identity and its blocks by holder.

    ``owned``: named by a table. ``reserved``: held by a plan in flight. ``held``: those and the pinned ones.
    """

    __slots__ = ("_by_row", "_place", "_table_counts", "by_choice", "free", "held", "owned", "reserved", "snapshot")

    def __init__(self, snapshot: Snapshot) -> None:
        sequences = (*snapshot.running, *snapshot.waiting)
        self.snapshot = snapshot
        self.by_choice: dict[ChoiceKey, SequenceSnapshot] = {(s.request_id, s.choice, s.incarnation): s for s in sequences}
        self._by_row = {(s.request_id, s.choice, s.incarnation, s.epoch): s for s in sequences}
        self.free = frozenset(snapshot.free)
        self.owned: frozenset[int] = frozenset(chain.from_iterable([s.table for s in sequences]))
        self.reserved: frozenset[int] = frozenset(chain.from_iterable(snapshot.reservations.values()))
        self.held = self.owned.union(self.reserved, snapshot.pinned)
        self._table_counts: Counter[int] | None = None
        self._place: dict[int, int] | None = None

    def row(self, row: RowId) -> SequenceSnapshot | None:
        """The live choice with exactly this identity, epoch included."""
        return self._by_row.get(row)

    @property
    def place(self) -> Mapping[int, int]:
        """Where each free block stands in the queue, 0 next to be taken."""
        if self._place is None:
            self._place = {block: number for number, block in enumerate(self.snapshot.free)}
        return self._place

    @property
    def table_counts(self) -> Counter[int]:
        """How many tables name each owned block."""
        if self._table_counts is None:
            self._table_counts = Counter(chain.from_iterable([s.table for s in self.by_choice.values()]))
        return self._table_counts


_RECENT: Final[deque[Reading]] = deque(maxlen=4)
_ROWS: Final[deque[tuple[Plan, tuple[RowId, ...]]]] = deque(maxlen=4)
_TOUCHED: Final[deque[tuple[Moment, Mapping[int, PrefixEntry]]]] = deque(maxlen=1)
_STILL_HELD: Final[deque[tuple[Moment, frozenset[int]]]] = deque(maxlen=1)


def rows_of(plan: Plan) -> tuple[RowId, ...]:
    """The identities of a plan's rows, made once."""
    for known, rows in _ROWS:
        if known is plan:
            return rows
    made = tuple(plan.row_ids())
    _ROWS.append((plan, made))
    return made


def reading(snapshot: Snapshot) -> Reading:
    for known in _RECENT:
        if known.snapshot is snapshot:
            return known
    made = Reading(snapshot)
    _RECENT.append(made)
    return made


def touched_entries(moment: Moment) -> Mapping[int, PrefixEntry]:
    """The index as far as this moment changed it; at an audit all of it."""
    if moment.is_audit:
        return moment.after.cached
    for known, entries in _TOUCHED:
        if known is moment:
            return entries
    before, after = moment.before.cached, moment.after.cached
    found: Mapping[int, PrefixEntry] = {}
    if before is not after and before != after:
        found = {block: entry for block, entry in after.items() if before.get(block) is not entry}
    _TOUCHED.append((moment, found))
    return found


def index_changed(moment: Moment) -> bool:
    return moment.before.cached is not moment.after.cached and moment.before.cached != moment.after.cached


def freed_cached(moment: Moment) -> frozenset[int]:
    """Cached blocks that are free now and were not before."""
    if moment.before.free == moment.after.free:
        return frozenset()
    return (reading(moment.after).free - reading(moment.before).free).intersection(moment.after.cached)


def still_held(moment: Moment) -> frozenset[int]:
    """Blocks with a holder that was there before and is there after: a table of the same row, a plan in flight, a pin."""
    for known, blocks in _STILL_HELD:
        if known is moment:
            return blocks
    before, after = moment.before, moment.after
    now = reading(after)
    tables = [s.table for s in before.sequences() if now.row(s.row_id) is not None]
    plans = [blocks for plan_id, blocks in before.reservations.items() if plan_id in after.reservations]
    found = frozenset(chain(*tables, *plans, set(before.pinned).intersection(after.pinned)))
    _STILL_HELD.append((moment, found))
    return found


def has_same_rows(moment: Moment) -> bool:
    """Nobody came, ended, was preempted or was forked in this moment."""
    before, after = reading(moment.before).by_choice, reading(moment.after).by_choice
    return before.keys() == after.keys() and all(after[key].epoch == s.epoch for key, s in before.items())
