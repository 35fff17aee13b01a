"""A small engine's memory around a real connector and a real store, with everything in sight.

Owns the store, the link, and the `TransferMoment` of every instant at both ends; the engine's end is `properties.kv_end`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import State
from engine_under_test.distributed.store_pool import StorePool
from engine_under_test.distributed.store_session import StoreShelf
from properties.invariants.predicate import violation
from properties.invariants.transfers import RemoteTransfer, Shelf, TransferMoment
from properties.kv_end import KvEnd, KvViolation
from properties.kv_link import Direction, Fate, KvLink, Lane
from properties.kv_sizes import engine_end, rotten, store_end
from properties.kv_turns import Turns

BLOCK_BYTES = 24
# Windows are no multiples of a block: what is granted is never used up to the byte.
LIMITS = store_end(
    BLOCK_BYTES, window_bytes=2 * BLOCK_BYTES + 8, max_blocks=8, max_transfers=6, max_staged_bytes=16 * BLOCK_BYTES,
    lease_s=10.0, abort_grace_s=4.0, completed_remembered=8,
)  # fmt: skip
CONFIG = engine_end(
    BLOCK_BYTES, window_bytes=3 * BLOCK_BYTES + 12, max_stores=3, load_deadline_s=20.0, store_deadline_s=40.0,
    handshake_s=6.0, abort_grace_s=4.0, blocks_per_step=2,
)  # fmt: skip


def content_of(key: bytes) -> bytes:
    """The law: what computing the block of this key gives."""
    return hashlib.sha256(key).digest()[:BLOCK_BYTES]


class HandClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


class KvWorld(KvEnd):
    """See the module."""

    def __init__(self, *, num_blocks: int = 14, capacity_blocks: int = 10, token: bytes = b"") -> None:
        super().__init__(num_blocks, BLOCK_BYTES, content_of)
        self.clock = HandClock()
        self.pool = StorePool(capacity_blocks * BLOCK_BYTES)
        self.shelf = StoreShelf(self.pool, b"s" * 16, LIMITS, token)
        self.link = KvLink(self.shelf, self.clock)
        self.link.wire.turns = Turns()
        self.connector = Connector(replace(CONFIG, token=token), self, self.link, self.clock, b"e" * 16)
        self.committed: set[bytes] = set()
        self.rotten: set[bytes] = set()  # keys whose bytes the store's memory lost
        self.num_rotten_staged = 0  # blocks of stores that were not complete
        self.has_lost = False  # a message was lost, so that only time ends its transfer

    # ---- the engine, heard on the wire ---------------------------------------------------------------------------------------

    def step(self, most_accepted: int = 99) -> None:
        """See `KvEnd`."""
        self._hear()
        super().step(most_accepted)
        self._judge_engine_end()

    def _hear(self) -> None:
        transfers = self.connector.transfers
        for data in self.link.arrived:
            message = m.decode(data)
            transfer = transfers.get(getattr(message, "transfer", -1))
            self.link.wire.engine_heard(message, transfer is not None and transfer.state is not State.ABORTING)

    def _judge_engine_end(self) -> None:
        self.link.wire.engine_stepped(self.connector, LIMITS.lease_s)
        self._judge_wire()

    def _judge_wire(self) -> None:
        if self.link.wire.found is not None:
            raise KvViolation(self.link.wire.found)

    # ---- the link and the store ---------------------------------------------------------------------------------------------

    def deliver(self, lane: Lane, fate: Fate = Fate.ARRIVES) -> None:
        if fate is Fate.LOST:
            self.has_lost = True
        elif lane[0] is Direction.TO_STORE:
            self._note_committed(self.link.head(lane))
        self.link.deliver(lane, fate)
        self.say()

    def _note_committed(self, data: bytes) -> None:
        """The END of a store arrives: its keys may become visible."""
        message = m.decode(data)
        if isinstance(message, m.End) and self.link.session is not None:
            transfer = self.link.session.transfers.get(message.transfer)
            self.committed.update(() if transfer is None else transfer.opened.keys)

    def tick_store(self) -> None:
        self.link.tick_store()
        self.say()

    def say(self) -> None:
        """The store says what it can."""
        self.link.run_store()
        self.judge()
        self._judge_wire()

    def look_away(self) -> None:
        """The connector moves on, and nobody asks it for hits and answers yet."""
        self._hear()
        self.connector.step()
        self._judge_engine_end()

    def rot(self, key: bytes) -> None:
        """The store's memory loses a bit of a block, and one of each store that is not complete."""
        block = self.pool.get(key)
        if block is not None:
            self.rotten.add(key)
            self.pool._blocks[key] = rotten(block)
        for each, transfer in () if self.link.session is None else self.link.session.transfers.items():
            for number, staged in list(transfer.staged.items())[:1]:
                transfer.staged[number] = rotten(staged)  # seen with its END: it never becomes visible
                self.link.wire.rotted(each, number)
                self.num_rotten_staged += 1

    def settle(self, *, held_up: Sequence[int] = (), most: int = 400) -> None:
        """Everything arrives and every step is taken, but for what is held up; ends when nothing moves any more."""
        for _ in range(most):
            self.link.connect()
            self.step()
            self.link.run_store()
            lanes = [lane for lane in self.link.lanes if lane[1] not in held_up]
            if not lanes and not self._has_work(held_up):
                break
            for lane in lanes:
                if lane in self.link.lanes:
                    self.deliver(lane)
        self.judge(is_quiet=not (self.has_lost or self.link.is_congested), held_up=held_up)

    def drain(self, rounds: int = 40) -> None:
        """Faults are over: everything arrives, time passes, everything ends."""
        self.link.is_congested = self.link.is_deaf = False
        for _ in range(rounds):
            self.settle()
            if not self.connector.transfers and not self.requests and not self.pool.pinned:
                break
            self.clock.time += 3.0
            self.tick_store()
        self.forget()
        session = self.link.session
        left: dict[str, object] = {
            **self.left_over(),
            "pins of the store": list(self.pool.pinned),
            "bytes staged for nobody": session.staged_bytes if session is not None else 0,
        }
        if found := {name: each for name, each in left.items() if each}:
            raise KvViolation(violation("DI-3", "behind the drain", found, "nothing is left"))

    def _has_work(self, held_up: Sequence[int]) -> bool:
        if self.connector.session is not State.OPEN:
            return True
        if self.link.is_congested:
            return False
        return any(
            each.state is State.MOVING
            and each.opened.is_store
            and each.number not in held_up
            and (each.moved < each.granted or each.next_index == len(each.opened.keys))
            for each in self.connector.transfers.values()
        )

    # ---- what is seen -------------------------------------------------------------------------------------------------------

    def moment(self, *, is_quiet: bool = False, held_up: Sequence[int] = ()) -> TransferMoment:
        session = self.link.session
        remotes = () if session is None else tuple(session.transfers.items())
        stored = {key: self.pool._blocks[key] for key in self.pool._blocks}
        return replace(
            super().moment(is_quiet=is_quiet, held_up=held_up),
            store_window_bytes=LIMITS.window_bytes,
            remotes=tuple(
                RemoteTransfer(number, each.opened.is_store, each.pinned, each.granted, each.moved) for number, each in remotes
            ),
            remote_pins=self.pool.pinned,
            under_way=self._under_way(),
            remote={
                key: (block.data, content_of(key)) if key not in self.rotten else ("rotten", "rotten")
                for key, block in stored.items()
            },
            committed=self.committed,
            shelf=Shelf(self.pool.used_bytes, sum([len(block.data) for block in stored.values()]), self.pool.capacity_bytes),
        )

    def _under_way(self) -> dict[int, tuple[int, ...]]:
        """Loads of which a block is on its way to the engine, or may be sent with the credit that the store has."""
        session = self.link.session
        sending = (
            []
            if session is None
            else [
                number for number, each in session.transfers.items() if each.state is State.MOVING and not each.opened.is_store
            ]
        )
        coming = [number for direction, number in self.link.lanes if direction is Direction.TO_ENGINE]
        numbers = [*sending, *(each for each in coming if self.link.has_block((Direction.TO_ENGINE, each)))]
        return {number: self._accepted[number] for number in numbers if number in self._accepted}
