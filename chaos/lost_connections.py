"""What a `Transport` over TCP shows behind a connection that was lost: the contract of `seams.Transport`, at real sockets.

Owns the little server, and the ways to lose a connection. Never judges (`properties/invariants/peers.py`).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from engine_under_test.distributed.frames import FrameWriter
from engine_under_test.distributed.tcp import TcpConfig, TcpTransport
from properties.invariants.peers import PeerMoment
from properties.kv_world import HandClock

_PATIENCE_S: Final = 5.0  # of real time, for what happens at once
_CONGESTED_BYTES: Final = 1 << 18
_MESSAGES: Final = (b"one", b"two")


class _Pair:
    """A transport, and whoever accepts its connections."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(_PATIENCE_S)
        self.clock = HandClock()
        config = TcpConfig("127.0.0.1", self._listening.getsockname()[1], congested_bytes=_CONGESTED_BYTES, kernel_bytes=4096)
        self.transport = TcpTransport(config, self.clock)
        self.peer = self.connect()

    def connect(self) -> socket.socket:
        """The next connection; its other end."""
        before = self.transport.connection
        self.until(lambda: self.transport.connection not in (before, None))
        self.peer, _ = self._listening.accept()
        return self.peer

    def until(self, is_so: Callable[[], bool]) -> None:
        ends = time.monotonic() + _PATIENCE_S
        while not is_so() and time.monotonic() < ends:
            self.clock.time += 0.1
            self.transport.poll()
            self.transport.wait(0.002)

    def close(self) -> None:
        self.transport.close("the end")
        self.peer.close()
        self._listening.close()


def _closed_here(pair: _Pair) -> None:
    pair.transport.close("closed here")


def _closed_there(pair: _Pair) -> None:
    pair.peer.close()
    pair.until(lambda: pair.transport.connection is None)


_LOSSES: Final[Mapping[str, Callable[[_Pair], None]]] = {"closed here": _closed_here, "closed by its peer": _closed_there}


def behind_lost_connections() -> Iterator[PeerMoment]:
    """Of each way: what had come and was not taken, and what waited to be sent, is gone with its connection."""
    for how, lose in _LOSSES.items():
        with contextlib.closing(_Pair()) as pair:
            yield PeerMoment(f"a connection behind one that was {how}", told_late=_told_late(pair, lose))
        with contextlib.closing(_Pair()) as pair:
            yield PeerMoment(
                f"a connection behind a congested one that was {how}", is_congested_anew=_congested_anew(pair, lose)
            )


def _told_late(pair: _Pair, lose: Callable[[_Pair], None]) -> int:
    writer = FrameWriter()
    pair.peer.sendall(b"".join(map(writer.frame, _MESSAGES)))
    pair.transport.wait(_PATIENCE_S)
    pair.transport.poll()  # it has them now
    lose(pair)
    pair.connect()
    return len(pair.transport.receive())


def _congested_anew(pair: _Pair, lose: Callable[[_Pair], None]) -> bool:
    ends = time.monotonic() + _PATIENCE_S
    while not pair.transport.is_congested and time.monotonic() < ends:
        pair.transport.send(bytes(1 << 16))  # nobody reads
    lose(pair)
    pair.connect()
    return pair.transport.is_congested
