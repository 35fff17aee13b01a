"""What a connector storm left in the store, seen over a connection of its own that no fault touches.

Owns the questions: which keys are there, with which bytes, and may everything go that nobody reads. What must hold of that
stands in `properties/invariants/transfers.py`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from chaos.connector_traffic import PATIENCE_S
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import State
from engine_under_test.distributed.tcp import TcpConfig, TcpTransport
from engine_under_test.distributed.transfers import ConnectorConfig
from engine_under_test.seams import Clock
from properties.invariants.predicate import violation
from properties.invariants.transfers import TransferMoment, first_violation
from properties.kv_end import Law
from properties.verdict import Violation

_AT_ONCE = 16


class Auditor:
    """The connector's `KvPages` too. ``law``: what each key stands for."""

    def __init__(self, address: tuple[str, int], clock: Clock, law: Law, block_bytes: int) -> None:
        self.law = law
        self.block_bytes = block_bytes
        self._pages: dict[int, bytes] = {}
        self._clock = clock
        self._transport = TcpTransport(TcpConfig(*address), clock)
        config = ConnectorConfig(block_bytes, max_loads=_AT_ONCE, load_deadline_s=PATIENCE_S, store_deadline_s=PATIENCE_S)
        self._connector = Connector(config, self, self._transport, clock, b"audit" + bytes(11))

    def pin(self, _blocks: Sequence[int]) -> None: ...
    def unpin(self, _blocks: Sequence[int]) -> None: ...
    def read(self, block: int) -> bytes:
        return self._pages[block]

    def write(self, block: int, data: bytes) -> None:
        self._pages[block] = data

    def audit(
        self, keys: Collection[bytes], committed: Collection[bytes], capacity_blocks: int, lease_s: float
    ) -> Violation | None:
        """``keys``: whatever an engine may have spoken of; ``committed``: of stores that were sent to their end."""
        found = self._until(lambda: self._connector.session is State.OPEN, "a welcome")
        found = found or self._look(sorted(keys), committed)
        found = found or self._fill(capacity_blocks, lease_s)
        self._transport.close("the end")
        return found

    def _look(self, keys: Sequence[bytes], committed: Collection[bytes]) -> Violation | None:
        present: dict[bytes, tuple[object, object]] = {}
        left = list(keys)
        answered = 0
        blocks: dict[object, int] = {}

        def go_on() -> bool:
            nonlocal answered
            while left and self._connector.ask(left[-1], [left[-1]]) is not None:
                left.pop()
            for hit in self._connector.take_hits():
                blocks[hit.owner] = len(blocks)
                self._connector.accept(hit.transfer, [blocks[hit.owner]])
            for answer in self._connector.take_answers():
                answered += 1
                if answer.num_blocks:
                    key = bytes(answer.owner)  # type: ignore[call-overload]  # the owner that was given above
                    due, data = self.law(key), self._pages[blocks[key]]
                    present[key] = ("other bytes", "those of its key") if due != data else ("", "")
            return answered == len(keys)

        return self._until(go_on, "an answer for each key") or first_violation(
            TransferMoment(remote=present, committed=committed)
        )

    def _fill(self, capacity_blocks: int, lease_s: float) -> Violation | None:
        """A whole capacity of new blocks fits, as soon as the leases of connections that are gone are over."""
        ends = time.monotonic() + lease_s + PATIENCE_S
        attempt = stored = 0
        while time.monotonic() < ends:
            before = self._connector.counters.stored_blocks
            keys = [b"audit %d %d" % (attempt, number) for number in range(capacity_blocks)]
            self._pages = dict.fromkeys(range(capacity_blocks), b"%16d" % attempt * (self.block_bytes // 16))
            self._connector.store(
                keys, range(capacity_blocks)
            )  # at once: what one transfer brings does not make room for itself
            if found := self._until(lambda: not self._connector.transfers, "an end of each store"):
                return found
            stored = self._connector.counters.stored_blocks - before
            if stored == capacity_blocks:
                return None
            attempt += 1
            time.sleep(0.1)
        return violation(
            "DI-3", "the store behind the storm", f"room for {stored} blocks", f"for {capacity_blocks}: nobody reads"
        )

    def _until(self, is_done: Callable[[], bool], what: str) -> Violation | None:
        ends = time.monotonic() + PATIENCE_S
        while not is_done():
            if time.monotonic() > ends:
                found = f"none within {PATIENCE_S:g} s ({self._transport.last_error or self._connector.counters.broken})"
                return violation("DI-5", f"the store, asked by an engine that nothing befalls: {what}", found, "one at once")
            self._connector.step()
            self._transport.wait(0.005)
        return None
