"""One client's connection through a proxy: two sockets, two links. Owns the sockets and the order in which they close.

When one direction ends, its destination is closed whole; there are no half-closed connections. What the other direction has
read by then still goes its way, toxics included, before its destination closes too.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct

from chaos.toxiproxy.link import Counter, Link

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, 0 s: closing discards and answers with RST


class Connection:
    """``up``: client to upstream; ``down``: upstream to client. Both belong to the event loop that made them."""

    def __init__(
        self, client: socket.socket, upstream: socket.socket, counters: tuple[Counter, Counter], chance: random.Random
    ) -> None:
        self._client = client
        self._upstream = upstream
        self.up = Link(client, upstream, counters[0], chance)
        self.down = Link(upstream, client, counters[1], chance)

    def reset_on_close(self) -> None:
        for end in (self._client, self._upstream):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)

    async def run(self) -> None:
        """Until both directions have ended; cancelled, it drops what is under way. Closes both sockets in any case."""
        up = asyncio.create_task(self.up.run())
        down = asyncio.create_task(self.down.run())
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
            if up.done():
                await self.down.stop_reading()
                self._upstream.close()
                await asyncio.wait({down})
            else:
                await self.up.stop_reading()
                self._client.close()
                await asyncio.wait({up})
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.wait({up, down})
            await self.up.stop()
            await self.down.stop()
            self._upstream.close()
            self._client.close()
