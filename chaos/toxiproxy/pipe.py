"""What joins two stages of a link: a short queue of chunks that can end. Owns waiting; drops nothing and reorders nothing.

Both sides may be cancelled while they wait: a chunk that was not taken is still in the pipe, one that was not put is still
with whoever wanted to put it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chunk:
    """Bytes that were read at once. ``at``: the event loop's time, in seconds, from which a delay counts."""

    data: bytes
    at: float


class Pipe:
    """At most ``room`` chunks; who puts more waits (this is what makes a slow reader slow down the sender)."""

    def __init__(self, room: int = 1) -> None:
        self._room = room
        self._chunks: deque[Chunk] = deque()
        self._takers: list[asyncio.Future[None]] = []
        self._putters: list[asyncio.Future[None]] = []
        self.is_closed = False

    @property
    def is_idle(self) -> bool:
        """Nothing in it, nobody waiting to put, not ended."""
        return not self._chunks and not self._putters and not self.is_closed

    async def take(self) -> Chunk | None:
        """The next chunk, or None when the pipe has ended and is empty."""
        while not self._chunks:
            if self.is_closed:
                return None
            await _wait_among(self._takers)
        chunk = self._chunks.popleft()
        _wake(self._putters)
        return chunk

    async def put(self, chunk: Chunk) -> None:
        while len(self._chunks) >= self._room and not self.is_closed:
            await _wait_among(self._putters)
        if not self.is_closed:
            self._chunks.append(chunk)
            _wake(self._takers)

    def put_back(self, chunk: Chunk) -> None:
        """In front, beyond the room if need be: what was taken and could not be passed on."""
        self._chunks.appendleft(chunk)
        _wake(self._takers)

    def close(self) -> None:
        self.is_closed = True
        _wake(self._takers)
        _wake(self._putters)


async def _wait_among(waiting: list[asyncio.Future[None]]) -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting.append(future)
    try:
        await future
    finally:
        if future in waiting:
            waiting.remove(future)


def _wake(waiting: list[asyncio.Future[None]]) -> None:
    for future in waiting:
        if not future.done():
            future.set_result(None)
