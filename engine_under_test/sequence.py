"""Owns a choice's status, identity and lengths. Never decides what runs next and never touches blocks itself."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from engine_under_test.kv.record import BlockTable
from engine_under_test.types import Adapter, FinishReason, Request, RowId, SequenceSnapshot, Status


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
        "_shown",
        "adapter",
        "choice",
        "committed_len",
        "epoch",
        "incarnation",
        "is_aged",
        "keys",
        "last_plan",
        "max_len",
        "namespace",
        "ordinal",
        "overtaken",
        "pending_forks",
        "prompt_len",
        "request",
        "rows",
        "status",
        "stop_ids",
        "table",
        "tokens",
    )

    def __init__(self, request: Request, choice: int, incarnation: int, ordinal: int, namespace: bytes) -> None:
        self.request = request
        self.adapter: Adapter | None = request.adapter
        self.choice = choice
        self.incarnation = incarnation
        self.ordinal = ordinal  # order of acceptance; choices share it
        self.epoch = 0
        self.status = Status.WAITING
        self.tokens = list(request.prompt)
        self.prompt_len = len(request.prompt)
        self.max_len = self.prompt_len + request.sampling.max_tokens - 1  # slots ever computed
        self.stop_ids = frozenset(request.sampling.stop_token_ids)
        self.pending_forks = 0
        self.committed_len = 0
        self.rows: deque[PlannedRow] = deque()
        self.last_plan = 0  # the last plan launched for it, under any epoch
        self.namespace = namespace
        self.keys: list[bytes] = []
        self.overtaken = 0  # later arrivals admitted since it last began to wait
        self.is_aged = False  # was overtaken as often as the policy allows; stays first from then on
        self._memo: tuple[int, tuple[int, ...]] = (-1, ())
        self._shown: SequenceSnapshot | None = None
        self.table = self._new_table()

    def _new_table(self) -> BlockTable:
        return BlockTable(self.namespace, self.tokens, self.request.media, self.keys)

    @property
    def row_id(self) -> RowId:
        return RowId(self.request.request_id, self.choice, self.incarnation, self.epoch)

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
        if not self.rows:
            return min(len(self.tokens), self.max_len)
        return min(len(self.tokens) + sum([row.samples for row in self.rows]), self.max_len)

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
        self.reset_progress()

    def reset_progress(self) -> None:
        """Nothing computed, nothing in flight under this epoch, an empty table. The old table must have been released."""
        self.committed_len = 0
        self.rows.clear()
        self.table = self._new_table()
        self.overtaken = 0

    def end(self) -> None:
        self.epoch += 1
        self.status = Status.FINISHED
        self.rows.clear()

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
        table = self.table
        blocks, rows = table.blocks, self.rows
        owned = tuple(blocks)
        reserved: tuple[int, ...] = ()
        is_idle = not rows and not sources and table.num_owned >= len(blocks)
        if is_idle and (shown := self._still_shown(owned)) is not None:
            return shown
        if table.num_owned < len(blocks):
            owned, reserved = owned[: table.num_owned], owned[table.num_owned :]
        for place, block in sources or ():
            owned = (*owned[:place], block, *owned[place + 1 :])
        committed = self.committed_len
        made = _show(
            (
                self.request.request_id,
                self.choice,
                self.incarnation,
                self.epoch,
                self.status,
                self.prompt_len,
                len(self.tokens),
                committed,
                committed + sum([row.num_tokens for row in rows]) if rows else committed,
                len(blocks) * block_size,
                owned,
                reserved,
                tuple([row.plan_id for row in rows]) if rows else (),
            )
        )
        if is_idle:
            self._shown = made
        return made

    def _still_shown(self, owned: tuple[int, ...]) -> SequenceSnapshot | None:
        """What was shown of the idle choice last, if it is true still: with nothing in flight only five columns can differ."""
        shown = self._shown
        if (
            shown is None
            or shown.visible_len != len(self.tokens)
            or shown.committed_len != self.committed_len
            or shown.epoch != self.epoch
            or shown.status is not self.status
            or shown.table != owned
        ):
            return None
        return shown


_show = SequenceSnapshot._make  # quicker than a call with thirteen arguments
