"""A connection between a driver and one rank: whole messages over a stream socket, and nobody waits for a frozen peer.

Owns frames and buffers. Messages are pickled: both ends are one program, on a socket pair that nobody else holds, or behind
the handshake of whoever connected them.
"""

from __future__ import annotations

import pickle
import socket
import struct
import threading

from engine_under_test.errors import AssayError
from engine_under_test.readiness import is_ready

_HEAD = struct.Struct("<I")
_PIECE = 1 << 18


class LinkEnded(AssayError):
    """The peer closed the connection, or lost it."""


class Link:
    """One end. Any thread may `post`; one thread takes."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._end = end
        self._out = bytearray()
        self._in = bytearray()
        self._lock = threading.Lock()
        self.is_ended = False

    def fileno(self) -> int:
        return self._end.fileno()

    @property
    def local_host(self) -> str:
        """The address of this end, as the peer's network knows it; the loopback address on a socket pair."""
        return str(self._end.getsockname()[0]) if self._end.family == socket.AF_INET else "127.0.0.1"

    @property
    def has_unsent(self) -> bool:
        return bool(self._out)

    def post(self, message: object) -> None:
        """Sends as much as the peer takes now, and keeps the rest for `flush`."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        with self._lock:
            self._out += _HEAD.pack(len(data))
            self._out += data
        self.flush()

    def flush(self) -> None:
        with self._lock:
            try:
                while self._out:
                    sent = self._end.send(memoryview(self._out)[:_PIECE])
                    del self._out[:sent]
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()
                self.is_ended = True

    def take(self) -> list[object]:
        """What has come, whole messages only; also sets `is_ended`."""
        try:
            while piece := self._end.recv(_PIECE):
                self._in += piece
            self.is_ended = True
        except BlockingIOError:
            pass
        except OSError:
            self.is_ended = True
        found: list[object] = []
        begin = 0
        while len(self._in) - begin >= _HEAD.size:
            (length,) = _HEAD.unpack_from(self._in, begin)
            if len(self._in) - begin - _HEAD.size < length:
                break
            begin += _HEAD.size
            found.append(pickle.loads(memoryview(self._in)[begin : begin + length]))
            begin += length
        del self._in[:begin]
        return found

    def wait(self, timeout_s: float | None = None) -> None:
        """Returns when something has come, when what is unsent can be sent, or after that time."""
        is_ready(self._end, self._end if self._out else None, timeout_s)
        self.flush()

    def send(self, message: object) -> None:
        """Returns when the peer's side of the connection has all of it."""
        self.post(message)
        while self._out and not self.is_ended:
            is_ready(to_write=self._end)
            self.flush()

    def close(self) -> None:
        self.is_ended = True
        self._end.close()
