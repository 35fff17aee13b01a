"""A proxy: a listening address, an upstream, toxics, and the connections through it. Owns all four; knows no HTTP."""

from __future__ import annotations

import asyncio
import random
import socket

from chaos.toxiproxy.address import AddressError, address_of, connect_to, listen_on, parse_address, prepare, reason
from chaos.toxiproxy.api_error import no_toxic, not_listening, toxic_exists
from chaos.toxiproxy.connection import Connection
from chaos.toxiproxy.link import Counter, Link
from chaos.toxiproxy.stage import Toxic, ToxicEntry
from chaos.toxiproxy.toxics import ResetPeer

STREAMS = ("upstream", "downstream")
_ACCEPT_AGAIN_S = 0.1  # after a failed accept, as when the process has no file descriptors left


class Proxy:
    """``listen`` becomes the real address when the proxy starts; while disabled it is what was asked for."""

    def __init__(self, name: str, listen: str, upstream: str, chance: random.Random) -> None:
        self.name = name
        self.listen = listen
        self.upstream = upstream
        self.is_enabled = False
        self.counters = (Counter(), Counter())
        self._chance = chance
        self._toxics: dict[str, ToxicEntry] = {}
        self._listener: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._serving: dict[asyncio.Task[None], Connection | None] = {}

    # Listening.

    async def start(self) -> None:
        """Raises ApiError when the address can not be had; the proxy then stays disabled."""
        if self.is_enabled:
            return
        try:
            self._listener = await listen_on(parse_address(self.listen or ":0"))
        except AddressError as error:
            raise not_listening(self.listen, str(error)) from error
        except OSError as error:
            raise not_listening(self.listen, f"bind: {reason(error)}") from error
        self.listen = str(address_of(self._listener))
        self.is_enabled = True
        self._accepting = asyncio.create_task(self._accept(self._listener))

    async def stop(self) -> None:
        """Stops listening and closes every connection; what was under way is lost."""
        self.is_enabled = False
        tasks = [*self._serving]
        if self._accepting is not None:
            tasks.append(self._accepting)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._listener is not None:
            self._listener.close()
        self._listener = self._accepting = None

    # Toxics.

    @property
    def toxics(self) -> list[ToxicEntry]:
        """Those of the upstream direction first, in the order of their chain."""
        return [entry for stream in STREAMS for entry in self._toxics.values() if entry.stream.lower() == stream]

    def toxic(self, name: str) -> ToxicEntry:
        if name not in self._toxics:
            raise no_toxic()
        return self._toxics[name]

    def check_is_new(self, name: str) -> None:
        if name in self._toxics:
            raise toxic_exists()

    def add_toxic(self, entry: ToxicEntry) -> None:
        self._toxics[entry.name] = entry
        for link in self._links(entry.stream):
            link.add(entry)

    async def change_toxic(self, entry: ToxicEntry, toxic: Toxic, toxicity: float) -> None:
        entry.toxic, entry.toxicity = toxic, toxicity
        for link in self._links(entry.stream):
            await link.change(entry)

    async def remove_toxic(self, name: str) -> None:
        entry = self.toxic(name)
        del self._toxics[name]
        for link in self._links(entry.stream):
            await link.remove(entry)

    # Connections.

    def _links(self, stream: str) -> list[Link]:
        open_ones = [connection for connection in self._serving.values() if connection is not None]
        return [connection.up if stream.lower() == STREAMS[0] else connection.down for connection in open_ones]

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listener)
            except OSError:
                await asyncio.sleep(_ACCEPT_AGAIN_S)
                continue
            task = asyncio.create_task(self._serve(client))
            self._serving[task] = None
            task.add_done_callback(self._serving.pop)

    async def _serve(self, client: socket.socket) -> None:
        """An upstream that can not be reached costs the client its connection, at once and without a word."""
        try:
            prepare(client)
            upstream = await connect_to(parse_address(self.upstream))
        except (OSError, AddressError):
            client.close()
            return
        except asyncio.CancelledError:
            client.close()
            raise
        connection = Connection(client, upstream, self.counters, self._chance)
        if any(isinstance(entry.toxic, ResetPeer) for entry in self._toxics.values()):
            connection.reset_on_close()
        for entry in self._toxics.values():
            link = connection.up if entry.stream.lower() == STREAMS[0] else connection.down
            link.add(entry)
        task = asyncio.current_task()
        assert task is not None
        self._serving[task] = connection
        await connection.run()
