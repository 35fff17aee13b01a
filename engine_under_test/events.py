"""What an observer is told: every transition of a request, a plan, a block or a rank, and what a device found of itself.

Values only, as in `types.py`; nothing here decides or counts anything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import NamedTuple, cast

from engine_under_test.types import FinishReason, RowId


class EventKind(StrEnum):
    """Every transition of a request, a plan or a block. The comment names the columns of `Event` that are set."""

    ACCEPTED = "accepted"  # request; tokens = prompt length
    REFUSED = "refused"  # request id, reason
    SCHEDULED = "scheduled"  # row, plan; tokens = tokens planned
    HIT = "hit"  # row, plan; blocks = hit blocks; tokens = tokens found in the cache
    FORKED = "forked"  # row of the child; blocks = shared table
    EMITTED = "emitted"  # row, plan; tokens = number emitted
    PREEMPTED = "preempted"  # row under its old epoch
    FINISHED = "finished"  # row; reason = FinishReason
    LAUNCHED = "launched"  # plan; tokens = rows
    COMMITTED = "committed"  # plan
    ROLLED_BACK = "rolled_back"  # plan
    ABANDONED = "abandoned"  # plan, reason
    ROW_DROPPED = "row_dropped"  # row, plan: its result came after abort, preemption or end (AS-3)
    RESULT_DROPPED = "result_dropped"  # plan: no such plan in flight (AS-4)
    SETTLED = "settled"  # plan: its fence has passed
    RESERVED = "reserved"  # row, plan, blocks: taken from the free queue
    OWNED = "owned"  # row, plan, blocks: reserved -> owned
    RELEASED = "released"  # row, blocks: the holder let go, tail first
    QUARANTINED = "quarantined"  # blocks; plan = whose end they wait for
    FREED = "freed"  # blocks: into the free queue, in this order
    EVICTED = "evicted"  # blocks: cached -> taken
    PUBLISHED = "published"  # row, blocks: now in the index
    COPIED = "copied"  # row, plan; blocks = (source, target)
    PINNED = "pinned"  # blocks
    UNPINNED = "unpinned"  # blocks
    LOADING = "loading"  # row: from now on it waits for a load, and is passed over; tokens = those asked for
    LOAD_ENDED = "load_ended"  # row: it waits no more; tokens = those that arrived whole
    CLAIMED = "claimed"  # blocks: taken from the free queue for a transfer to write, and pinned
    LOADED = "loaded"  # row, blocks: written by a transfer, now in the index; tokens = those before the first of them
    CACHE_RESET = "cache_reset"


class Event(NamedTuple):
    """One transition, in the order in which it happened. Columns that a kind does not set keep their defaults."""

    kind: EventKind
    row: RowId | None = None
    plan_id: int | None = None
    blocks: tuple[int, ...] = ()
    tokens: int = 0
    reason: str = ""


event_of = cast(
    "Callable[[tuple[EventKind, RowId | None, int | None, tuple[int, ...], int, str]], Event]", partial(tuple.__new__, Event)
)


class RaceKind(StrEnum):
    """Which two accesses of one page were not ordered, the later one first."""

    READ_AFTER_WRITE = "read after write"
    WRITE_AFTER_WRITE = "write after write"
    WRITE_AFTER_READ = "write after read"


class Race(NamedTuple):
    """Two accesses of one page, at least one of them a write, with no order between them: neither one stream, nor a wait,
    nor an end that the host saw. ``first`` was submitted (or done by the host) before ``second``; the causes say what the host
    was about then, as it was told to the device."""

    kind: RaceKind
    buffer: str
    unit: int
    first: str
    first_thread: str  # a stream, or "host"
    second: str
    second_thread: str
    first_cause: str = ""
    second_cause: str = ""


class Misdeclared(NamedTuple):
    """What an operation touched without having declared it (AS-5)."""

    op: str
    verb: str  # "read" or "wrote"
    buffer: str
    units: tuple[int, ...]


class DeviceChoice(NamedTuple):
    """What was chosen for one operation of a simulated device: the `kth` (from 0) that its cause put on `stream` starts no
    earlier than `delay` places after the turn in which it was submitted (see `execution/schedule.py`), and the host learns of
    its end `late` turns after it."""

    stream: str
    kth: int
    delay: int = 0
    late: int = 0


@dataclass(slots=True)
class Counters:
    """Totals since the engine began (SC-14: each equals a recount from the events). All in tokens, rows, blocks or requests."""

    accepted: int = 0  # requests
    refused: int = 0  # requests
    scheduled_tokens: int = 0
    cached_tokens: int = 0  # tokens of rows found in the prefix cache
    emitted_tokens: int = 0
    preempted: int = 0  # choices
    evicted: int = 0  # blocks
    finished: dict[FinishReason, int] = field(default_factory=dict)  # choices
    launched: int = 0  # plans
    committed: int = 0  # plans
    abandoned: int = 0  # plans
    rolled_back: int = 0  # plans
    dropped_results: int = 0
    dropped_rows: int = 0


class RankEventKind(StrEnum):
    """What a driver of ranks saw. The comment names the columns of `RankEvent` that are set, but for generation and at_s."""

    JOINED = "joined"  # rank, pool, window
    SENT = "sent"  # sequence, plan, rows: to all ranks
    EXECUTED = "executed"  # rank, sequence, plan, rows, collectives; reason if the step was refused
    # rank (None if nobody can tell which one), reason; bound_s: within which it must be noticed, 0 if it may pass; least_s:
    # from which on it may be. Told by whoever strikes
    STRUCK = "struck"
    LOST = "lost"  # rank, reason: the group is broken, all of its ranks are ended
    RESTARTED = "restarted"  # the new generation
    CLOSED = "closed"  # for good


class RankEvent(NamedTuple):
    """One step in the life of a group of ranks. ``pool``: blocks and block size; ``window``: see `RankConfig`."""

    kind: RankEventKind
    generation: int
    at_s: float
    rank: int | None = None
    sequence: int = 0
    plan_id: int | None = None
    rows: tuple[RowId, ...] = ()
    collectives: tuple[str, ...] = ()
    pool: tuple[int, int] = (0, 0)
    window: int = 0
    bound_s: float = 0.0
    reason: str = ""
    least_s: float = 0.0
