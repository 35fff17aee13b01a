"""Owns a choice's status, identity and lengths. Never decides what runs next and never touches blocks itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

from engine_under_test.kv.record import BlockTable
from engine_under_test.types import Adapter, FinishReason, Logprobs, Request, RowId, SequenceSnapshot, Status


class PlannedRow(NamedTuple):
    """A row in flight under the choice's present epoch."""

    plan_id: int
    num_tokens: int
    samples: bool


class Sequence:
    """One choice of one life of a request.

    ``scheduled_len`` is derived from ``committed_len`` and the rows in flight, never stored. ``pending_forks`` counts the
    choices that this one will be split into once the prompt, but for its last token, is committed.
    """

    __slots__ = (
        "_memo",
        "_seen",
        "_shown",
        "adapter",
        "choice",
        "committed_len",
        "draft_laws",
        "drafted_at",
        "drafts",
        "epoch",
        "has_asked",
        "incarnation",
        "is_aged",
        "keys",
        "last_plan",
        "load",
        "max_len",
        "namespace",
        "needs_history",
        "ordinal",
        "overtaken",
        "pending_forks",
        "prompt_len",
        "prompt_logprobs",
        "request",
        "row_id",
        "rows",
        "status",
        "stop_ids",
        "table",
        "tokens",
        "was_asked",
    )

    def __init__(self, request: Request, choice: int, incarnation: int, ordinal: int, namespace: bytes) -> None:
        self.request = request
        self.adapter: Adapter | None = request.adapter
        self.choice = choice
        self.incarnation = incarnation
        self.ordinal = ordinal  # order of acceptance; choices share it
        self.epoch = 0
        self.row_id = RowId(request.request_id, choice, incarnation, 0)
        self.status = Status.WAITING
        self.tokens = list(request.prompt)
        self.prompt_len = len(request.prompt)
        self.max_len = self.prompt_len + request.sampling.max_tokens - 1  # slots ever computed
        self.stop_ids = frozenset(request.sampling.stop_token_ids)
        self.needs_history = request.sampling.needs_history
        asks_of_prompt = request.sampling.prompt_logprobs is not None and choice == 0
        self.prompt_logprobs: list[Logprobs] | None = [] if asks_of_prompt else None  # of its second token, its third, ...
        self.pending_forks = 0
        self.committed_len = 0
        self.rows: tuple[PlannedRow, ...] = ()  # in flight under this epoch, oldest first
        self.last_plan = 0  # the last plan launched for it, under any epoch
        self.namespace = namespace
        self.keys: list[bytes] = []
        self.overtaken = 0  # later arrivals admitted since it last began to wait
        self.has_asked = False  # a remote pool, for its prefix, since it last began to wait or the cache was emptied
        self.load: int | None = None  # the transfer that it waits for
        self.drafts: tuple[int, ...] = ()  # proposed for what stands behind its tokens
        self.draft_laws: Any = None  # what each was drawn from, if it was drawn
        self.drafted_at = 0  # how many tokens it had when it was asked for drafts last, under this epoch
        self.was_asked = False  # a proposer may keep something of it, under this epoch
        self.is_aged = False  # was overtaken as often as the policy allows; stays first from then on
        self._memo: tuple[int, tuple[int, ...]] = (-1, ())
        self._seen: tuple[object, ...] = ()  # the state in which it was shown last, and what was shown then
        self._shown: SequenceSnapshot
        self.table = self._new_table()

    def _new_table(self) -> BlockTable:
        return BlockTable(self.namespace, self.tokens, self.request.media, self.keys)

    @property
    def scheduled_len(self) -> int:
        if not self.rows:
            return self.committed_len
        return self.committed_len + sum([row.num_tokens for row in self.rows])

    @property
    def goal_len(self) -> int:
        """Up to where slots can be computed now: known tokens and those being sampled, never beyond what will be needed.

        A choice that is still to be forked stops one short of its prompt's end.
        """
        if self.pending_forks:
            return self.prompt_len - 1
        known = len(self.tokens)
        if self.rows:
            known += sum([row.samples for row in self.rows])
        return known if known < self.max_len else self.max_len

    @property
    def computes_whole_prompt(self) -> bool:
        """Something is to be told of prompt tokens that was not told yet: nothing is taken from the prefix cache until then."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_len - 1

    def tell_of_prompt(self, start: int, told: tuple[Logprobs, ...]) -> None:
        """Of the prompt tokens behind positions ``start``, ``start`` + 1, ...; what is known from before a preemption stays."""
        if self.prompt_logprobs is not None:
            self.prompt_logprobs += told[len(self.prompt_logprobs) - start :]

    @property
    def num_seats(self) -> int:
        """Places it takes among the running sequences: one, and one for each choice that it will be split into."""
        return 1 + self.pending_forks

    def memoised_hits(self, version: int) -> tuple[int, ...] | None:
        return self._memo[1] if self._memo[0] == version else None

    def memoise_hits(self, version: int, hits: tuple[int, ...]) -> None:
        self._memo = (version, hits)

    def begin_again(self) -> None:
        """Back to the queue, everything to be computed anew; results in flight are void (AS-4)."""
        self.epoch += 1
        self.status = Status.WAITING
        self._identify()
        self.reset_progress()

    def reset_progress(self) -> None:
        """Nothing computed, nothing in flight under this epoch, an empty table. The old table must have been released."""
        self.committed_len = 0
        self.rows = ()
        self.table = self._new_table()
        self.overtaken = 0
        self.has_asked = False
        self.drafts, self.draft_laws = (), None
        self.drafted_at = 0

    def end(self) -> None:
        self.epoch += 1
        self.status = Status.FINISHED
        self._identify()
        self.rows = ()

    def _identify(self) -> None:
        self.row_id = RowId(self.request.request_id, self.choice, self.incarnation, self.epoch)

    def append(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        """Takes in the next tokens of its output, up to its end: those taken, and why it ends with them if it does."""
        known = self.tokens
        num_before = len(known)
        for token in tokens:
            known.append(token)
            reason = self.finish_reason_after(token)
            if reason is not None:
                return tuple(known[num_before:]), reason
        return tokens, None

    def finish_reason_after(self, token: int) -> FinishReason | None:
        """Why the choice ends with `token`, the last of its tokens, if it does (SC-12).

        A stop token at an index below min_tokens was drawn because everything else was masked too: it does not end.
        """
        num_emitted = len(self.tokens) - self.prompt_len
        sampling = self.request.sampling
        if token in self.stop_ids and num_emitted > sampling.min_tokens:
            return FinishReason.STOP
        return FinishReason.LENGTH if num_emitted >= sampling.max_tokens else None

    def snapshot(self, block_size: int, sources: list[tuple[int, int]] | None) -> SequenceSnapshot:
        """The choice as the harness may see it; `sources` as `KvTransaction.sources` gives them."""
        table, rows = self.table, self.rows
        blocks, num_owned = table.blocks, table.num_owned
        known, committed = len(self.tokens), self.committed_len
        # All that can differ from the last look, taken from where it stands: no flag that a change could forget to set.
        state = (self.epoch, self.status, known, committed, num_owned, blocks, rows, sources)
        if state == self._seen:
            return self._shown
        owned, reserved = (blocks, ()) if num_owned >= len(blocks) else (blocks[:num_owned], blocks[num_owned:])
        for place, block in sources or ():
            owned = (*owned[:place], block, *owned[place + 1 :])
        is_one = len(rows) == 1  # as nearly always
        self._seen = state
        self._shown = shown = _show(
            (
                self.request.request_id,
                self.choice,
                self.incarnation,
                self.epoch,
                self.status,
                self.prompt_len,
                known,
                committed,
                committed
                if not rows
                else committed + (rows[0].num_tokens if is_one else sum([row.num_tokens for row in rows])),
                len(blocks) * block_size,
                owned,
                reserved,
                () if not rows else (rows[0].plan_id,) if is_one else tuple([row.plan_id for row in rows]),
            )
        )
        return shown


# Quicker than a call with thirteen arguments.
_show = cast("Callable[[tuple[Any, ...]], SequenceSnapshot]", partial(tuple.__new__, SequenceSnapshot))
