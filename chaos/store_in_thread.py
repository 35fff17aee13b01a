"""A KV store of real sockets in a thread of its own, on a clock that stands still until it is moved.

Owns that thread and how it is asked. Never what a peer does (`hostile_kinds.py`) or what must hold.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from chaos.good_engine import TOKEN
from engine_under_test.distributed.kv_store import KvStore, ServerConfig
from engine_under_test.distributed.store_session import StoreLimits
from properties.kv_world import HandClock

_PATIENCE_S: Final = 10.0
Found = TypeVar("Found")
LIMITS: Final = StoreLimits(max_block_bytes=4096, window_bytes=16384, max_staged_bytes=1 << 16, lease_s=10.0, abort_grace_s=5.0)


class StoreInThread:
    """A handshake has 5 s, a frame 30 s, a transfer that stands still 10 s and 5 s more. `close` when done."""

    def __init__(self, max_connections: int = 100) -> None:
        self.clock = HandClock()
        self.config = ServerConfig(
            token=TOKEN,
            capacity_bytes=1 << 20,
            max_connections=max_connections,
            handshake_s=5.0,
            frame_s=30.0,
            tick_s=0.01,
            limits=LIMITS,
        )
        self._is_started, self._loop = threading.Event(), asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._is_started.wait(_PATIENCE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self.store = KvStore(self.config, self.clock)
        self._loop.run_until_complete(self.store.start())
        self.address = self.store.address
        self._is_started.set()
        self._loop.run_forever()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.store.close(), self._loop).result(_PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_PATIENCE_S)
        self._loop.close()

    def ask(self, question: Callable[[KvStore], Found]) -> Found:
        """The answer, given in the store's own thread."""

        async def asked() -> Found:
            return question(self.store)

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result(_PATIENCE_S)

    def until(self, is_true: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + _PATIENCE_S
        while not is_true():
            assert time.monotonic() < ends, f"{what}: not within {_PATIENCE_S} s ({self.store.stats})"
            time.sleep(0.005)
