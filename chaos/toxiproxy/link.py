"""One direction of one connection: bytes from a socket, through a chain of stages, to the other socket.

    source ─► reader ─► stage ─► stage ─► writer ─► destination

Owns the chain and its changes while bytes flow. New toxics join at the end of the chain. Does not own the sockets: who opened
them closes them.
"""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Iterable

from chaos.toxiproxy.pipe import Chunk, Pipe
from chaos.toxiproxy.stage import Stage, ToxicEntry
from chaos.toxiproxy.toxics import Timeout

_READ_BYTES = 32 * 1024


class Counter:
    """Bytes of one direction of one proxy, over all its connections."""

    __slots__ = ("received", "sent")

    def __init__(self) -> None:
        self.received = 0
        self.sent = 0


class Link:
    """``run`` ends when the last stage has ended or the destination is gone."""

    def __init__(self, source: socket.socket, destination: socket.socket, counter: Counter, chance: random.Random) -> None:
        self._source = source
        self._destination = destination
        self._counter = counter
        self._chance = chance
        self._head = self._last = Pipe()
        self._stages: list[Stage] = []
        self._reader: asyncio.Task[None] | None = None

    async def run(self) -> None:
        self._reader = asyncio.create_task(self._read())
        try:
            await self._write()
        finally:
            await self.stop()

    async def stop(self) -> None:
        """Ends every task of this link; may be called again."""
        await self.stop_reading()
        for stage in self._stages:
            await stage.interrupt()

    async def stop_reading(self) -> None:
        """Nothing more is read, as if the source had ended here; what was read still goes its way."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])

    def add(self, entry: ToxicEntry) -> None:
        """At the end of the chain. What stands before the writer already passes untouched."""
        if self._last.is_closed:
            return
        incoming = Pipe(entry.toxic.room)
        stage = Stage(entry, incoming, self._last, self._chance)
        if self._stages:
            self._stages[-1].outgoing = incoming
        else:
            self._head = incoming
        self._stages.append(stage)
        stage.start()

    async def change(self, entry: ToxicEntry) -> None:
        """The stage of ``entry`` begins again with the attributes and the toxicity that it has now; the dice fall again."""
        for stage in self._of(entry):
            await stage.interrupt()
            stage.start()

    async def remove(self, entry: ToxicEntry) -> None:
        """What the toxic holds passes at once. A removed `timeout` closes the connection."""
        for stage in self._of(entry):
            await stage.interrupt()
            if isinstance(entry.toxic, Timeout):
                stage.end()
            else:
                stage.retire(self._bypass)

    def _of(self, entry: ToxicEntry) -> Iterable[Stage]:
        return [stage for stage in self._stages if stage.entry is entry and not stage.is_over]

    def _bypass(self, stage: Stage) -> None:
        """Takes a retired stage with an idle input out of the chain; no await between the test of that and this."""
        place = self._stages.index(stage)
        if place:
            self._stages[place - 1].outgoing = stage.outgoing
        else:
            self._head = stage.outgoing
        del self._stages[place]

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await loop.sock_recv(self._source, _READ_BYTES):
                self._counter.received += len(data)
                await self._head.put(Chunk(data, loop.time()))
        except OSError:
            pass  # a reset source ends here as one that ends
        finally:
            self._head.close()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while (chunk := await self._last.take()) is not None:
                await loop.sock_sendall(self._destination, chunk.data)
                self._counter.sent += len(chunk.data)
        except OSError:
            pass  # the destination is gone: nothing can follow
