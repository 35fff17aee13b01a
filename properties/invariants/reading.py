"""What several predicates derive from the same snapshot, derived once.

Owns sets and look-ups over snapshots, remembered for the last few snapshots by identity (one moment's `after` is the next
one's `before`). Judges nothing; forgetting everything would change the cost and nothing else.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Final

from engine_under_test.types import Plan, PrefixEntry, RowId, SequenceSnapshot, Snapshot
from properties.moment import Moment

ChoiceKey = tuple[str, int, int]  # request_id, choice, incarnation


OF_QUEUE: Final = ("free", "place")
OF_TABLES: Final = ("owned", "table_counts")
OF_SEQUENCES: Final = ("by_choice", "by_row", "tables", *OF_TABLES)


class Reading:
    """A snapshot's live choices by identity and its blocks by holder. Each is derived when somebody first asks for it.

    ``tables``: those of live choices that name a block. ``owned``: named by a table. ``reserved``: held by a plan in flight.
    ``held``: those and the pinned ones.
    """

    by_choice: dict[ChoiceKey, SequenceSnapshot]
    by_row: dict[tuple[str, int, int, int], SequenceSnapshot]  # by identity, epoch included
    free: frozenset[int]
    held: frozenset[int]
    owned: frozenset[int]
    place: dict[int, int]  # where each free block stands in the queue, 0 next to be taken
    reserved: frozenset[int]
    table_counts: Counter[int]  # how many tables name each owned block
    tables: list[tuple[int, ...]]

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot

    def __getattr__(self, name: str) -> Any:
        """Asked only for what has not been derived."""
        derive = _DERIVED.get(name)
        if derive is None:
            raise AttributeError(name)
        found = derive(self)
        vars(self)[name] = found
        return found

    def sequences(self) -> tuple[SequenceSnapshot, ...]:
        return (*self.snapshot.running, *self.snapshot.waiting)

    def row(self, row: RowId) -> SequenceSnapshot | None:
        """The live choice with exactly this identity, epoch included."""
        return self.by_row.get(row)

    def take_over(self, earlier: Reading, names: Iterable[str]) -> None:
        """What an earlier snapshot, equal in the columns that these come from, has had derived."""
        known, own = vars(earlier), vars(self)
        for name in names:
            if name in known:
                own[name] = known[name]


_DERIVED: Final[dict[str, Callable[[Reading], object]]] = {
    "by_choice": lambda known: {s[:3]: s for s in known.sequences()},
    "by_row": lambda known: {s[:4]: s for s in known.sequences()},
    "tables": lambda known: [s.table for s in known.sequences() if s.table],
    "owned": lambda known: frozenset(chain.from_iterable(known.tables)),
    "table_counts": lambda known: Counter(chain.from_iterable(known.tables)),
    "free": lambda known: frozenset(known.snapshot.free),
    "place": lambda known: {block: number for number, block in enumerate(known.snapshot.free)},
    "reserved": lambda known: frozenset(chain.from_iterable(known.snapshot.reservations.values())),
    "held": lambda known: known.owned.union(known.reserved, known.snapshot.pinned),
}


_RECENT: Final[dict[int, Reading]] = {}  # by the identity of the snapshot, which a reading keeps alive
_NUM_RECENT: Final = 4
_ROWS: Final[deque[tuple[Plan, tuple[RowId, ...]]]] = deque(maxlen=4)
_TOUCHED: Final[deque[tuple[Moment, Mapping[int, PrefixEntry]]]] = deque(maxlen=1)
_STILL_HELD: Final[deque[tuple[Moment, frozenset[int]]]] = deque(maxlen=1)


def rows_of(plan: Plan) -> tuple[RowId, ...]:
    """The identities of a plan's rows, made once."""
    for known, rows in _ROWS:
        if known is plan:
            return rows
    names = [request.request_id for request in plan.requests]
    made = tuple(map(RowId, names, plan.choices, plan.incarnations, plan.epochs))
    _ROWS.append((plan, made))
    return made


def reading(snapshot: Snapshot) -> Reading:
    known = _RECENT.get(id(snapshot))
    if known is not None:
        return known
    made = _RECENT[id(snapshot)] = Reading(snapshot)
    if len(_RECENT) > _NUM_RECENT:
        del _RECENT[next(iter(_RECENT))]
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
    tables = [s.table for s in before.sequences() if s[:4] in now.by_row]
    plans = [blocks for plan_id, blocks in before.reservations.items() if plan_id in after.reservations]
    found = frozenset(chain(*tables, *plans, set(before.pinned).intersection(after.pinned)))
    _STILL_HELD.append((moment, found))
    return found


def has_same_rows(moment: Moment) -> bool:
    """Nobody came, ended, was preempted or was forked in this moment."""
    before, after = reading(moment.before).by_choice, reading(moment.after).by_choice
    return before.keys() == after.keys() and all(after[key].epoch == s.epoch for key, s in before.items())
