"""What a landed result does: what it wrote is confirmed, its tokens are applied row by row, who was to fork forks.

Owns nothing: it changes the book, the blocks and the journal for the engine, which alone calls it and says when a result's
turn has come. Never pairs a result with its plan (`flights.py`), never ends a choice itself (`ends.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine_under_test.applied import Applied, apply_drafts, tell_of_prompts
from engine_under_test.book import Book
from engine_under_test.drafting import Drafting
from engine_under_test.ends import Ends
from engine_under_test.flights import InFlight
from engine_under_test.journal import Journal
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.sequence import Sequence
from engine_under_test.types import FinishReason, Logprobs, StepResult

if TYPE_CHECKING:
    from engine_under_test.remote import RemotePrefixes  # an engine without a remote pool imports nothing of it


class Results:
    """See the module. ``ends``: to whom a choice goes whose last token was told."""

    __slots__ = ("_book", "_drafting", "_ends", "_journal", "_kv", "_remote")

    def __init__(
        self,
        book: Book,
        kv: KvTransaction,
        journal: Journal,
        ends: Ends,
        remote: RemotePrefixes | None,
        drafting: Drafting | None,
    ) -> None:
        self._book = book
        self._kv = kv
        self._journal = journal
        self._ends = ends
        self._remote = remote
        self._drafting = drafting

    def apply(self, flight: InFlight, result: StepResult) -> None:
        """The result of the oldest plan: first what it wrote is confirmed, then its tokens are applied row by row."""
        plan = flight.step.plan
        verified: dict[int, Applied] = {}
        if plan.num_drafts:
            ends, verified = apply_drafts(flight, result)
            self._kv.commit(plan.plan_id, ends)
        else:
            self._kv.commit(plan.plan_id)
        if self._remote is not None:
            self._remote.store_published()
        self._journal.counters.committed += 1
        parents = []
        if result.prompt_logprobs:
            tell_of_prompts(flight, result)
        told = result.logprobs or ((),) * len(flight.seqs)
        for row, (seq, epoch, count, tokens, logprobs) in enumerate(
            zip(flight.seqs, plan.epochs, plan.num_tokens, result.tokens, told, strict=True)
        ):
            if seq.epoch != epoch:
                self._journal.row_dropped(seq, epoch, plan.plan_id)
                continue
            seq.rows = seq.rows[1:]
            if row in verified:
                self._emit_verified(seq, verified[row], tokens, logprobs, plan.plan_id)
                continue
            seq.committed_len += count
            if tokens:
                self._emit(seq, tokens, plan.plan_id, logprobs)
            elif seq.pending_forks and not seq.rows and seq.committed_len == seq.prompt_len - 1:
                parents.append(seq)
        for seq in parents:
            self._fork(seq)
        if self._drafting is not None:
            self._drafting.plan_landed(plan, result.tokens)

    def _emit(self, seq: Sequence, tokens: tuple[int, ...], plan_id: int, logprobs: tuple[Logprobs, ...]) -> None:
        """Applies sampled tokens up to the end of the choice; what lies behind it is dropped."""
        kept, reason = seq.append(tokens)
        self._tell(seq, kept, reason, plan_id, logprobs)
        if reason is None and self._drafting is not None:
            self._drafting.landed(seq, 0)

    def _emit_verified(
        self, seq: Sequence, applied: Applied, tokens: tuple[int, ...], logprobs: tuple[Logprobs, ...], plan_id: int
    ) -> None:
        """The same for tokens that were applied before what they stand on was confirmed."""
        kept, reason, end = applied
        seq.committed_len = end
        self._tell(seq, kept, reason, plan_id, logprobs)
        if reason is None and self._drafting is not None:
            self._drafting.landed(seq, len(tokens) - 1)

    def _tell(
        self, seq: Sequence, kept: tuple[int, ...], reason: FinishReason | None, plan_id: int, logprobs: tuple[Logprobs, ...]
    ) -> None:
        index = len(seq.tokens) - seq.prompt_len - len(kept)
        self._journal.emitted(seq, index, kept, reason, plan_id, logprobs[: len(kept)])
        if reason is not None:
            self._ends.close(self._book.live[seq.request.request_id], seq, reason)

    def _fork(self, parent: Sequence) -> None:
        """Splits a choice whose prompt, but for its last token, is committed: the others share its blocks."""
        live = self._book.live[parent.request.request_id]
        for choice in range(1, parent.pending_forks + 1):
            child = Sequence(parent.request, choice, parent.incarnation, parent.ordinal, parent.namespace)
            child.is_aged = parent.is_aged
            child.committed_len = parent.committed_len
            child.last_plan = parent.last_plan
            self._kv.fork(parent.table, child.table)
            self._book.enter(live, child)
            self._book.run(child)
            self._journal.forked(child)
        parent.pending_forks = 0
