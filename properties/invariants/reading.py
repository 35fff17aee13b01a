"""What several predicates derive from the same snapshot or plan, derived once.

Owns sets and look-ups, remembered for the last few snapshots and plans by identity (one moment's `after` is the next one's
`before`). Judges nothing; forgetting everything would change the cost and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from operator import add, attrgetter, itemgetter
from typing import Any, Final, Generic, TypeVar

from engine_under_test.types import Plan, SequenceSnapshot, Snapshot

ChoiceKey = tuple[str, int, int]  # request_id, choice, incarnation
RowKey = tuple[str, int, int, int]  # the same, and the epoch: equal to the RowId with these columns

T = TypeVar("T")

OF_QUEUE: Final = ("free",)  # what a Reading derives from the free queue alone, from choices, from tables
OF_SEQUENCES: Final = ("sequences", "choices", "by_choice", "by_row", "tables", "table_counts")
OF_TABLES: Final = ("table_counts",)

_choice_of = itemgetter(slice(3))  # of a RowId, a SequenceSnapshot: their columns begin with what identifies the choice
_row_of = itemgetter(slice(4))
_table_of: Callable[[SequenceSnapshot], tuple[int, ...]] = itemgetter(SequenceSnapshot._fields.index("table"))
_request_id_of = attrgetter("request_id")
_nothing: Final[frozenset[int]] = frozenset()


class Derived(Generic[T]):
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

    @Derived
    def sequences(self) -> tuple[SequenceSnapshot, ...]:
        return self.snapshot.running + self.snapshot.waiting

    @Derived
    def choices(self) -> list[ChoiceKey]:
        """Which choice each of `sequences` is."""
        return list(map(_choice_of, self.sequences))

    @Derived
    def by_choice(self) -> dict[ChoiceKey, SequenceSnapshot]:
        return dict(zip(self.choices, self.sequences, strict=True))

    @Derived
    def by_row(self) -> dict[RowKey, SequenceSnapshot]:
        """By identity, epoch included."""
        return dict(zip(map(_row_of, self.sequences), self.sequences, strict=True))

    @Derived
    def tables(self) -> list[tuple[int, ...]]:
        """Those of live choices that name a block."""
        return list(filter(None, map(_table_of, self.sequences)))

    @Derived
    def table_counts(self) -> Counter[int]:
        """How many tables name each owned block."""
        return Counter(chain.from_iterable(self.tables))

    @Derived
    def held(self) -> frozenset[int]:
        """Named by a table, held by a plan in flight, or pinned."""
        return _nothing.union(*self.tables, *self.snapshot.reservations.values(), self.snapshot.pinned)

    @Derived
    def holder_counts(self) -> tuple[int, ...] | None:
        """For each physical block, how many tables, reservations and pins name it; None if one names a block of no pool."""
        snapshot = self.snapshot
        counts = Counter(chain(*self.tables, *snapshot.reservations.values(), snapshot.pinned))
        blocks = range(snapshot.num_blocks + 1)
        if counts and not (min(counts) >= 0 and max(counts) in blocks):
            return None
        return tuple(map(counts.get, blocks, repeat(0)))

    @Derived
    def free(self) -> frozenset[int]:
        return frozenset(self.snapshot.free)

    @Derived
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

    @Derived
    def known_ends(self) -> list[int]:
        """Behind the last known token of each row: drafts stand beyond it."""
        plan = self.plan
        return [end - num for end, num in zip(self.ends, plan.num_drafts, strict=True)] if plan.num_drafts else self.ends

    def confirmed(self, tokens: Sequence[tuple[int, ...]]) -> list[int]:
        """Up to where each row is confirmed by the tokens that it yields: behind its last known token, and each draft that
        stands."""
        if not self.plan.num_drafts:
            return self.ends
        return [end + max(len(found) - 1, 0) for end, found in zip(self.known_ends, tokens, strict=True)]


_RECENT: Final[dict[int, Reading]] = {}  # by the identity of the snapshot, which a reading keeps alive
_NUM_RECENT: Final = 4
_PLANS: Final[dict[int, PlanReading]] = {}  # likewise
_NUM_PLANS: Final = 8


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
