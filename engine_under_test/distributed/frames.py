"""Framing on a stream of bytes: length, sequence number and checksum of each message. Bounded memory, whatever comes.

Owns the frame and its refusal (`ProtocolError`). Never looks into a message.

    0        4          8         12           20
    | "AKV1" | sequence | length  | XXH3-64    | message ...        all numbers big-endian

The checksum covers sequence, length and message. The sequence counts the frames of one direction of one connection from 0: a
frame that is repeated, left out or moved ends the connection. XXH3 is a checksum, not a signature.
"""

from __future__ import annotations

import struct
from typing import Final

import xxhash

from engine_under_test.errors import ProtocolError

MAGIC: Final = b"AKV1"
_HEADER: Final = struct.Struct(">4sIIQ")
_COVERED: Final = struct.Struct(">II")
HEADER_BYTES: Final = _HEADER.size
_SEQUENCES: Final = 1 << 32


class FrameWriter:
    """Numbers the frames of one direction of one connection."""

    __slots__ = ("_sequence",)

    def __init__(self) -> None:
        self._sequence = 0

    def frame(self, message: bytes) -> bytes:
        sequence, self._sequence = self._sequence, (self._sequence + 1) % _SEQUENCES
        return _HEADER.pack(MAGIC, sequence, len(message), _checksum(sequence, message)) + message


class FrameReader:
    """Cuts a stream into messages. ``limit``: the most bytes of a message; may be raised behind a handshake.

    Never holds more than the bytes of one `feed` and of one frame at the limit.
    """

    __slots__ = ("_buffer", "_sequence", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._sequence = 0

    @property
    def is_inside_a_frame(self) -> bool:
        """True while a frame has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> None:
        """More of the stream. Follow with `next_message` until it gives None."""
        self._buffer += data

    def next_message(self) -> bytes | None:
        """The next whole message, None if there is none yet. Raises ProtocolError, as early as it can be known."""
        buffer = self._buffer
        if not MAGIC.startswith(bytes(buffer[:4])):
            raise ProtocolError(f"a frame begins with {MAGIC!r}, found {bytes(buffer[:4])!r}")
        if len(buffer) < HEADER_BYTES:
            return None
        _, sequence, length, checksum = _HEADER.unpack_from(buffer)
        if length > self.limit:
            raise ProtocolError(f"a message has at most {self.limit} bytes here, found one of {length}")
        if sequence != self._sequence:
            raise ProtocolError(f"frame {self._sequence} of the connection is due, found {sequence}: repeated, lost or moved")
        if len(buffer) < HEADER_BYTES + length:
            return None
        message = bytes(buffer[HEADER_BYTES : HEADER_BYTES + length])
        if checksum != _checksum(sequence, message):
            raise ProtocolError(f"the checksum of frame {sequence} is not that of its {length} bytes")
        del buffer[: HEADER_BYTES + length]
        self._sequence = (sequence + 1) % _SEQUENCES
        return message


def _checksum(sequence: int, message: bytes) -> int:
    hasher = xxhash.xxh3_64(_COVERED.pack(sequence, len(message)))
    hasher.update(message)
    return hasher.intdigest()
