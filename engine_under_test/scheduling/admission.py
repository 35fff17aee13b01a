"""Decides who may enter a plan from the queue.

Never orders and never changes anything. Whether a request is possible at all was decided at the door (`door.py`).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from engine_under_test.config import EngineConfig, Order
from engine_under_test.sequence import Sequence
from engine_under_test.types import Adapter

if TYPE_CHECKING:
    from engine_under_test.scheduling.scheduler import View


@dataclass(slots=True)
class Room:
    """What is left for a plan in the making. ``promised``: blocks that running prefills will still need."""

    budget: int  # tokens
    rows: int
    free: int  # blocks
    seats: int
    promised: int = 0
    is_alone: bool = False  # nothing is running and nothing planned yet
    num_adapters: int = 0  # slots for adapters
    adapters: set[Adapter] = field(default_factory=set)  # of who runs, of plans in flight and of this one
    revived: set[int] = field(default_factory=set)  # free blocks that rows of this plan hit


@dataclass(frozen=True, slots=True)
class Entry:
    """Admitted with these hits, to compute ``num_tokens`` behind them."""

    hits: tuple[int, ...]
    num_tokens: int


def lacks_slot(seq: Sequence, room: Room) -> bool:
    """Its adapter lies in no slot, and there is none into which it could be loaded."""
    return seq.adapter is not None and seq.adapter not in room.adapters and len(room.adapters) >= room.num_adapters


def may_be_passed(seq: Sequence, admitted: Items[Sequence], config: EngineConfig) -> bool:
    """Whether one who lacks a slot may be overtaken once more, those of this very plan counted: a hot adapter does not starve a
    cold one, since behind the last overtake nobody enters before it (SC-8)."""
    most = config.max_adapter_overtakes
    if config.order is not Order.FIRST_COME:
        most = min(most, config.max_overtakes)
    return not seq.is_aged and seq.overtaken + sum(each.ordinal > seq.ordinal for each in admitted) < most


def try_to_enter(view: View, seq: Sequence, room: Room) -> Entry | None:
    """Whether the first of the queue may enter the plan; None leaves it, and everybody behind it, waiting.

    Beside running sequences the whole of it must fit, not only this step's chunk: one admitted on the blocks of one chunk
    would be preempted at the next (resume-preempt thrash). Alone it may begin with what is there.
    """
    config = view.config
    if room.rows < 1 or room.budget < 1 or room.seats < seq.num_seats or not view.has_landed(seq):
        return None
    if lacks_slot(seq, room):
        return None
    size = config.block_size
    hits = view.hits(seq)
    free = room.free - sum(view.is_free(block) and block not in room.revived for block in hits)
    goal = seq.goal_len
    start = len(hits) * size
    num_tokens = min(goal - start, room.budget, free * size)
    if num_tokens < 1 or (not config.chunking and num_tokens < goal - start):
        return None
    if not room.is_alone:
        whole = -(-min(len(seq.tokens) + 1, seq.max_len) // size) - len(hits) + 2 * seq.pending_forks
        if whole > free - room.promised:
            return None
    return Entry(hits, num_tokens)
