"""What becomes of requests when ranks are lost, by policy, and how often a group may try to begin anew: DI-2.

Owns these two sentences, each made for the terms that a supervisor was given. They read a history in which the engine's events
and those of its group stand in the order in which they happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from engine_under_test.events import Event, EventKind, RankEvent, RankEventKind
from engine_under_test.types import FinishReason, Output, RowId
from properties.checkers import Checker, Finding
from properties.history import Record
from properties.invariants.predicate import violation
from properties.verdict import Violation

_Life = tuple[str, int]  # request, incarnation


@dataclass(frozen=True, slots=True)
class Terms:
    """What a supervisor was given, see `RankSupervisor`."""

    ends_in_flight: bool = False
    max_losses: int = 3
    max_starts: int = 3


@dataclass(slots=True)
class _Reading:
    """Who must end with an error, and who may, as far as the history was read."""

    terms: Terms
    sent: dict[int, tuple[RowId, ...]] = field(default_factory=dict)  # of this generation, not answered by all
    answers: dict[int, int] = field(default_factory=dict)
    num_joined: int = 0
    planned: dict[int, set[_Life]] = field(default_factory=dict)  # by plan that has not got through
    over: set[_Life] = field(default_factory=set)
    must: dict[_Life, RankEvent] = field(default_factory=dict)
    may: set[_Life] = field(default_factory=set)
    in_a_row: int = 0  # losses without a plan that got through
    is_up: bool = True
    is_blamed: bool = False
    is_closed: bool = False
    count: int = 0

    def event(self, event: Event) -> None:
        """Plans come and go; who has ended is out of it."""
        if event.kind is EventKind.SCHEDULED and event.row is not None and event.plan_id is not None:
            self.planned.setdefault(event.plan_id, set()).update(_lives((event.row,)))
        elif event.kind is EventKind.COMMITTED and event.plan_id is not None:
            self.planned.pop(event.plan_id, None)
            self.in_a_row = 0
        elif event.kind is EventKind.FINISHED and event.row is not None:
            self.over.update(_lives((event.row,)))

    def rank_event(self, event: RankEvent) -> None:
        """What was sent and not answered by all is lost with the group."""
        kind = event.kind
        if kind is RankEventKind.JOINED:
            self.num_joined += 1
        elif kind is RankEventKind.SENT:
            self.sent[event.sequence], self.answers[event.sequence] = event.rows, 0
        elif kind is RankEventKind.EXECUTED and event.sequence in self.sent:
            self.answers[event.sequence] += 1
            if self.answers[event.sequence] == self.num_joined:
                del self.sent[event.sequence]
        elif kind is RankEventKind.LOST:
            self._lost(event)
        elif kind is RankEventKind.RESTARTED or (kind is RankEventKind.CLOSED and not self.is_up):
            if self.is_blamed:
                self.may.update(*self.planned.values())
            self.planned.clear()
            self.is_blamed, self.is_up = False, kind is RankEventKind.RESTARTED
        self.is_closed |= kind is RankEventKind.CLOSED

    def _lost(self, event: RankEvent) -> None:
        if self.is_up:  # else a start that failed: nobody was in flight
            self.count += 1
            self.in_a_row += 1
            if self.terms.ends_in_flight or self.in_a_row >= self.terms.max_losses:
                self.is_blamed, self.in_a_row = True, 0
                lost = {life for rows in self.sent.values() for life in _lives(rows)}
                self.must.update(dict.fromkeys(lost - self.over, event))
        self.is_up = False
        self.num_joined = 0
        self.sent.clear()

    def judged(self, output: Output) -> Violation | None:
        """Of an ending."""
        life = output.request_id, output.incarnation
        subject = f"request {output.request_id} (incarnation {output.incarnation})"
        is_error = output.finish_reason is FinishReason.ERROR
        if life in self.must:
            loss = self.must[life]
            who = "the ranks" if loss.rank is None else f"rank {loss.rank}"
            wanted = f"an error that names {who}, lost while it was in flight in generation {loss.generation}"
            if not is_error:
                return violation("DI-2", subject, f"ended by {output.finish_reason}", wanted)
            if who not in output.message:
                return violation("DI-2", subject, f"an error that says {output.message!r}", wanted)
        elif is_error and life not in self.may and not self.is_closed:
            return violation("DI-2", subject, f"ended with an error ({output.message})", "its tokens, as the policy says")
        return None


def _lives(rows: Iterable[RowId]) -> set[_Life]:
    return {(row.request_id, row.incarnation) for row in rows}


def endings_by(terms: Terms) -> Checker:
    """Who was in flight when a rank was lost ends with an error that names it, if the policy says so or this was the last of
    too many losses in a row; nobody else ends with one, unless the group was closed. One choice a request."""

    def requests_end_as_the_policy_says(records: Sequence[Record]) -> Finding:
        """DI-2, by the terms of `RankSupervisor`."""
        reading = _Reading(terms)
        ended: set[_Life] = set()
        for record in records:
            if isinstance(record, Event):
                reading.event(record)
            elif isinstance(record, RankEvent):
                reading.rank_event(record)
            elif isinstance(record, Output) and record.finish_reason is not None:
                ended.add((record.request_id, record.incarnation))
                if found := reading.judged(record):
                    return Finding(reading.count, found)
        for life in sorted(reading.must.keys() - ended):
            subject = f"request {life[0]} (incarnation {life[1]})"
            return Finding(reading.count, violation("DI-2", subject, "no end", "an error, since a rank was lost with it"))
        return Finding(reading.count)

    return Checker("DI-2", requests_end_as_the_policy_says)


def starts_by(terms: Terms) -> Checker:
    """A group that does not come up is started so many times, and then closed."""

    def a_group_that_stays_down_is_closed_in_time(records: Sequence[Record]) -> Finding:
        """DI-2, by the terms of `RankSupervisor`."""
        is_up, failed, count = True, 0, 0
        for event in records:
            if not isinstance(event, RankEvent):
                continue
            if event.kind is RankEventKind.LOST:
                count += 1
                failed += not is_up
                is_up = False
            elif event.kind is RankEventKind.RESTARTED:
                is_up, failed = True, 0
            most = terms.max_starts
            if failed > most:
                return Finding(
                    count, violation("DI-2", "the group", f"start {failed} in a row that failed", f"closed after {most}")
                )
            if event.kind is RankEventKind.CLOSED and 0 < failed < most:
                return Finding(
                    count, violation("DI-2", "the group", f"closed after {failed} starts", f"{most} that fail, first")
                )
        return Finding(count)

    return Checker("DI-2", a_group_that_stays_down_is_closed_in_time)


ENDING_CHECKERS: Final[tuple[Checker, ...]] = (endings_by(Terms()), starts_by(Terms()))
