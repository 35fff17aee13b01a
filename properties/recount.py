"""Counts a run anew from its events, so that an engine's own counters can be compared with them (SC-14).

Owns the rule of which event counts as what; never reads a counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from engine_under_test.types import Counters, Event, EventKind, FinishReason


class Recount:
    """Adds up events as they come; `counters` is what an engine should say by now."""

    __slots__ = ("counters",)

    def __init__(self) -> None:
        self.counters = Counters()

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
                    count(counters, event)


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


def _finished(counters: Counters, event: Event) -> None:
    reason = FinishReason(event.reason)
    counters.finished[reason] = counters.finished.get(reason, 0) + 1


def _one(name: str) -> Callable[[Counters, Event], None]:
    return lambda counters, _event: setattr(counters, name, getattr(counters, name) + 1)


def _cached(counters: Counters, event: Event) -> None:
    counters.cached_tokens += event.tokens


def _evicted(counters: Counters, event: Event) -> None:
    counters.evicted += len(event.blocks)


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
}
_RULE_OF: Final = {id(kind): rule for kind, rule in _RULES.items()}
