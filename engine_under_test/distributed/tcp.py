"""A `Transport` over TCP, without threads: everything happens in `poll`, and nothing there blocks.

Owns one socket at a time, its framing, and when to connect again. Knows no message.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from engine_under_test.distributed.frames import FrameReader, FrameWriter
from engine_under_test.errors import BadInput, ProtocolError
from engine_under_test.readiness import is_ready
from engine_under_test.seams import Clock

_CHUNK: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class TcpConfig:
    """``poll_bytes``: the most that one `poll` reads. ``kernel_bytes``: what the system may hold that is unsent; 0: as much
    as it likes. ``retry_s``: the wait before the second try to connect; it doubles up to ``retry_most_s``, until a store has
    said something."""

    host: str
    port: int
    message_bytes: int = (4 << 20) + 1024
    congested_bytes: int = 8 << 20
    poll_bytes: int = 8 << 20
    kernel_bytes: int = 0
    connect_s: float = 5.0
    retry_s: float = 0.05
    retry_most_s: float = 2.0


class TcpTransport:
    """See the module and `seams.Transport`. A host's name is looked up once, here: that may block. Raises BadInput."""

    def __init__(self, config: TcpConfig, clock: Clock) -> None:
        self.config = config
        try:
            self._address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        except OSError as error:
            raise BadInput(
                f"a store has a host that can be looked up, found {config.host!r} ({error}); name another"
            ) from error
        self.last_error = ""  # why the last connection ended, or did not begin
        self._clock = clock
        self._socket: socket.socket | None = None
        self._is_connected = False
        self._is_ending = False  # the peer is gone; what it sent before is told first
        self._number = 0
        self._retry_at = 0.0
        self._retry_s = config.retry_s
        self._connect_ends = 0.0
        self._reader = FrameReader(config.message_bytes)
        self._writer = FrameWriter()
        self._out: deque[memoryview] = deque()
        self._out_bytes = 0
        self._in: list[bytes] = []

    @property
    def connection(self) -> int | None:
        return self._number if self._is_connected else None

    @property
    def is_congested(self) -> bool:
        return self._out_bytes > self.config.congested_bytes

    @property
    def is_inside_a_frame(self) -> bool:
        """True while a part of a message has come and the rest has not."""
        return self._is_connected and self._reader.is_inside_a_frame

    def poll(self) -> None:
        if self._is_ending:
            self.close(self.last_error)
        if self._socket is None:
            if self._clock.now() >= self._retry_at:
                self._begin_to_connect()
        elif not self._is_connected:
            self._finish_to_connect()
        if self._is_connected:
            try:
                self._write()
                self._read()
            except (OSError, ProtocolError) as error:
                self._is_ending, self.last_error = True, str(error)

    def send(self, message: bytes) -> None:
        if not self._is_connected or self._is_ending:
            return
        frame = self._writer.frame(message)
        self._out.append(memoryview(frame))
        self._out_bytes += len(frame)
        try:
            self._write()
        except OSError as error:
            self._is_ending, self.last_error = True, str(error)

    def receive(self) -> Sequence[bytes]:
        found, self._in = self._in, []
        return found

    def close(self, reason: str) -> None:
        """See `Transport`. The next try to connect waits a little, longer each time until a store says something."""
        self.last_error = reason
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
        self._socket = None
        self._is_connected = self._is_ending = False
        self._out.clear()
        self._out_bytes = 0
        self._in.clear()
        self._retry_at = self._clock.now() + self._retry_s
        self._retry_s = min(self._retry_s * 2, self.config.retry_most_s)

    def wait(self, timeout_s: float) -> None:
        """Returns when the socket has something to do, or after the time: for whoever has nothing else to do."""
        if self._socket is None:
            is_ready(timeout_s=min(timeout_s, max(self._retry_at - self._clock.now(), 0.0)))
            return
        wants_to_write = bool(self._out) or not self._is_connected
        is_ready(self._socket, self._socket if wants_to_write else None, timeout_s)

    def _begin_to_connect(self) -> None:
        try:
            family, kind, number, _, address = self._address
            self._socket = socket.socket(family, kind, number)
            self._socket.setblocking(False)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if self.config.kernel_bytes:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.config.kernel_bytes)
            self._connect_ends = self._clock.now() + self.config.connect_s
            with contextlib.suppress(BlockingIOError):
                self._socket.connect(address)
        except OSError as error:
            self.close(str(error))
            return
        self._finish_to_connect()

    def _finish_to_connect(self) -> None:
        assert self._socket is not None  # begun
        if not is_ready(to_write=self._socket, timeout_s=0):
            if self._clock.now() >= self._connect_ends:
                self.close(f"no connection within {self.config.connect_s} s")
            return
        if error := self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.close(f"no connection: error {error}")
            return
        self._number += 1
        self._is_connected = True
        self._reader = FrameReader(self.config.message_bytes)
        self._writer = FrameWriter()

    def _write(self) -> None:
        assert self._socket is not None  # connected
        while self._out:
            try:
                sent = self._socket.send(self._out[0])
            except BlockingIOError:
                return
            self._out_bytes -= sent
            if sent == len(self._out[0]):
                self._out.popleft()
            else:
                self._out[0] = self._out[0][sent:]

    def _read(self) -> None:
        assert self._socket is not None  # connected
        left = self.config.poll_bytes
        while left > 0:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                return
            if not data:
                self._is_ending, self.last_error = True, "the peer ended the connection"
                return
            left -= len(data)
            self._retry_s = self.config.retry_s  # somebody is there; a proxy connects to nobody as well
            self._reader.feed(data)
            while (message := self._reader.next_message()) is not None:
                self._in.append(message)
