"""What stands at both ends of a proxy in tests: a small upstream, and a client with bounded patience. Owns no judgement."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from types import TracebackType
from typing import Any, NamedTuple

from chaos.toxiproxy.address import Address

PATIENCE_S = 10.0  # where a wall clock judges, it is never stricter than this


class Upstream:
    """Sends back whatever comes, on any number of connections. The byte ``Q`` makes it close the connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._open: list[socket.socket] = []
        self.received = bytearray()
        self.address = Address(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Upstream:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        for end in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                end, _ = self._listener.accept()
                self._open.append(end)
                threading.Thread(target=self._echo, args=(end,), daemon=True).start()

    def _echo(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError), end:
            while data := end.recv(1 << 16):
                self.received += data
                if data == b"Q":
                    return
                end.sendall(data)


class Client:
    """One connection. Every wait is bounded by `PATIENCE_S`: a hang is a TimeoutError, never an end."""

    def __init__(self, address: Address) -> None:
        self.socket = socket.create_connection(address, timeout=PATIENCE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, num_bytes: int) -> bytes:
        """That many, or fewer when the connection ends first. A reset raises ConnectionResetError."""
        return b"".join(self.pieces(num_bytes))

    def pieces(self, num_bytes: int) -> list[bytes]:
        """As they came off the socket."""
        found: list[bytes] = []
        while num_bytes > 0 and (data := self.socket.recv(min(num_bytes, 1 << 16))):
            found.append(data)
            num_bytes -= len(data)
        return found

    def ask(self, data: bytes) -> bytes:
        """Sends ``data`` while it reads as many bytes back."""
        sender = threading.Thread(target=self.send, args=(data,), daemon=True)
        sender.start()
        found = self.receive(len(data))
        sender.join(PATIENCE_S)
        return found

    def echoes(self, data: bytes) -> bool:
        """Whether exactly that comes back: a bool, as nobody wants to read how two million bytes differ."""
        return self.ask(data) == data

    def is_ended(self) -> bool:
        """Waits for the end, by a close or a reset; False when data comes instead."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionError:
            return True

    def is_silent(self, seconds: float) -> bool:
        """Neither data nor an end for that long."""
        self.socket.settimeout(seconds)
        try:
            self.socket.recv(1)
        except TimeoutError:
            return True
        except ConnectionError:
            return False
        finally:
            self.socket.settimeout(PATIENCE_S)
        return False


class Said(NamedTuple):
    """An answer of an HTTP API: its status, and its body as JSON where it is JSON, as text otherwise."""

    status: int
    body: Any


def say(address: Address, method: str, path: str, body: object = None, **headers: str) -> Said:
    """One request. ``body``: bytes go as they are, anything else as JSON."""
    raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    connection = http.client.HTTPConnection(address.host, address.port, timeout=PATIENCE_S)
    with contextlib.closing(connection):
        connection.request(method, path, raw, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    try:
        return Said(answer.status, json.loads(text))
    except ValueError:
        return Said(answer.status, text)


class Stopwatch:
    """``seconds`` since it was made; a caller that wants two times makes two."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began
