"""A transport in memory between a connector and a store's session, that misbehaves as it is told.

Owns what is under way, by transfer, in both directions: a test lets the next message of a transfer arrive, arrive twice or get
lost, overtakes between transfers, and cuts the connection. It never reorders within one transfer. Judges nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.protocol import State
from engine_under_test.distributed.store_session import StoreSession, StoreShelf
from engine_under_test.errors import ProtocolError
from engine_under_test.seams import Clock
from properties.kv_wire import Wire

SESSION = 0  # the lane of the messages that belong to no transfer


class Fate(Enum):
    """What becomes of the next message of a lane."""

    ARRIVES = "arrives"
    TWICE = "arrives, and once more later"
    LOST = "gets lost"


class Direction(Enum):
    TO_STORE = "to the store"
    TO_ENGINE = "to the engine"


Lane = tuple[Direction, int]


class KvLink:
    """A `Transport`. Connections come only by `connect`, and what is sent arrives only by `deliver`."""

    def __init__(self, shelf: StoreShelf, clock: Clock) -> None:
        self.session: StoreSession | None = None
        self.faults: list[str] = []  # why the store ended connections
        self.closed: list[str] = []  # why the engine did
        self.is_congested = False
        self.is_deaf = False  # the engine takes nothing, so that the store holds back what it has to say
        self.shelf = shelf
        self.wire = Wire(clock)
        self._clock = clock
        self._number = 0
        self._lanes: dict[Lane, deque[bytes]] = {}
        self._arrived: list[bytes] = []

    # ---- Transport --------------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        """Bytes move by `deliver` alone."""

    @property
    def connection(self) -> int | None:
        return self._number if self.session is not None else None

    def send(self, message: bytes) -> None:
        if self.session is not None:
            self.wire.engine_said(m.decode(message), self.is_congested)
            self._put(Direction.TO_STORE, message)

    def receive(self) -> Sequence[bytes]:
        found, self._arrived = self._arrived, []
        return found

    def close(self, reason: str) -> None:
        self.closed.append(reason)
        self.cut()

    # ---- what a test does -------------------------------------------------------------------------------------------------

    def connect(self) -> None:
        """A new connection, if there is none."""
        if self.session is None:
            self._number += 1
            self.wire.connected(self.shelf.pool)
            self.session = StoreSession(self.shelf, self._clock, self._number.to_bytes(32, "big"))

    def cut(self) -> None:
        """Everything under way is lost."""
        if self.session is not None:
            self.session.close()
            self.session = None
        self._lanes.clear()
        self._arrived.clear()

    @property
    def arrived(self) -> Sequence[bytes]:
        """What the engine takes with its next step."""
        return self._arrived

    @property
    def lanes(self) -> list[Lane]:
        """Those with something under way, in the order in which they were first used."""
        return [lane for lane, waiting in self._lanes.items() if waiting]

    def head(self, lane: Lane) -> bytes:
        """The next message of the lane."""
        return self._lanes[lane][0]

    def has_block(self, lane: Lane) -> bool:
        """Whether content is under way on the lane."""
        return any(isinstance(m.decode(data), m.Block) for data in self._lanes[lane])

    def deliver(self, lane: Lane, fate: Fate = Fate.ARRIVES) -> None:
        """The next message of the lane arrives, at the store at once, at the engine with its next step."""
        waiting = self._lanes[lane]
        data = waiting[0] if fate is Fate.TWICE else waiting.popleft()
        if fate is Fate.LOST:
            return
        if lane[0] is Direction.TO_ENGINE:
            self._arrived.append(data)
            return
        assert self.session is not None  # lanes are empty without one
        try:
            self.session.receive(data)
        except ProtocolError as error:
            self._end(str(error))
        else:
            self.wire.pool_heard(m.decode(data), self.session, self.shelf)

    def run_store(self, most_messages: int = 1000) -> None:
        """The store says what it has to say now, as far as it is taken."""
        for _ in range(0 if self.is_deaf else most_messages):
            message = self.session.next_message() if self.session is not None else None
            if message is None:
                return
            self.wire.pool_said(m.decode(message), self.shelf)
            self._put(Direction.TO_ENGINE, message)

    def tick_store(self) -> None:
        """The store looks at its leases."""
        try:
            if self.session is not None:
                self.session.expire()
                self.wire.pool_looked(self.session, self.shelf)
        except ProtocolError as error:
            self._end(str(error))

    def _put(self, direction: Direction, message: bytes) -> None:
        number = getattr(m.decode(message), "transfer", SESSION)
        self._lanes.setdefault((direction, number), deque()).append(message)

    def _end(self, reason: str) -> None:
        self.faults.append(reason)
        assert self.session is not None  # it raised
        if self.session.state is not State.CLOSED:
            self.session.fault(reason)
        self.cut()
