"""What two ends of KV transfers say to each other, heard on the wire and judged by the clock: leases, order, acknowledgements.

Owns a second account of the protocol, kept from messages alone: what was sent of each store, who said or moved something last,
what was acknowledged. It asks neither end for its own books, so it sees what they believe wrongly. Never: delivers anything.

    DI-3  a store sends each of its blocks, in order, before its END; what the pool acknowledges it has; a transfer that was
          complete and is said again changes nothing; what the engine counts as stored was acknowledged
    DI-3  a store holds its blocks no longer than its deadline says, however often its connection is lost
    DI-3  a lease that has ended holds nothing of the pool any more
    DI-3  a store holds its blocks no longer than its deadline says, however often its connection is lost, and though no answer
          ever comes; what was given up is over within its grace, if need be with the connection
    DI-5  a lease ends when it is due, at either end, and not before; nothing more is sent into a congested connection; the pool
          evicts what was used least recently; stores send their blocks in turn
    SC-14 the engine counts as loaded no more than came whole
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from itertools import takewhile
from typing import Any

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import State
from engine_under_test.distributed.store_pool import StorePool
from engine_under_test.distributed.store_session import StoreSession, StoreShelf
from engine_under_test.seams import Clock
from properties.invariants.predicate import violation
from properties.kv_pool_order import PoolOrder
from properties.kv_turns import Turns
from properties.verdict import Violation

_RAN_OUT = "the lease has run out"


class _Heard:
    """One transfer on one connection."""

    __slots__ = (
        "aborted_at", "arrived", "ended_at", "granted", "held", "is_stored_again", "moved_at", "opened", "rotten", "said_at",
        "sent",
    )  # fmt: skip

    def __init__(self, opened: m.Open, now: float) -> None:
        self.opened = opened
        self.sent: list[int] = []  # blocks of a store, as the engine sent them
        self.arrived: set[int] = set()  # of them, at the pool
        self.rotten: set[int] = set()  # of these, in the memory of the pool
        self.granted = 0  # bytes of a load, as the pool heard
        self.aborted_at = now  # when the engine said so, once it did
        self.said_at = now  # when the engine said something of it last
        self.moved_at: float | None = None  # when it came to the pool, or moved there, last
        self.ended_at: float | None = None  # when the pool ended its lease, to say so as soon as somebody listens
        self.held: Mapping[bytes, int] | None = None  # what the pool held when the END of a store had come to it
        self.is_stored_again: Mapping[bytes, int] | None = None  # what the pool held when it was said again


class Wire:
    """Told of every message by the link that carries it. ``found``: the first thing that was wrong."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._generation = 0
        self._heard: dict[int, _Heard] = {}
        self._complete: dict[int, tuple[bytes, ...]] = {}  # stores whose END came to this pool, over all connections
        self._pool: StorePool | None = None
        self._acknowledged: dict[int, int] = {}  # by transfer, as it came to the engine
        self._acknowledged_before = 0  # in earlier generations
        self._came_whole: set[tuple[int, int]] = set()  # blocks of loads, by transfer
        self._came_before = 0  # in earlier generations
        self.turns: Turns | None = None  # of an engine whose blocks can be read at once
        self.found: Violation | None = None
        self._order = PoolOrder()
        self._begun: dict[int, float] = {}  # stores of this generation, over all connections
        self._overdue: frozenset[int] = frozenset()  # stores, when the engine looked last
        self._lingering: frozenset[int] = frozenset()  # transfers that it had given up and not ended, likewise
        self.num_leases_ended = 0
        self.num_repeated = 0

    # ---- what the link tells ----------------------------------------------------------------------------------------------

    def connected(self, pool: StorePool) -> None:
        """A new connection: nothing said before counts any more."""
        self._heard.clear()
        if self.turns is not None:
            self.turns.clear()
        if pool is not self._pool:
            self._pool = pool
            self._order = PoolOrder()
            self._complete.clear()

    def _engine_began_anew(self) -> None:
        """Its transfers are numbered anew, under another generation."""
        self._heard.clear()
        self._complete.clear()
        self._begun.clear()
        self._acknowledged_before += sum(self._acknowledged.values())
        self._acknowledged.clear()
        self._came_before += len(self._came_whole)
        self._came_whole.clear()

    def engine_said(self, message: Any, is_congested: bool) -> None:
        """Handed to the transport."""
        if isinstance(message, m.Hello):
            if message.generation != self._generation:
                self._generation = message.generation
                self._engine_began_anew()
        elif isinstance(message, m.Open):
            self._heard.setdefault(message.transfer, _Heard(message, self._now))
            if message.is_store:
                self._begun.setdefault(message.transfer, self._now)
        heard = self._heard.get(getattr(message, "transfer", -1))
        if heard is None:
            return
        heard.said_at = self._now
        if self.turns is not None and heard.opened.is_store:
            self._take_turns(self.turns, message)
        if isinstance(message, m.Abort):
            heard.aborted_at = self._now
        if isinstance(message, m.Block):
            heard.sent.append(message.number)
            if is_congested:
                self._wrong("DI-5", f"block {message.number} of store {message.transfer}", "sent", "held while congested")
        elif isinstance(message, m.End) and heard.sent != list(range(len(heard.opened.keys))):
            expected = f"blocks 0 to {len(heard.opened.keys) - 1}, in order, before its END"
            self._wrong("DI-3", f"store {message.transfer}", f"blocks {heard.sent} sent", expected)

    def _take_turns(self, turns: Turns, message: Any) -> None:
        if isinstance(message, m.Open):
            turns.opened(message.transfer, message.block_bytes, len(message.keys))
        elif isinstance(message, m.Block):
            if (passed_over := turns.sent(message.transfer)) is not None:
                found = f"two blocks of store {message.transfer} sent meanwhile"
                self._wrong("DI-5", f"store {passed_over}, which may send", found, "one block of each store in turn")
        else:
            turns.ended(message.transfer)

    def pool_heard(self, message: Any, session: StoreSession, shelf: StoreShelf) -> None:
        """Arrived, and was applied."""
        number = getattr(message, "transfer", -1)
        heard = self._heard.get(number)
        if heard is None:
            return
        if heard.ended_at is not None:
            return  # nothing renews it any more
        if isinstance(message, m.Open) and heard.moved_at is None:
            heard.moved_at = self._now
            if self._complete.get(number) == message.keys:
                heard.is_stored_again = self._held(shelf)
                self.num_repeated += 1
            if not message.is_store and number in session.transfers:  # else it was refused
                self._order.used(list(takewhile(self._order.is_held, message.keys)))
        elif isinstance(message, m.Credit) and message.total_bytes > heard.granted:
            heard.granted, heard.moved_at = message.total_bytes, self._now
        elif isinstance(message, m.Block) and message.number not in heard.arrived:
            heard.arrived.add(message.number)
            heard.moved_at = self._now
        elif isinstance(message, m.End) and heard.held is None:
            heard.held = self._held(shelf)
            self._remember(number, heard.opened.keys, shelf)
            self._judge_evictions(number, heard, shelf)
        if number in session.transfers:
            for other in self._heard.values():
                if other is not heard:
                    other.is_stored_again = None  # somebody else moved meanwhile

    def rotted(self, number: int, block: int) -> None:
        """The pool's memory has lost a bit of a block of a store that is not complete."""
        if (heard := self._heard.get(number)) is not None:
            heard.rotten.add(block)

    def pool_said(self, message: Any, shelf: StoreShelf) -> None:
        """Handed to the link by the pool."""
        number = getattr(message, "transfer", -1)
        heard = self._heard.get(number)
        if heard is None:
            return
        if isinstance(message, m.Block | m.End):
            heard.moved_at = self._now
        elif isinstance(message, m.Abort) and message.reason == _RAN_OUT:
            self.num_leases_ended += 1
            idle_s = (self._now if heard.ended_at is None else heard.ended_at) - (heard.moved_at or 0.0)
            if idle_s < shelf.limits.lease_s:
                found = f"ended for its lease {idle_s:g} s after it moved"
                self._wrong("DI-5", f"transfer {number}", found, f"not before {shelf.limits.lease_s:g} s")
        elif isinstance(message, m.Ack) and heard.opened.is_store:
            self._judge_ack(number, heard, message, shelf)

    def pool_looked(self, session: StoreSession, shelf: StoreShelf) -> None:
        """It has looked at its leases: none is overdue."""
        lease_s = shelf.limits.lease_s
        self._judge_pins(session, shelf)
        for number, transfer in session.transfers.items():
            heard = self._heard.get(number)
            if heard is None or heard.moved_at is None or heard.ended_at is not None:
                continue
            if transfer.state is State.ABORTING:
                heard.ended_at = self._now
                continue
            if self._now - heard.moved_at > lease_s:
                found = f"open {self._now - heard.moved_at:g} s after it moved"
                self._wrong("DI-5", f"transfer {number} at the store", found, f"ended after {lease_s:g} s")

    def engine_heard(self, message: Any, is_open: bool) -> None:
        """About to be applied by the engine. ``is_open``: it has not given the transfer up."""
        if isinstance(message, m.Block) and is_open and m.digest_of(message.data) == message.digest:
            self._came_whole.add((message.transfer, message.number))
        elif isinstance(message, m.Ack) and is_open:
            self._acknowledged.setdefault(message.transfer, message.num_blocks)
        if self.turns is not None and isinstance(message, m.Credit):
            self.turns.granted(message.transfer, message.total_bytes)
        elif self.turns is not None and isinstance(message, m.Refuse | m.Abort | m.Ack):
            self.turns.ended(message.transfer)

    def engine_stepped(self, connector: Connector, lease_s: float) -> None:
        """It has looked at its leases. Asked are its count of stored blocks, and what it has neither ended nor given up.
        ``lease_s``: as it was told."""
        is_open = [each.opened for each in connector.transfers.values() if each.state is not State.ABORTING]
        self._judge_loads([each.transfer for each in is_open if not each.is_store], lease_s)
        self._judge_stores([each.transfer for each in is_open if each.is_store], connector.config.store_deadline_s)
        self._judge_aborts([each.number for each in connector.transfers.values() if each.state is State.ABORTING], connector)
        known = self._acknowledged_before + sum(self._acknowledged.values())
        if (num_stored := connector.counters.stored_blocks) > known:
            self._wrong("DI-3", "the engine", f"{num_stored} blocks counted as stored", f"at most {known}, as acknowledged")
        came = self._came_before + len(self._came_whole)
        if (num_loaded := connector.counters.loaded_blocks) > came:
            self._wrong("SC-14", "the engine", f"{num_loaded} blocks counted as loaded", f"at most {came}, which came whole")

    # ---- judged -----------------------------------------------------------------------------------------------------------

    def _judge_pins(self, session: StoreSession, shelf: StoreShelf) -> None:
        """A lease that has ended holds nothing, whether or not the other end has answered."""
        opened = [each.opened for each in session.transfers.values() if each.state is not State.ABORTING]
        due = Counter(key for each in opened if not each.is_store for key in each.keys)
        for key, count in shelf.pool.pinned.items():
            if count > due[key]:
                found = f"{count} pins behind a look at the leases"
                self._wrong("DI-3", f"key {key.hex()[-12:]} of the store", found, f"at most {due[key]}, of loads under a lease")

    def _judge_loads(self, loads: Collection[int], lease_s: float) -> None:
        for number in loads:
            heard = self._heard.get(number)
            if heard is not None and self._now - heard.said_at > lease_s:
                found = f"waited for {self._now - heard.said_at:g} s after the engine said something"
                self._wrong("DI-5", f"load {number}", found, f"given up after {lease_s:g} s")

    def _judge_stores(self, stores: Collection[int], deadline_s: float) -> None:
        """Sources stay held until acknowledged or expired: since the store began, over however many connections. One step
        later than due is no finding: a step that closes the connection looks no further."""
        overdue = frozenset([number for number in stores if self._now - self._begun.get(number, self._now) > deadline_s])
        for number in sorted(overdue & self._overdue):
            found = f"holds its blocks {self._now - self._begun[number]:g} s after it began"
            self._wrong("DI-3", f"store {number}", found, f"given up after {deadline_s:g} s, on whatever connection")
        self._overdue = overdue

    def _judge_aborts(self, aborted: Collection[int], connector: Connector) -> None:
        """One step later than due is no finding, as with stores."""
        grace_s = connector.config.abort_grace_s
        heard = [(number, self._heard[number]) for number in aborted if number in self._heard]
        lingering = frozenset([number for number, each in heard if self._now - each.aborted_at > grace_s])
        for number in sorted(lingering & self._lingering):
            found = f"not over {self._now - self._heard[number].aborted_at:g} s after the engine gave it up"
            self._wrong("DI-3", f"transfer {number}", found, f"over within {grace_s:g} s, if need be with its connection")
        self._lingering = lingering

    def _judge_evictions(self, number: int, heard: _Heard, shelf: StoreShelf) -> None:
        """The END of a store came, which may have made room for itself."""
        held = shelf.pool.keys()
        here = set(held)
        sound = heard.arrived - heard.rotten
        arrived = [key for _, key in takewhile(lambda each: each[0] in sound, enumerate(heard.opened.keys))]
        whole = list(takewhile(here.__contains__, arrived))
        if (found := self._order.stored(whole, held, shelf.pool.pinned)) is not None:
            gone, stayed = found
            self._wrong(
                "DI-5",
                f"behind store {number}",
                f"key {gone.hex()[-12:]} evicted",
                f"key {stayed.hex()[-12:]} first: unused for longer",
            )

    def _judge_ack(self, number: int, heard: _Heard, message: m.Ack, shelf: StoreShelf) -> None:
        """What was there when its END came: while nobody listens an answer is held back, and others may make room meanwhile."""
        now = self._held(shelf)
        held = now if heard.held is None else heard.held
        missing = [key for key in heard.opened.keys[: message.num_blocks] if key not in held]
        is_again = heard.held is None and self._complete.get(number) == heard.opened.keys
        if missing and not is_again:  # what was complete may have been evicted since
            found = f"{message.num_blocks} blocks acknowledged, {len(missing)} of them not there"
            self._wrong("DI-3", f"store {number}", found, "what is acknowledged can be found")
        if heard.is_stored_again is not None and heard.is_stored_again != now:
            changed = sorted(key for key in {*heard.is_stored_again, *now} if heard.is_stored_again.get(key) != now.get(key))
            self._wrong("DI-3", "a repeated transfer", f"keys {changed} changed", "the store as before")
        heard.is_stored_again = None

    def _remember(self, number: int, keys: tuple[bytes, ...], shelf: StoreShelf) -> None:
        """As the pool does, in the order in which stores were complete, and no more of them than it does."""
        self._complete.pop(number, None)
        self._complete[number] = keys
        while len(self._complete) > shelf.limits.completed_remembered:
            del self._complete[next(iter(self._complete))]

    def _held(self, shelf: StoreShelf) -> dict[bytes, int]:
        """Each key with its place in the order of eviction."""
        return {key: place for place, key in enumerate(shelf.pool.keys())}

    @property
    def _now(self) -> float:
        return self._clock.now()

    def _wrong(self, identifier: str, subject: str, found: object, expected: object) -> None:
        if self.found is None:
            self.found = violation(identifier, subject, found, expected)
