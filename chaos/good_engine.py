"""An engine of good will at a KV store, and the same going on in a thread while others do their worst.

Owns what is stored and loaded, and the comparison of every byte. Never: what the others do (`hostile_kinds.py`).
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final

from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import State
from engine_under_test.distributed.tcp import TcpConfig, TcpTransport
from engine_under_test.distributed.transfers import ConnectorConfig
from engine_under_test.seams import Clock

TOKEN: Final = b"a token for these tests"
_PATIENCE_S: Final = 10.0


class GoodEngine:
    """Stores and loads eight blocks over and over, and compares every byte. ``name``: that of its keys, unlike others';
    ``limits``: fields of its configuration."""

    def __init__(
        self, address: tuple[str, int], clock: Clock, *, token: bytes = TOKEN, name: bytes = b"good", **limits: Any
    ) -> None:
        self.transport = TcpTransport(TcpConfig(*address), clock)
        times = {"load_deadline_s": _PATIENCE_S, "store_deadline_s": _PATIENCE_S}
        config = ConnectorConfig(4096, token=token, **{**times, **limits})
        self.connector = Connector(config, self, self.transport, clock, (name * 16)[:16])
        self.pages = {number: self.content(number) for number in range(8)}
        self.keys = [b"%s %d" % (name, number) for number in range(8)]
        self.num_rounds = 0

    @staticmethod
    def content(number: int) -> bytes:
        return hashlib.sha256(b"%d" % number).digest() * 128

    def pin(self, _blocks: Sequence[int]) -> None: ...
    def unpin(self, _blocks: Sequence[int]) -> None: ...
    def read(self, block: int) -> bytes:
        return self.pages[block]

    def write(self, block: int, data: bytes) -> None:
        self.pages[block] = data

    def until(self, is_done: Callable[[], object]) -> None:
        ends = time.monotonic() + _PATIENCE_S
        while not is_done():
            self.connector.step()
            self.transport.wait(0.01)
            if time.monotonic() > ends:
                raise AssertionError(f"the good engine got no answer within {_PATIENCE_S} s ({self.transport.last_error})")

    def go_round(self) -> None:
        """Raises AssertionError if a byte is wrong, a block is missing, or its connection was ever lost."""
        connector = self.connector
        self.until(lambda: connector.session is State.OPEN)
        connector.store(self.keys, range(8))
        self.until(lambda: not connector.transfers)
        self.pages.update(dict.fromkeys(range(8, 16), b""))
        asked = connector.ask("good", self.keys)
        assert asked is not None
        self.until(lambda: any(connector.accept(hit.transfer, range(8, 16)) for hit in connector.take_hits()))
        self.until(lambda: not connector.transfers)
        (answer,) = connector.take_answers()
        assert answer.num_blocks == 8, answer
        assert [self.pages[number + 8] for number in range(8)] == [self.content(number) for number in range(8)]
        assert connector.counters.connections_lost == 0, self.transport.last_error
        self.num_rounds += 1


class Serving:
    """`good` goes round and round in a thread, `rest_s` between two rounds. What went wrong there is raised at the end."""

    def __init__(self, good: GoodEngine, rest_s: float = 0.05) -> None:
        self.good = good
        self.longest_s = 0.0
        self._rest_s = rest_s
        self._error: BaseException | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Serving:
        self._thread.start()
        return self

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> None:
        self._is_over.set()
        self._thread.join()
        if self._error is not None and error is None:
            raise self._error

    @property
    def has_failed(self) -> bool:
        return self._error is not None

    def _run(self) -> None:
        try:
            while not self._is_over.is_set():
                began = time.monotonic()
                self.good.go_round()
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                self._is_over.wait(self._rest_s)
        except BaseException as error:  # told by whoever has started the thread
            self._error = error
