"""Counts a run anew from its events, so that an engine's own counters and tables can be compared with them (SC-14).

Owns the rule of which event counts as what; never reads a counter or a table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine_under_test.events import Counters, Event, EventKind
from engine_under_test.types import FinishReason, RowId


class Recount:
    """Adds up events as they come; `counters` is what an engine should say by now, `tables` the blocks that each row should
    own, in the order of its table."""

    __slots__ = ("_copies", "counters", "tables")

    def __init__(self) -> None:
        self.counters = Counters()
        self.tables: dict[RowId, tuple[int, ...]] = {}
        self._copies: dict[tuple[RowId, int | None, int], int] = {}  # row, plan and copy -> what it was copied from

    def restarted(self) -> None:
        """Memory began anew: nobody owns anything."""
        self.tables.clear()
        self._copies.clear()

    def add(self, events: Sequence[Event]) -> None:
        """Events of two kinds are by far the most."""
        counters, rule_of = self.counters, _RULE_OF.get
        for event in events:
            kind = event[0]
            if kind is _EMITTED:
                counters.emitted_tokens += event[4]
            elif kind is _SCHEDULED:
                counters.scheduled_tokens += event[4]
            else:
                rule = rule_of(id(kind))  # an identity is quick to hash, a member of an enumeration is not
                if rule is not None:
                    rule(self, event)


def recount(events: Sequence[Event]) -> Counters:
    """The counters of a whole run."""
    counting = Recount()
    counting.add(events)
    return counting.counters


def differences(counted: Counters, recounted: Counters) -> tuple[str, ...]:
    """Each total that differs, with both sides; empty if all agree. A reason never seen counts as 0."""
    names = [name for name in Counters.__dataclass_fields__ if name != "finished"]
    pairs = [(name, getattr(counted, name), getattr(recounted, name)) for name in names]
    pairs += [(f"finished by {r.value}", counted.finished.get(r, 0), recounted.finished.get(r, 0)) for r in FinishReason]
    return tuple(f"{name} is {one}, the events add up to {other}" for name, one, other in pairs if one != other)


def _finished(to: Recount, event: Event) -> None:
    finished, reason = to.counters.finished, FinishReason(event.reason)
    finished[reason] = finished.get(reason, 0) + 1


def _one(name: str) -> Callable[[Recount, Event], None]:
    def count(to: Recount, _event: Event) -> None:
        setattr(to.counters, name, getattr(to.counters, name) + 1)

    return count


def _cached(to: Recount, event: Event) -> None:
    to.counters.cached_tokens += event.tokens


def _evicted(to: Recount, event: Event) -> None:
    to.counters.evicted += len(event.blocks)


def _copied(to: Recount, event: Event) -> None:
    if event.row is not None:
        source, target = event.blocks
        to._copies[event.row, event.plan_id, target] = source


def _owned(to: Recount, event: Event) -> None:
    """A block that was copied on write takes the place of what it was copied from; others stand behind."""
    assert event.row is not None
    row, table = event.row, to.tables.get(event.row, ())
    behind: tuple[int, ...] = event.blocks if not to._copies else ()
    for block in event.blocks if to._copies else ():
        source = to._copies.pop((row, event.plan_id, block), None)
        if source in table:
            place = table.index(source)
            table = (*table[:place], block, *table[place + 1 :])
        else:
            behind += (block,)
    to.tables[row] = table + behind


def _abandoned(to: Recount, event: Event) -> None:
    to.counters.abandoned += 1
    for key in [key for key in to._copies if key[1] == event.plan_id]:
        del to._copies[key]


def _forked(to: Recount, event: Event) -> None:
    if event.row is not None and event.blocks:
        to.tables[event.row] = event.blocks


def _released(to: Recount, event: Event) -> None:
    """A row lets go of its whole table at once."""
    if event.row is not None:
        to.tables.pop(event.row, None)


_EMITTED, _SCHEDULED = EventKind.EMITTED, EventKind.SCHEDULED
_RULES: Final = {
    EventKind.ACCEPTED: _one("accepted"),
    EventKind.REFUSED: _one("refused"),
    EventKind.HIT: _cached,
    EventKind.PREEMPTED: _one("preempted"),
    EventKind.EVICTED: _evicted,
    EventKind.FINISHED: _finished,
    EventKind.LAUNCHED: _one("launched"),
    EventKind.COMMITTED: _one("committed"),
    EventKind.ABANDONED: _abandoned,
    EventKind.ROLLED_BACK: _one("rolled_back"),
    EventKind.RESULT_DROPPED: _one("dropped_results"),
    EventKind.ROW_DROPPED: _one("dropped_rows"),
    EventKind.COPIED: _copied,
    EventKind.OWNED: _owned,
    EventKind.FORKED: _forked,
    EventKind.RELEASED: _released,
}
_RULE_OF: Final = {id(kind): rule for kind, rule in _RULES.items()}
