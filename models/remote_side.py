"""A remote pool and a link to it in memory, for a World: real connector, real store, and a network that does as it is told.

Owns the sizes, and what a fault of the link means. Time is the target's own clock; nothing happens but within its `poll`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from engine_under_test.book import Book
from engine_under_test.caps import LinkFault
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.store_pool import StorePool
from engine_under_test.distributed.store_session import StoreShelf
from engine_under_test.distributed.transfers import KvPages
from engine_under_test.events import Event
from engine_under_test.execution.runner import Mover
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.remote import RemotePrefixes
from engine_under_test.seams import Clock, Observer
from models.link_account import LinkAccount
from properties.kv_link import Fate, KvLink, Lane
from properties.kv_sizes import engine_end, rotten, store_end

LOAD_DEADLINE_S: Final = 4.0
_CELL_BYTES: Final = 16  # a fingerprint of two words
_ROUNDS: Final = 64  # of messages there and back within one poll, at most


class PromptLink(KvLink):
    """Connects by itself, and lets arrive in each `poll` what was sent before it."""

    def poll(self) -> None:
        self.connect()
        self.tick_store()
        for _ in range(_ROUNDS):
            self.run_store()
            lanes = self.lanes
            if not lanes:
                return
            for lane in lanes:
                self.deliver(lane, self.fate_of(lane))
                if self.session is None:  # the store ended the connection
                    return

    def fate_of(self, _lane: Lane) -> Fate:
        """Of its next message."""
        return Fate.ARRIVES


class _Link(PromptLink):
    """One that does as it is told."""

    def __init__(self, shelf: StoreShelf, clock: Clock) -> None:
        super().__init__(shelf, clock)
        self.is_stalled = False
        self.next_fate = Fate.ARRIVES  # of one message of each lane
        self.account = LinkAccount(self.wire, shelf.limits.lease_s)
        self._struck: set[Lane] = set()

    def strike(self, fate: Fate) -> None:
        self.next_fate = fate
        self._struck = set()

    def send(self, message: bytes) -> None:
        if self.session is not None:
            self.account.said(m.decode(message))
        super().send(message)

    def receive(self) -> Sequence[bytes]:
        found = super().receive()
        self.account.heard(found)
        return found

    def poll(self) -> None:
        if not self.is_stalled:
            super().poll()

    def fate_of(self, lane: Lane) -> Fate:
        if self.next_fate is Fate.ARRIVES or lane in self._struck or not lane[1]:
            return Fate.ARRIVES
        self._struck.add(lane)
        return self.next_fate


class SimulatedRemote:
    """See `adapters.ours.RemoteSide`. ``capacity_blocks``: of the pool."""

    load_bound_s = LOAD_DEADLINE_S

    def __init__(self, capacity_blocks: int, block_size: int) -> None:
        self._block_bytes = _CELL_BYTES * block_size
        self._capacity = capacity_blocks * self._block_bytes
        self._link: _Link | None = None
        self.shelf = self._new_shelf()
        self.connector: Connector | None = None

    def connect(self, kv: KvTransaction, book: Book, mover: Mover, clock: Clock, observer: Observer) -> RemotePrefixes:
        """The engine's end of it."""
        config = engine_end(self._block_bytes, load_deadline_s=LOAD_DEADLINE_S, store_deadline_s=8.0)
        link = self._link = _Link(self.shelf, clock)

        def connector(pages: KvPages) -> Connector:
            self.connector = Connector(config, pages, link, clock, b"engine          ")
            link.account.watch(self.connector, lambda: link.session is not None)
            return self.connector

        def observe(event: Event) -> None:
            link.account.told(event)
            observer(event)

        return RemotePrefixes(kv, book, mover, connector, b"fingerprints", observe)

    @property
    def account(self) -> LinkAccount:
        """What the link and the device say of the engine's transfers."""
        assert self._link is not None  # `connect` comes first
        return self._link.account

    def disturb(self, fault: LinkFault) -> bool:
        """See `adapters.base.RemoteTarget`."""
        link = self._link
        assert link is not None  # `connect` comes first
        if fault is LinkFault.NONE:
            was_disturbed = link.is_stalled or link.next_fate is not Fate.ARRIVES
            link.is_stalled = False
            link.strike(Fate.ARRIVES)
            return was_disturbed
        if fault is LinkFault.STALL:
            was_stalled, link.is_stalled = link.is_stalled, True
            return not was_stalled
        if fault is LinkFault.CUT:
            was_connected = link.connection is not None
            link.cut()
            return was_connected
        if fault in (LinkFault.LOSE, LinkFault.REPEAT):
            link.strike(Fate.LOST if fault is LinkFault.LOSE else Fate.TWICE)
            return True
        return self._spoil(link, fault)

    def _spoil(self, link: _Link, fault: LinkFault) -> bool:
        pool = self.shelf.pool
        keys = pool.keys()
        if fault is LinkFault.STORE_DIES:
            link.cut()
            self.shelf = link.shelf = self._new_shelf()
            return bool(keys)
        for key in keys:
            block = pool.get(key)
            assert block is not None  # it is one of its keys
            pool._blocks[key] = rotten(block)
        return bool(keys)

    def _new_shelf(self) -> StoreShelf:
        limits = store_end(self._block_bytes, lease_s=6.0, abort_grace_s=2.0)
        return StoreShelf(StorePool(self._capacity), b"remote pool's id", limits)
