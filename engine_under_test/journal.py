"""Owns what is told: counters, the users' outputs that were not fetched yet, and the observer's events of requests.

Never decides and never changes anything else. Events of blocks and plans are told by the transaction (`kv/telling.py`).
"""

from __future__ import annotations

from engine_under_test.events import Counters, Event, EventKind, event_of
from engine_under_test.flights import InFlight
from engine_under_test.seams import Observer
from engine_under_test.sequence import Sequence
from engine_under_test.types import FinishReason, Logprobs, Output, Request, RowId

_ACCEPTED, _EMITTED, _FINISHED = EventKind.ACCEPTED, EventKind.EMITTED, EventKind.FINISHED


class Journal:
    """One method for each thing that can happen to a request; `Counters` says what is counted."""

    __slots__ = ("_observe", "_outbox", "counters")

    def __init__(self, observer: Observer | None) -> None:
        self.counters = Counters()
        self._observe = observer
        self._outbox: list[Output] = []

    def take_outputs(self) -> tuple[Output, ...]:
        outputs = tuple(self._outbox)
        self._outbox.clear()
        return outputs

    def accepted(self, request: Request, incarnation: int) -> None:
        self.counters.accepted += 1
        row = RowId(request.request_id, 0, incarnation, 0)
        self._tell(event_of((_ACCEPTED, row, None, (), len(request.prompt), "")))

    def refused(self, request_id: str, reason: str) -> None:
        self.counters.refused += 1
        self._tell(Event(EventKind.REFUSED, RowId(request_id, 0, 0, 0), reason=reason))

    def launched(self, flight: InFlight, block_size: int) -> None:
        plan, reservation = flight.step.plan, flight.step.reservation
        counters = self.counters
        counters.launched += 1
        counters.scheduled_tokens += len(reservation.slots)
        counters.evicted += len(reservation.evicted)
        if flight.admitted:
            counters.cached_tokens += sum([len(hits) for hits in plan.hit_blocks]) * block_size

    def blocks_refused(self, plan_id: int, reason: str) -> None:
        self.counters.rolled_back += 1
        self._tell(Event(EventKind.ROLLED_BACK, plan_id=plan_id, reason=reason))

    def result_dropped(self, plan_id: int) -> None:
        self.counters.dropped_results += 1
        self._tell(Event(EventKind.RESULT_DROPPED, plan_id=plan_id))

    def row_dropped(self, seq: Sequence, epoch: int, plan_id: int) -> None:
        self.counters.dropped_rows += 1
        if self._observe is not None:
            row = RowId(seq.request.request_id, seq.choice, seq.incarnation, epoch)
            self._observe(Event(EventKind.ROW_DROPPED, row, plan_id))

    def emitted(
        self,
        seq: Sequence,
        index: int,
        tokens: tuple[int, ...],
        reason: FinishReason | None,
        plan_id: int,
        logprobs: tuple[Logprobs, ...],
    ) -> None:
        """`tokens` of the choice from `index` on; with `reason` they are its last ones. `logprobs` of each, if asked for."""
        self.counters.emitted_tokens += len(tokens)
        if self._observe is not None:
            self._observe(event_of((_EMITTED, seq.row_id, plan_id, (), len(tokens), "")))
        of_prompt = tuple(seq.prompt_logprobs) if seq.prompt_logprobs and index == 0 else ()
        self._outbox.append(
            Output(seq.request.request_id, seq.choice, seq.incarnation, index, tokens, reason, "", logprobs, of_prompt)
        )

    def cut_short(self, row: RowId, num_emitted: int, reason: FinishReason, message: str) -> None:
        """The choice ends behind `num_emitted` tokens without a further one."""
        self._outbox.append(Output(row.request_id, row.choice, row.incarnation, num_emitted, (), reason, message))

    def finished(self, row: RowId, reason: FinishReason) -> None:
        self.counters.finished[reason] = self.counters.finished.get(reason, 0) + 1
        self._tell(event_of((_FINISHED, row, None, (), 0, reason.value)))

    def forked(self, child: Sequence) -> None:
        self._tell(Event(EventKind.FORKED, child.row_id, blocks=child.table.blocks))

    def preempted(self, row: RowId) -> None:
        self.counters.preempted += 1
        self._tell(Event(EventKind.PREEMPTED, row))

    def _tell(self, event: Event) -> None:
        if self._observe is not None:
            self._observe(event)
