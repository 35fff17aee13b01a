"""Who leaves and who is sent back: the end of a choice and of a request, preemption, a failed step, a step undone.

Owns nothing: it takes sequences out of the book, the blocks, the transfers and the proposer, all four or none, for the
engine, which alone (with `results.py`) calls it. Never decides who is to be preempted or which plans are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_under_test.book import Book, LiveRequest
from engine_under_test.drafting import Drafting
from engine_under_test.flights import InFlight
from engine_under_test.journal import Journal
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.seams import Clock
from engine_under_test.sequence import Sequence
from engine_under_test.types import FinishReason, RowId, Status

if TYPE_CHECKING:
    from engine_under_test.remote import RemotePrefixes  # an engine without a remote pool imports nothing of it


class Ends:
    """See the module."""

    __slots__ = ("_book", "_clock", "_drafting", "_journal", "_kv", "_remote")

    def __init__(
        self,
        book: Book,
        kv: KvTransaction,
        journal: Journal,
        clock: Clock,
        remote: RemotePrefixes | None,
        drafting: Drafting | None,
    ) -> None:
        self._book = book
        self._kv = kv
        self._journal = journal
        self._clock = clock
        self._remote = remote
        self._drafting = drafting

    def close(self, live: LiveRequest, seq: Sequence, reason: FinishReason) -> None:
        """Takes an existing choice out of everything. Its last output has been written by the caller."""
        self._journal.finished(seq.row_id, reason)
        if self._remote is not None:
            self._remote.leave(seq)
            self._book.num_loading = self._remote.num_loading
        self._forget_drafts(seq)
        self._kv.release(seq.table, seq.row_id)
        self._book.leave(seq)
        seq.end()
        if (only := self._book.only) is not None and seq in only:
            self._book.only = [each for each in only if each is not seq] or None
        self._book.close_choice(live, seq.choice)

    def end_request(self, live: LiveRequest, reason: FinishReason, message: str = "") -> None:
        """Ends every choice that has not ended, those included that were never forked."""
        for choice in sorted(live.open_choices):
            seq = live.choices.get(choice)
            row = RowId(live.request.request_id, choice, live.incarnation, 0) if seq is None else seq.row_id
            num_emitted = 0 if seq is None else len(seq.tokens) - seq.prompt_len
            self._journal.cut_short(row, num_emitted, reason, message)
            if seq is not None:
                self.close(live, seq, reason)
            else:
                self._journal.finished(row, reason)
                self._book.close_choice(live, choice)

    def expire(self) -> None:
        """Ends every request whose deadline has passed."""
        deadlines = self._book.deadlines
        while deadlines:
            live = deadlines[0]
            deadline_s = live.request.deadline_s
            if deadline_s is None or deadline_s > self._clock.now():
                return
            self.end_request(live, FinishReason.DEADLINE)

    def preempt(self, seq: Sequence) -> RowId:
        """A transaction of its own: the victim's blocks go, behind its plans in flight, and it waits to begin again."""
        row = seq.row_id
        self._journal.preempted(row)
        self._forget_drafts(seq)
        self._kv.release(seq.table, row)
        self._wait_again(seq)
        return row

    def begin_again(self, seq: Sequence) -> None:
        """Memory was lost with all that was computed: a running choice waits to begin again."""
        self._forget_drafts(seq)
        self._wait_again(seq)

    def _wait_again(self, seq: Sequence) -> None:
        self._book.leave(seq)
        seq.begin_again()
        self._book.wait(seq)

    def _forget_drafts(self, seq: Sequence) -> None:
        if self._drafting is not None:
            self._drafting.forget(seq, seq.row_id)

    def try_half(self, seqs: list[Sequence], was_second_try: bool, reason: str) -> None:
        """After a failed step: the first half of its rows is tried once more; the rows of a second try end."""
        book = self._book
        book.only = None
        if not was_second_try:
            book.only = frozenset(seqs[: -(-len(seqs) // 2)]) or None
            return
        for request_id in dict.fromkeys(seq.request.request_id for seq in seqs):
            live = book.live.get(request_id)
            if live is not None:
                self.end_request(live, FinishReason.ERROR, reason)

    def withdraw(self, flight: InFlight) -> None:
        """A step that was rolled back or abandoned has no rows any more; whom it admitted waits again."""
        for seq in flight.current():
            seq.rows = seq.rows[:-1]
        for seq in flight.admitted:
            if seq.status is Status.RUNNING and not seq.table.blocks:
                self._book.leave(seq)
                seq.status = Status.WAITING
                seq.committed_len = 0
                self._book.wait(seq)
