"""The remote KV pool as a process of its own: a TCP server around `store_session`. Memory only; one thread, no disk.

Owns sockets, connections and their time limits. What a peer does wrong (random bytes, a length over the limit, half a frame, a
frame sent slowly or twice, silence) costs it its connection and nothing else: memory is bounded by

    capacity + max_connections * (max_staged_bytes + one message + what the socket's write buffer takes)

and a peer that does not read is not read from. Binds to loopback unless there is a shared token; then each engine proves that
it has the token, which never travels. Traffic is checksummed, not encrypted: across machines use a network that you trust.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.frames import FrameReader, FrameWriter
from engine_under_test.distributed.store_pool import StorePool
from engine_under_test.distributed.store_session import StoreLimits, StoreSession, StoreShelf
from engine_under_test.errors import BadInput, ConfigError, ProtocolError
from engine_under_test.seams import Clock

_GREETING_BYTES: Final = 256  # no message of a handshake is longer
_OVERHEAD_BYTES: Final = 1024  # of a message around a block
_WRITE_BUFFER_BYTES: Final = 256 << 10
_REASONS: Final = 64
LEAST_TOKEN_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """``handshake_s``: from the connection to the welcome. ``frame_s``: from the first byte of a frame to its last one, and how
    long a peer may leave unread what is due to it. ``tick_s``: how often time limits are looked at."""

    host: str = "127.0.0.1"
    port: int = 0
    token: bytes = b""
    capacity_bytes: int = 1 << 30
    max_connections: int = 256
    handshake_s: float = 5.0
    frame_s: float = 30.0
    tick_s: float = 0.1
    limits: StoreLimits = field(default_factory=StoreLimits)

    def __post_init__(self) -> None:
        if self.token and len(self.token) < LEAST_TOKEN_BYTES:
            raise ConfigError(
                f"a shared token has at least {LEAST_TOKEN_BYTES} bytes, found {len(self.token)}; use a longer one"
            )
        if not self.token and not is_loopback(self.host):
            raise ConfigError(
                f"without a shared token the store listens on loopback only, found {self.host!r}; "
                f"give a token, or listen on 127.0.0.1"
            )
        if self.capacity_bytes < self.limits.max_block_bytes:
            raise ConfigError(
                f"the capacity must hold one block ({self.limits.max_block_bytes} bytes), found {self.capacity_bytes}"
            )

    @property
    def message_bytes(self) -> int:
        """The longest message: a block, or an OPEN with all its keys."""
        return _OVERHEAD_BYTES + max(self.limits.max_block_bytes, self.limits.max_blocks * (m.MAX_KEY_BYTES + 2))


def is_loopback(host: str) -> bool:
    """True only for what can not be reached from elsewhere."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(slots=True)
class StoreStats:
    """``faults``: connections ended by the store, by reason; peers choose the words, so there are only so many."""

    accepted: int = 0
    turned_away: int = 0
    faults: Counter[str] = field(default_factory=Counter)

    def count(self, reason: str) -> None:
        self.faults[reason if reason in self.faults or len(self.faults) < _REASONS else "another reason"] += 1


class KvStore:
    """The server. `start`, then `address`; `close` when done."""

    def __init__(self, config: ServerConfig, clock: Clock | None = None) -> None:
        self.config = config
        self.stats = StoreStats()
        self.pool = StorePool(config.capacity_bytes)
        self.clock = clock if clock is not None else _Monotonic()
        self.shelf = StoreShelf(self.pool, secrets.token_bytes(16), config.limits, config.token)
        self.connections: dict[Connection, None] = {}  # oldest first
        self._server: asyncio.Server | None = None
        self._ticking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        config = self.config
        try:
            self._server = await loop.create_server(lambda: Connection(self), config.host, config.port, backlog=512)
        except OSError as error:
            raise BadInput(
                f"the store can not listen on {config.host}:{config.port} ({error}); name another address"
            ) from error
        self._ticking = loop.create_task(self._tick())

    @property
    def address(self) -> tuple[str, int]:
        assert self._server is not None  # started
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        if self._ticking is not None:
            self._ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._ticking
        for connection in list(self.connections):
            connection.abort()
        await asyncio.sleep(0)

    def admit(self, connection: Connection) -> bool:
        """A full store drops the oldest connection that has not been welcomed, or else the new one."""
        if len(self.connections) >= self.config.max_connections:
            stranger = next((each for each in self.connections if not each.session.is_open), None)
            self.stats.turned_away += 1
            if stranger is None:
                return False
            stranger.abort()
        self.stats.accepted += 1
        self.connections[connection] = None
        return True

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self.config.tick_s)
            for connection in list(self.connections):
                connection.check_time()


class Connection(asyncio.Protocol):
    """One peer: bytes to frames to its session, and back as fast as the peer takes it."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self.session = StoreSession(store.shelf, store.clock, secrets.token_bytes(32))
        self._reader = FrameReader(_GREETING_BYTES)
        self._writer = FrameWriter()
        self._transport: asyncio.Transport | None = None
        self._began_at = store.clock.now()
        self._frame_began_at: float | None = None
        self._stalled_at: float | None = None  # since when the peer leaves unread what is due to it

    @property
    def is_stalled(self) -> bool:
        """True while the peer leaves unread what is due to it, so that it is not read from either."""
        return self._stalled_at is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _WRITE_BUFFER_BYTES)
        if not self._store.admit(self):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        if self not in self._store.connections:
            return
        try:
            self._reader.feed(data)
            while (message := self._reader.next_message()) is not None:
                self._frame_began_at = None
                self.session.receive(message)
                if self.session.is_open:
                    self._reader.limit = self._store.config.message_bytes
                self._pump()
        except ProtocolError as error:
            self._fault(str(error))
            return
        if not self._reader.is_inside_a_frame:
            self._frame_began_at = None
        elif self._frame_began_at is None:
            self._frame_began_at = self._store.clock.now()

    def pause_writing(self) -> None:
        assert self._transport is not None  # connected
        self._stalled_at = self._store.clock.now()
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        assert self._transport is not None  # connected
        self._stalled_at = None
        self._transport.resume_reading()
        self._pump()

    def eof_received(self) -> bool:
        return False  # half a conversation is none

    def connection_lost(self, _error: Exception | None) -> None:
        self._store.connections.pop(self, None)
        self.session.close()

    def check_time(self) -> None:
        """Ends the connection if its peer has taken too long over anything."""
        config, now = self._store.config, self._store.clock.now()
        if not self.session.is_open and now - self._began_at >= config.handshake_s:
            self._fault(f"the handshake must end within {config.handshake_s} s")
        elif self._frame_began_at is not None and self._stalled_at is None and now - self._frame_began_at >= config.frame_s:
            self._fault(f"a frame must end within {config.frame_s} s of its first byte")
        elif self._stalled_at is not None and now - self._stalled_at >= config.frame_s:
            self._fault(f"what is sent must be read within {config.frame_s} s")
        else:
            try:
                self.session.expire()
            except ProtocolError as error:
                self._fault(str(error))
                return
            self._pump()

    def abort(self) -> None:
        """Ends the connection at once; what it held is given back now, not when the loop comes to it."""
        self._store.connections.pop(self, None)
        self.session.close()
        if self._transport is not None:
            self._transport.abort()

    def _pump(self) -> None:
        transport = self._transport
        while transport is not None and self._stalled_at is None and not transport.is_closing():
            message = self.session.next_message()
            if message is None:
                return
            transport.write(self._writer.frame(message))

    def _fault(self, text: str) -> None:
        """Says why, as far as the peer can still hear it, and ends the connection."""
        self._store.stats.count(text)
        if self._transport is not None and not self._transport.is_closing() and self._stalled_at is None:
            self._transport.write(self._writer.frame(self.session.fault(text)))
        self._store.connections.pop(self, None)
        self.session.close()
        if self._transport is not None:
            if self._stalled_at is None:
                self._transport.close()  # behind what it still has to hear,
                asyncio.get_running_loop().call_later(1.0, self._transport.abort)  # which it may not care to read
            else:
                self._transport.abort()


class _Monotonic:
    def now(self) -> float:
        return time.monotonic()


def run_store(config: ServerConfig, say: Callable[[tuple[str, int]], None], *, until_eof: bool = False) -> StoreStats:
    """Serves until SIGINT or SIGTERM, or with `until_eof` until standard input ends: it dies with whoever started it."""
    return asyncio.run(_run(config, say, until_eof))


def _watch_standard_input(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> None:
    """Raises BadInput if there is nothing that could end: it is closed, a file, or a device like /dev/null."""
    try:
        number = sys.stdin.fileno()
        loop.add_reader(number, lambda: None if os.read(number, 4096) else ended.set())
    except (AttributeError, OSError, ValueError) as error:  # a closed one is None
        raise BadInput(
            "to end with standard input, the store needs a pipe or a terminal there, found it closed, a file or a device; "
            "start it with a pipe, or without --until-eof and end it by SIGTERM"
        ) from error


async def _run(config: ServerConfig, say: Callable[[tuple[str, int]], None], until_eof: bool) -> StoreStats:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(sign, ended.set)
    if until_eof:
        _watch_standard_input(loop, ended)
    store = KvStore(config)
    await store.start()
    say(store.address)
    await ended.wait()
    await store.close()
    return store.stats
