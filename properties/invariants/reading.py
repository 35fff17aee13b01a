"""What several predicates derive from the same snapshot or plan, derived once.

Owns sets and look-ups; those of the last few plans are remembered by identity. Judges nothing; forgetting everything would
change the cost and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from engine_under_test.types import Plan, SequenceSnapshot, Snapshot

ChoiceKey = tuple[str, int, int]  # request_id, choice, incarnation
RowKey = tuple[str, int, int, int]  # the same, and the epoch: equal to the RowId with these columns

T = TypeVar("T")

COLUMNS: Final = (
    "free", "cached", "ref_counts", "reservations", "pinned", "quarantined", "plans", "unsettled", "waiting", "running",
)  # fmt: skip
_columns_of = attrgetter(*COLUMNS, "generation", "cache_generation", "block_size", "num_blocks")


class Derived(Generic[T]):
    """An attribute that is derived when somebody first asks for it. From then on it is the owner's own, found without asking
    here: `functools.cached_property` without the lock, and without a dictionary, which the interpreter makes for an object
    only when somebody asks for it."""

    __slots__ = ("_derive", "_name")

    def __init__(self, derive: Callable[[Any], T]) -> None:
        self._derive = derive

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, owner: Any, _kind: type) -> T:
        found = self._derive(owner)
        setattr(owner, self._name, found)
        return found


class Reading:
    """A snapshot's live choices by identity and its blocks by holder.

    ``columns``: those in which two snapshots may differ.
    """

    knows_choices = False  # the four that come from the choices are derived, all at once
    knows_queue = False  # `free` is derived

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.columns = _columns_of(snapshot)

    def _read_choices(self) -> None:
        running, waiting = self.snapshot.running, _queue_reading(self.snapshot.waiting)
        choices = [s[:3] for s in running]  # the columns of a choice begin with what identifies it
        by_row = {s[:4]: s for s in running}
        tables = [s.table for s in running if s.table]
        if waiting.sequences:
            by_row.update(waiting.by_row)
            choices += waiting.choices
            tables += waiting.tables
        self._set_choices(running + waiting.sequences, choices, by_row, tables)

    def _set_choices(
        self,
        sequences: tuple[SequenceSnapshot, ...],
        choices: list[ChoiceKey],
        by_row: dict[RowKey, SequenceSnapshot],
        tables: list[tuple[int, ...]],
    ) -> None:
        self.sequences, self.choices, self.by_row, self.tables = sequences, choices, by_row, tables
        self.knows_choices = True

    def take_over_choices(self, earlier: Reading) -> None:
        """What an earlier snapshot, equal in what these come from, has had derived."""
        if earlier.knows_choices:
            self._set_choices(earlier.sequences, earlier.choices, earlier.by_row, earlier.tables)

    def fresh(self, earlier: Reading) -> list[SequenceSnapshot]:
        """The live choices that are no object of the earlier snapshot."""
        now, before = self.snapshot, earlier.snapshot
        known = set(map(id, before.running)) if now.waiting is before.waiting else set(map(id, earlier.sequences))
        return [s for s in (now.running if now.waiting is before.waiting else self.sequences) if id(s) not in known]

    def take_over_queue(self, earlier: Reading) -> None:
        if earlier.knows_queue:
            self.free, self.knows_queue = earlier.free, True

    @Derived
    def sequences(self) -> tuple[SequenceSnapshot, ...]:
        self._read_choices()
        return self.sequences

    @Derived
    def choices(self) -> list[ChoiceKey]:
        """Which choice each of `sequences` is."""
        self._read_choices()
        return self.choices

    @Derived
    def by_row(self) -> dict[RowKey, SequenceSnapshot]:
        """By identity, epoch included."""
        self._read_choices()
        return self.by_row

    @Derived
    def tables(self) -> list[tuple[int, ...]]:
        """Those of live choices that name a block."""
        self._read_choices()
        return self.tables

    @Derived
    def free(self) -> frozenset[int]:
        self.knows_queue = True
        return frozenset(self.snapshot.free)

    @Derived
    def by_choice(self) -> dict[ChoiceKey, SequenceSnapshot]:
        return dict(zip(self.choices, self.sequences, strict=True))

    @Derived
    def table_counts(self) -> Counter[int]:
        """How many tables name each owned block."""
        return Counter(chain.from_iterable(self.tables))

    @Derived
    def named(self) -> list[int]:
        """The blocks that tables, plans in flight and pins name, as often as they name them."""
        return list(chain(*self.tables, *self.snapshot.reservations.values(), self.snapshot.pinned))

    @Derived
    def held(self) -> frozenset[int]:
        """Named by a table, held by a plan in flight, or pinned."""
        return frozenset(self.named)

    @Derived
    def holder_counts(self) -> tuple[int, ...] | None:
        """For each physical block, how many tables, reservations and pins name it; None if one names a block of no pool."""
        named, counts = self.named, [0] * (self.snapshot.num_blocks + 1)
        if named and not 0 <= min(named) <= max(named) < len(counts):
            return None
        for block in named:
            counts[block] += 1
        return tuple(counts)

    @Derived
    def has_free_held(self) -> bool:
        """True if some block is both free and held."""
        return not self.free.isdisjoint(self.held)


class QueueReading:
    """Those that wait, by identity: nearly always the same ones as in the snapshot before."""

    __slots__ = ("by_row", "choices", "sequences", "tables")

    def __init__(self, sequences: tuple[SequenceSnapshot, ...]) -> None:
        self.sequences = sequences
        self.choices: list[ChoiceKey] = [s[:3] for s in sequences]
        self.by_row: dict[RowKey, SequenceSnapshot] = {s[:4]: s for s in sequences}
        self.tables = [s.table for s in sequences if s.table]


_QUEUE: Final = [QueueReading(())]  # the one read last


def _queue_reading(waiting: tuple[SequenceSnapshot, ...]) -> QueueReading:
    known = _QUEUE[0]
    if known.sequences is not waiting:
        known = _QUEUE[0] = QueueReading(waiting)
    return known


class PlanReading:
    """A plan's rows by identity."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.names: list[str] = []
        self.rows: list[RowKey] = []
        self.choices: list[ChoiceKey] = []
        self.ends: list[int] = []  # behind the last position that each row computes
        identities, work = (plan.requests, plan.choices, plan.incarnations, plan.epochs), (plan.starts, plan.num_tokens)
        for request, choice, incarnation, epoch, start, count in zip(*identities, *work, strict=True):
            name = request.request_id
            self.names.append(name)
            self.rows.append((name, choice, incarnation, epoch))
            self.choices.append((name, choice, incarnation))
            self.ends.append(start + count)
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


_PLANS: Final[dict[int, PlanReading]] = {}  # by the identity of the plan, which a reading keeps alive
_NUM_PLANS: Final = 8


def plan_reading(plan: Plan) -> PlanReading:
    known = _PLANS.get(id(plan))
    if known is not None:
        return known
    made = _PLANS[id(plan)] = PlanReading(plan)
    if len(_PLANS) > _NUM_PLANS:
        del _PLANS[next(iter(_PLANS))]
    return made
