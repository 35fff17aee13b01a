"""A wire between an engine and a KV store that spoils one frame: it flips a bit in a field that was named, or stops in the
middle of the frame and is silent from there on.

Owns the wire and who ended it. No Toxiproxy changes a byte; this does. Never judges.
"""

from __future__ import annotations

import contextlib
import random
import select
import socket
import threading
from dataclasses import dataclass, field
from enum import StrEnum
from types import TracebackType
from typing import Final

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.frames import HEADER_BYTES
from engine_under_test.distributed.protocol import Kind

_LOOK_S: Final = 0.01  # how often the wire looks whether it is over
_LONG: Final = 1 << 24  # a frame's length with a bit above this is over every limit


class Way(StrEnum):
    TO_STORE = "to the store"
    TO_ENGINE = "to the engine"


class Field(StrEnum):
    """Where in a frame a bit is flipped."""

    MAGIC = "magic"
    SEQUENCE = "sequence"
    LENGTH = "length"
    CHECKSUM = "checksum"
    MESSAGE = "message"


_PLACES: Final = {Field.MAGIC: (0, 4), Field.SEQUENCE: (4, 8), Field.LENGTH: (8, 12), Field.CHECKSUM: (12, HEADER_BYTES)}


@dataclass(frozen=True, slots=True)
class Spoil:
    """The first frame of a kind and a way; ``where`` None: only half of it comes."""

    way: Way
    kind: Kind
    where: Field | None

    def __str__(self) -> str:
        kind = self.kind.name
        return f"{kind} {self.way}: {f'a bit of its {self.where} flipped' if self.where else 'half of it, then silence'}"


def flipped(frame: bytes, where: Field, chance: random.Random) -> bytes:
    """The frame with one other bit there. A length becomes shorter or too long: any other is half a frame, which is a kind of
    its own."""
    begin, end = _PLACES.get(where, (HEADER_BYTES, len(frame)))
    bits = list(range(8 * begin, 8 * end))
    if where is Field.LENGTH:
        length = int.from_bytes(frame[begin:end], "big")
        bits = [8 * end - 1 - place for place in range(32) if length >> place & 1 or 1 << place >= _LONG]
    bit = chance.choice(bits)
    found = bytearray(frame)
    found[bit // 8] ^= 0x80 >> bit % 8
    return bytes(found)


def _kind_of(frame: bytes) -> Kind:
    return m.kind_of(m.decode(frame[HEADER_BYTES:]))


@dataclass(slots=True)
class _Lane:
    """One direction: what has come and was not passed on, being less than a frame."""

    way: Way
    source: socket.socket
    target: socket.socket
    buffer: bytearray = field(default_factory=bytearray)


class SpoilingWire:
    """Listens at `address` for one engine's connections, one at a time, and passes frames on to the store; of the first
    connection one frame is spoiled. ``ended_by``: the way whose receiver ended that connection, None as long as nobody has."""

    def __init__(self, store: tuple[str, int], spoil: Spoil, chance: random.Random) -> None:
        self.has_struck = False
        self.ended_by: Way | None = None
        self._store, self._spoil, self._chance = store, spoil, chance
        self._is_silent = False
        self._is_over = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(_LOOK_S)
        host, port = self._listening.getsockname()
        self.address: tuple[str, int] = (str(host), int(port))
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> SpoilingWire:
        self._thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()
        self._listening.close()

    def _run(self) -> None:
        while not self._is_over.is_set():
            with contextlib.suppress(TimeoutError):
                engine, _ = self._listening.accept()
                with engine, socket.create_connection(self._store) as store:
                    self._pass_on(engine, store)

    def _pass_on(self, engine: socket.socket, store: socket.socket) -> None:
        lanes = {engine: _Lane(Way.TO_STORE, engine, store), store: _Lane(Way.TO_ENGINE, store, engine)}
        for each in lanes:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not self._is_over.is_set():
            for ready in select.select(list(lanes), (), (), _LOOK_S)[0]:
                if not self._move(lanes[ready]):
                    return

    def _move(self, lane: _Lane) -> bool:
        """Passes on what has come, in whole frames; False when one side is gone."""
        try:
            data = lane.source.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            if self.has_struck and self.ended_by is None:
                self.ended_by = Way.TO_ENGINE if lane.way is Way.TO_STORE else Way.TO_STORE  # its source received the other way
            return False
        lane.buffer += data
        while len(lane.buffer) >= HEADER_BYTES:
            length = HEADER_BYTES + int.from_bytes(lane.buffer[8:12], "big")
            if len(lane.buffer) < length:
                break
            frame = bytes(lane.buffer[:length])
            del lane.buffer[:length]
            if self.has_struck and lane.way is Way.TO_ENGINE and _kind_of(frame) is Kind.FAULT:
                self.ended_by = self.ended_by or Way.TO_STORE  # its last word; the engine may be faster to hang up
            with contextlib.suppress(OSError):  # the other side is gone: seen when it is read
                lane.target.sendall(self._spoiled(lane.way, frame))
        return True

    def _spoiled(self, way: Way, frame: bytes) -> bytes:
        spoil = self._spoil
        if self._is_silent and way is spoil.way:
            return b""
        if self.has_struck or way is not spoil.way or _kind_of(frame) is not spoil.kind:
            return frame
        self.has_struck = True
        if spoil.where is None:
            self._is_silent = True
            return frame[: self._chance.randrange(1, len(frame))]
        return flipped(frame, spoil.where, self._chance)
