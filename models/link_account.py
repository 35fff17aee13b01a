"""An account of the link between an engine and its remote pool, kept from what travels and from what the device moves.

Owns what the engine's own books are not asked for: what a store must send, which load is all there, who waits for it. Judges
with the account of the wire (`properties.kv_wire`) behind it. Never: delivers a message or moves a block.

    DI-3  a store sends what its block held when the store began; one key stands for one content
    DI-5  who waits for a load waits for that load alone: once all of it has come and stands in the store, it is told; blocks
          are held for a transfer no longer than that and the copies of these blocks last
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import State
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.runner import Move
from engine_under_test.execution.simulated_device import SimulatedFence
from engine_under_test.seams import Fence
from engine_under_test.types import RowId, Snapshot
from models.facts import ModelFacts
from models.link_use import LinkUse
from properties.invariants.predicate import blocks_named, row_named, violation
from properties.kv_wire import Wire
from properties.verdict import Violation


class Blocks(Protocol):
    """The harness's device: a mover that can also be looked into."""

    @property
    def block_bytes(self) -> int: ...
    def read_block(self, block: int) -> Move: ...
    def write_block(self, block: int, data: bytes) -> Move: ...
    def content_of(self, block: int) -> bytes:
        """What the block holds now, for whoever only looks."""


class _Load:
    """What has come of one load, and the writes of it that the device was given."""

    __slots__ = ("contents", "is_whole", "writes")

    def __init__(self) -> None:
        self.contents: set[bytes] = set()
        self.writes: list[Fence] = []
        self.is_whole = False  # its END has come


class LinkAccount:
    """Told by the link of each message and by the engine's observer of loads; stands before the device as a mover."""

    def __init__(self, wire: Wire, lease_s: float) -> None:
        self._wire = wire
        self._lease_s = lease_s
        self._device: Blocks | None = None
        self._connector: Connector | None = None
        self._due: dict[int, tuple[bytes, ...]] = {}  # by store: what its blocks held when it began
        self._contents: dict[bytes, bytes] = {}  # by key, as it was sent first
        self._loads: dict[int, _Load] = {}
        self._generation = 0
        self._newest_load = 0
        self._waits: dict[RowId, int] = {}  # for which load
        self._holds: dict[int, tuple[int, ...]] = {}  # by transfer: what is pinned for it, with what stands before
        self._moves: list[tuple[int, Fence]] = []  # of which block; those that the host would not see at their end yet
        self._over: set[int] = set()  # transfers that were over, with the copies of what they hold, when it was polled last
        self._told_late: set[int] = set()  # loads that stood in the store when the engine was polled last
        self.found: Violation | None = None
        self.use: LinkUse  # whether the engine makes use of its pool

    def watch(self, connector: Connector, is_up: Callable[[], bool]) -> None:
        """Its books are asked for one thing only: which transfers it has not given up. ``is_up``: there is a connection."""
        self._connector = connector
        self.use = LinkUse(connector, is_up)

    # ---- as a mover -------------------------------------------------------------------------------------------------------

    def before(self, device: Blocks) -> LinkAccount:
        """Itself, as the mover that the engine is given."""
        self._device = device
        return self

    @property
    def block_bytes(self) -> int:
        return self._blocks.block_bytes

    def read_block(self, block: int) -> Move:
        move = self._blocks.read_block(block)
        self._moves.append((block, move.fence))
        return move

    def write_block(self, block: int, data: bytes) -> Move:
        move = self._blocks.write_block(block, data)
        self._moves.append((block, move.fence))
        for load in self._loads.values():
            if data in load.contents:  # of another one perhaps, with the same content: then it may wait for both
                load.writes.append(move.fence)
        return move

    @property
    def _blocks(self) -> Blocks:
        assert self._device is not None  # `before` comes first
        return self._device

    def restarted(self) -> None:
        """The engine's memory began anew: nothing is held or awaited any more, whenever the pool comes to hear of it."""
        for known in (self._holds, self._moves, self._over, self._waits, self._told_late):
            known.clear()

    # ---- what travels -----------------------------------------------------------------------------------------------------

    def said(self, message: Any) -> None:
        """By the engine."""
        if isinstance(message, m.Hello):
            if message.generation != self._generation:
                self._generation = message.generation
                self._loads.clear()
                self._waits.clear()
                self._holds.clear()
                self._moves.clear()
                self.use.began_anew()
        elif isinstance(message, m.Open) and message.is_store:
            self._store_begins(message)
        elif isinstance(message, m.Open):
            self._newest_load = message.transfer
            self._loads.setdefault(message.transfer, _Load())
        elif isinstance(message, m.Block):
            self._store_sends(message)

    def _store_begins(self, message: m.Open) -> None:
        assert self._connector is not None
        transfer = self._connector.transfers[message.transfer]
        self._due.setdefault(message.transfer, tuple(map(self._blocks.content_of, transfer.blocks)))
        self.use.store_began(transfer.blocks)

    def _store_sends(self, message: m.Block) -> None:
        due = self._due[message.transfer][message.number]
        subject = f"block {message.number} of store {message.transfer}"
        if message.data != due:
            self._wrong(violation("DI-3", subject, f"sent as {message.data.hex()}", f"{due.hex()}, as when its store began"))
        assert self._connector is not None
        key = self._connector.transfers[message.transfer].opened.keys[message.number]
        if (first := self._contents.setdefault(key, message.data)) != message.data:
            self._wrong(violation("DI-3", subject, f"sent as {message.data.hex()}", f"{first.hex()}, sent before for its key"))

    def heard(self, messages: Collection[bytes]) -> None:
        """What the engine takes now."""
        assert self._connector is not None
        for data in messages:
            message = m.decode(data)
            transfer = self._connector.transfers.get(getattr(message, "transfer", -1))
            self._wire.engine_heard(message, transfer is not None and transfer.state is not State.ABORTING)
            load = self._loads.get(getattr(message, "transfer", -1))
            if load is not None and isinstance(message, m.Block):
                load.contents.add(message.data)
            elif load is not None and isinstance(message, m.End):
                load.is_whole = True

    def told(self, event: Event) -> None:
        """By the engine's observer."""
        if event.kind is EventKind.LOADING and event.row is not None:
            self._waits[event.row] = self._newest_load
            self.use.asked(event.row)
        elif event.kind is EventKind.LOAD_ENDED and event.row is not None:
            self._loads.pop(self._waits.pop(event.row, -1), None)

    def saw(self, events: Iterable[Event]) -> None:
        """What the engine's memory told of: holds that begin and end. Where two are of the same blocks, both count as ended."""
        assert self._connector is not None
        for event in events:
            if event.kind is EventKind.PINNED:
                for transfer in self._connector.transfers.values():
                    count = len(transfer.blocks)
                    if count and event.blocks[-count:] == transfer.blocks:
                        self._holds.setdefault(transfer.number, event.blocks)
            elif event.kind is EventKind.CACHE_RESET:
                self.use.began_anew()
            elif event.kind is EventKind.UNPINNED:
                for number in [number for number, held in self._holds.items() if held == event.blocks]:
                    del self._holds[number]

    # ---- judged -----------------------------------------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Transfers have not ended."""
        return self._connector is not None and bool(self._connector.transfers)

    def drained(self) -> Violation | None:
        """With every fault healed and everything else at rest: each transfer was answered, or given up in time."""
        assert self._connector is not None
        for number, transfer in self._connector.transfers.items():
            kind = "store" if transfer.opened.is_store else "load"
            return violation(
                "SC-11", f"{kind} {number}", f"{transfer.state.value} behind a drain", "ended, or given up in time"
            )
        return None

    def polled(self, after: Snapshot, facts: ModelFacts) -> Violation | None:
        """The engine was polled. The first thing that was wrong so far."""
        connector = self._connector
        assert connector is not None
        self._wire.engine_stepped(connector, self._lease_s)
        for row in after.loading:
            if self._waits.get(row) in self._told_late:
                found = "waits still, one poll after all of its load stood in the store"
                self._wrong(violation("DI-5", row_named(row), found, "a wait for this load alone"))
        if late := self._over.intersection(self._holds):
            number = min(late)
            found = f"{blocks_named(self._holds[number])} held, one poll after it was over"
            self._wrong(violation("DI-5", f"transfer {number}", found, "held while it or a copy of these blocks is under way"))
        self._moves = [each for each in self._moves if not _stands(each[1])]
        moving = {block for block, _ in self._moves}
        self._over = {
            number for number, held in self._holds.items() if number not in connector.transfers and moving.isdisjoint(held)
        }
        self._told_late = {number for number, load in self._loads.items() if load.is_whole and all(map(_stands, load.writes))}
        return self.found or self._wire.found or self.use.polled(after, facts, self._waits.values())

    def _wrong(self, found: Violation) -> None:
        self.found = self.found or found


def _stands(fence: Fence) -> bool:
    """Whether the host would see that it has passed. Looking makes nobody know more."""
    return fence.would_pass() if isinstance(fence, SimulatedFence) else fence.has_passed()
