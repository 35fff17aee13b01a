"""Chooses victims and writes the next plan: two pure functions of a live, read-only view.

They change nothing and may be asked again. State changes only from `engine.py`, which applies what is decided here.
"""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Items
from operator import attrgetter
from typing import Any, Protocol

from engine_under_test.config import EngineConfig
from engine_under_test.scheduling.admission import Room, lacks_slot, may_be_passed, try_to_enter
from engine_under_test.scheduling.policy import next_waiting
from engine_under_test.sequence import Sequence
from engine_under_test.types import Adapter, Plan

_needs_history = attrgetter("needs_history")
_identity = attrgetter("request", "choice", "incarnation", "epoch")


class View(Protocol):
    """What a decision may look at. Never a copy: it shows the state at the moment of asking."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def generation(self) -> int: ...
    @property
    def next_plan_id(self) -> int: ...
    @property
    def running(self) -> Items[Sequence]:
        """In the declared order, first the one that is preempted last."""

    @property
    def waiting(self) -> Items[Sequence]:
        """In the declared order."""

    @property
    def only(self) -> Collection[Sequence] | None:
        """If not None, nothing but these may be planned (the half of a failed step that is tried again)."""

    @property
    def may_admit(self) -> bool:
        """False in the step in which somebody was preempted: what was given up is for those who run."""

    @property
    def num_loading(self) -> int:
        """Waiting sequences whose prefix is on its way from elsewhere: they are passed over."""

    @property
    def max_drafts(self) -> int:
        """For a row and step; 0: this engine does not speculate. What was proposed for whom stands in `Sequence.drafts`."""

    @property
    def num_adapter_slots(self) -> int:
        """Slots for adapters that hold something of use or can be loaded."""

    @property
    def adapters_in_flight(self) -> Collection[Adapter]:
        """Of plans that have not settled: their slots are taken."""

    @property
    def num_free(self) -> int: ...
    @property
    def num_quarantined(self) -> int: ...
    @property
    def ref_counts(self) -> Items[int]: ...
    def is_free(self, block: int) -> bool: ...
    def hits(self, seq: Sequence) -> tuple[int, ...]:
        """What a waiting sequence would find in the prefix cache (KV-13 applied). Memoised, pure."""

    def has_landed(self, seq: Sequence) -> bool:
        """No plan launched for the sequence before it last began to wait is still in flight."""


class Scheduler:
    """A namespace for the decisions, so that another scheduler can be handed to an engine."""

    __slots__ = ()

    def choose_victims(self, view: View) -> tuple[Sequence, ...]:
        """Whom to preempt, in this order, so that every running sequence that stays can compute its next token.

        From the last in order, never the first. Blocks in quarantine count as coming: no further victim is taken while they
        cover the need.
        """
        running = view.running
        available = view.num_free + view.num_quarantined
        if len(running) <= available:  # each needs one block at most
            return ()
        size = view.config.block_size
        ref_counts = view.ref_counts
        need = 0
        for seq in running:
            start = seq.scheduled_len if seq.rows else seq.committed_len
            blocks = seq.table.blocks
            if start >= len(blocks) * size or (start % size and ref_counts[blocks[start // size]] > 1):
                need += start < seq.goal_len
        if need <= available:
            return ()
        victims: list[Sequence] = []
        left: dict[int, int] = {}
        for seq in reversed(running[1:]):
            if need <= available:
                break
            victims.append(seq)
            need -= _blocks_for(seq, seq.scheduled_len, 1, size, ref_counts)
            for block in seq.table.blocks:
                left[block] = left.get(block, ref_counts[block]) - 1
                available += left[block] == 0
        return tuple(victims)

    def plan(self, view: View) -> Plan | None:
        """The next step: decodes first (each has a place), then running prefills, then whoever may enter; None if nothing."""
        config = view.config
        rows = _Rows()
        room = Room(
            budget=config.max_tokens_per_step,
            rows=config.max_num_seqs if config.batching else 1,
            free=view.num_free,
            seats=config.max_num_seqs,
            is_alone=not view.running,
            num_adapters=view.num_adapter_slots,
            adapters=set(view.adapters_in_flight),
        )
        _plan_running(view, rows, room)
        if view.waiting and view.may_admit:
            _plan_waiting(view, rows, room)
        if view.max_drafts and view.only is None:
            _add_drafts(view, rows, room)
        return rows.to_plan(view) if rows.seqs else None


class _Rows:
    """A plan in the making."""

    __slots__ = ("counts", "hits", "num_drafts", "seqs", "starts")

    def __init__(self) -> None:
        self.seqs: list[Sequence] = []
        self.starts: list[int] = []
        self.counts: list[int] = []
        self.hits: list[tuple[int, ...]] = []
        self.num_drafts: dict[int, int] = {}  # by row

    def add(self, seq: Sequence, start: int, count: int, hits: tuple[int, ...]) -> None:
        self.seqs.append(seq)
        self.starts.append(start)
        self.counts.append(count)
        self.hits.append(hits)

    def to_plan(self, view: View) -> Plan:
        seqs, starts, counts = self.seqs, self.starts, self.counts
        requests, choices, incarnations, epochs = zip(*map(_identity, seqs), strict=True)
        token_ids: list[int] = []
        pending: list[int] = []
        samples: list[bool] = []
        for seq, start, count in zip(seqs, starts, counts, strict=True):
            tokens = seq.tokens
            known = len(tokens)
            end = start + count
            if count == 1 and end <= known:
                token_ids.append(tokens[start])
            else:
                token_ids += tokens[start:end]
            pending.append(1 if end > known else 0)
            samples.append(end >= known and not seq.pending_forks)
        num_drafts: tuple[int, ...] = ()
        laws: tuple[Any, ...] = ()
        if self.num_drafts:
            num_drafts = tuple([self.num_drafts.get(row, 0) for row in range(len(seqs))])
            token_ids = _with_drafts(token_ids, counts, pending, seqs, num_drafts)
            counts = [count + num for count, num in zip(counts, num_drafts, strict=True)]
            laws = _laws_of(seqs, num_drafts)
        return Plan(
            view.next_plan_id,
            view.generation,
            requests,
            choices,
            incarnations,
            epochs,
            tuple(starts),
            tuple(counts),
            tuple(token_ids),
            tuple(pending),
            tuple(samples),
            tuple(self.hits),
            _outputs_of(seqs) if any(map(_needs_history, seqs)) else (),
            num_drafts,
            laws,
        )


def _with_drafts(
    token_ids: list[int], counts: list[int], pending: list[int], seqs: Items[Sequence], num_drafts: Items[int]
) -> list[int]:
    """Each row's known tokens, then its drafts."""
    found: list[int] = []
    begin = 0
    for seq, count, is_pending, num in zip(seqs, counts, pending, num_drafts, strict=True):
        end = begin + count - is_pending
        found += token_ids[begin:end]
        found += seq.drafts[:num]
        begin = end
    return found


def _laws_of(seqs: Items[Sequence], num_drafts: Items[int]) -> tuple[Any, ...]:
    """What the drafts of each row were drawn from."""
    found = [
        seq.draft_laws[:num] if num and seq.draft_laws is not None else None for seq, num in zip(seqs, num_drafts, strict=True)
    ]
    return tuple(found) if any(law is not None for law in found) else ()


def _outputs_of(seqs: Items[Sequence]) -> tuple[tuple[int, ...] | None, ...]:
    """The output of each choice whose sampling needs it."""
    return tuple([tuple(seq.tokens[seq.prompt_len :]) if seq.needs_history else None for seq in seqs])


def _blocks_for(seq: Sequence, start: int, count: int, size: int, ref_counts: Items[int]) -> int:
    """Free blocks that computing ``start .. start + count - 1`` takes, a copy on write included."""
    if start >= seq.goal_len:
        return 0
    blocks = seq.table.blocks
    number, offset = divmod(start, size)
    copies = 1 if offset and ref_counts[blocks[number]] > 1 else 0
    return max(-(-(start + count) // size) - len(blocks), 0) + copies


def _plan_running(view: View, rows: _Rows, room: Room) -> None:
    """Decodes in order, then prefills in order. A row without blocks now waits for the quarantine."""
    size = view.config.block_size
    ref_counts = view.ref_counts
    only = view.only
    free = room.free
    limit = min(room.rows, room.budget)
    drafts_are_asked = view.max_drafts > 0
    prefills: list[tuple[Sequence, int]] = []
    seqs, starts = rows.seqs, rows.starts
    for seq in view.running:
        if seq.adapter is not None:
            room.adapters.add(seq.adapter)
        room.seats -= 1 + seq.pending_forks
        if only is not None and seq not in only:
            continue
        start = seq.scheduled_len if seq.rows else seq.committed_len
        remaining = seq.goal_len - start
        if remaining != 1:
            if remaining > 1:
                prefills.append((seq, start))
            continue
        if len(seqs) >= limit:
            continue
        if drafts_are_asked and seq.rows and _waits_for_its_token(seq):
            continue
        blocks = seq.table.blocks
        if start >= len(blocks) * size or (start % size and ref_counts[blocks[start // size]] > 1):
            if free < 1:
                continue
            free -= 1
        seqs.append(seq)
        starts.append(start)
    count = len(seqs)
    rows.counts = [1] * count
    rows.hits = [()] * count
    room.free = free
    room.rows -= count
    room.budget -= count
    if prefills:
        _plan_prefills(view, prefills, rows, room)


def _waits_for_its_token(seq: Sequence) -> bool:
    """A token of it is on its way, and drafts may be proposed behind that. (Behind drafts in flight nothing can be planned.)"""
    if not seq.rows[-1].samples:
        return False
    had_none = not seq.drafts and seq.drafted_at == len(seq.tokens)
    return not had_none or len(seq.rows) > 1


def _plan_prefills(view: View, prefills: list[tuple[Sequence, int]], rows: _Rows, room: Room) -> None:
    """Each gets as much as budget and blocks allow, but leaves one token's blocks to each one behind it."""
    size = view.config.block_size
    ref_counts = view.ref_counts
    minimal = [_blocks_for(seq, start, 1, size, ref_counts) for seq, start in prefills]
    behind = sum(minimal)
    for (seq, start), least in zip(prefills, minimal, strict=True):
        behind -= least
        remaining = seq.goal_len - start
        count = min(remaining, room.budget)
        available = max(room.free - behind, 0)
        if _blocks_for(seq, start, count, size, ref_counts) > available:
            copies = _blocks_for(seq, start, 1, size, ref_counts) if start % size else 0
            count = (len(seq.table.blocks) + available - copies) * size - start
        whole = -(-min(len(seq.tokens) + 1, seq.max_len) // size) - len(seq.table.blocks)
        if count >= 1 and room.rows >= 1 and (view.config.chunking or count == remaining):
            taken = _blocks_for(seq, start, count, size, ref_counts)
            rows.add(seq, start, count, ())
            room.free -= taken
            room.rows -= 1
            room.budget -= count
            whole -= taken
        room.promised += max(whole, 0) + 2 * seq.pending_forks


def _plan_waiting(view: View, rows: _Rows, room: Room) -> None:
    """Whoever may enter, strictly in order: the first that may not keeps everybody behind it out (SC-8). Who waits for a load
    keeps nobody out, nor, up to the stated bound, who waits for a slot for its adapter.

    In a second try the rows that failed enter before those who came since, however urgent: they had entered before them.
    """
    config = view.config
    only = view.only
    size = config.block_size
    admitted: list[Sequence] = []
    waiting = view.waiting if only is None else [seq for seq in view.waiting if seq in only]
    if view.num_loading:
        waiting = [seq for seq in waiting if seq.load is None]
    passed: list[Sequence] = []
    while waiting and all(may_be_passed(seq, admitted, config) for seq in passed):
        seq = next_waiting(config.order, waiting, admitted, config.max_overtakes)
        if seq is None:
            return
        entry = try_to_enter(view, seq, room)
        if entry is None:
            if not lacks_slot(seq, room) or not may_be_passed(seq, admitted, config):
                return
            passed.append(seq)
            waiting = [each for each in waiting if each is not seq]
            continue
        start = len(entry.hits) * size
        rows.add(seq, start, entry.num_tokens, entry.hits)
        admitted.append(seq)
        fresh = {block for block in entry.hits if view.is_free(block)} - room.revived
        room.revived |= fresh
        taken = -(-(start + entry.num_tokens) // size) - len(entry.hits)
        room.free -= len(fresh) + taken
        room.rows -= 1
        room.budget -= entry.num_tokens
        room.seats -= seq.num_seats
        room.is_alone = False
        whole = -(-min(len(seq.tokens) + 1, seq.max_len) // size) - len(entry.hits) - taken
        room.promised += max(whole, 0) + 2 * seq.pending_forks
        if seq.adapter is not None:
            room.adapters.add(seq.adapter)


def _add_drafts(view: View, rows: _Rows, room: Room) -> None:
    """What is left of the step goes to drafts, in the order of the rows: they never take a token or a row from anybody.

    Blocks are taken for them only if nobody waits, and not those that running choices will want next.
    """
    size = view.config.block_size
    spare = 0 if view.waiting else max(room.free - room.promised - len(view.running), 0)
    for row, (seq, start, count) in enumerate(zip(rows.seqs, rows.starts, rows.counts, strict=True)):
        drafts, end = seq.drafts, start + count
        if not drafts or seq.drafted_at != len(seq.tokens) or end != len(seq.tokens):
            continue
        num_blocks = max(len(seq.table.blocks), -(-end // size))
        width = min(len(drafts), room.budget, (num_blocks + spare) * size - end)
        if width > 0:
            spare -= max(-(-(end + width) // size) - num_blocks, 0)
            room.budget -= width
            rows.num_drafts[row] = width
