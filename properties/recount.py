"""Counts a run anew from its events, so that an engine's own counters and tables can be compared with them (SC-14).

Owns the rule of which event counts as what; never reads a counter or a table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from engine_under_test.types import Counters, Event, EventKind, FinishReason, RowId


class Recount:
    """Adds up events as they come; `counters` is what an engine should say by now, `tables` the blocks that each row should
    own, in the order of its table."""

    __slots__ = ("_copies", "counters", "tables")

    def __init__(self) -> None:
        self.counters = Counters()
        self.tables: dict[RowId, list[int]] = {}
        self._copies: dict[tuple[RowId, int | None, int], int] = {}  # row, plan and copy -> what it was copied from

    def restarted(self) -> None:
        """Memory began anew: nobody owns anything."""
        self.tables.clear()
        self._copies.clear()

    def add(self, events: Iterable[Event]) -> None:
        counters = self.counters
        for event in events:
            kind = event[0]
            if kind is _EMITTED:  # these two are by far the most
                counters.emitted_tokens += event.tokens
            elif kind is _SCHEDULED:
                counters.scheduled_tokens += event.tokens
            else:
                count = _RULE_OF.get(id(kind))  # a member of an enumeration is slow to hash, its identity is not
                if count is not None:
                    count(self, event)


def recount(events: Iterable[Event]) -> Counters:
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
    table = to.tables.setdefault(event.row, [])
    for block in event.blocks:
        source = to._copies.pop((event.row, event.plan_id, block), None)
        if source in table:
            table[table.index(source)] = block
        else:
            table.append(block)


def _forked(to: Recount, event: Event) -> None:
    if event.row is not None and event.blocks:
        to.tables[event.row] = list(event.blocks)


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
    EventKind.ABANDONED: _one("abandoned"),
    EventKind.ROLLED_BACK: _one("rolled_back"),
    EventKind.RESULT_DROPPED: _one("dropped_results"),
    EventKind.ROW_DROPPED: _one("dropped_rows"),
    EventKind.COPIED: _copied,
    EventKind.OWNED: _owned,
    EventKind.FORKED: _forked,
    EventKind.RELEASED: _released,
}
_RULE_OF: Final = {id(kind): rule for kind, rule in _RULES.items()}
