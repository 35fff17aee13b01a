"""Whose turn it is among the stores of one engine, by its messages alone: each that may send does before another sends twice.

Owns what each store was granted and has sent. Knows nothing of the engine's own order.
"""

from __future__ import annotations


class _Sender:
    __slots__ = ("block_bytes", "granted", "num_blocks", "num_sent", "passed_by")

    def __init__(self, block_bytes: int, num_blocks: int) -> None:
        self.block_bytes, self.num_blocks = block_bytes, num_blocks
        self.granted = self.num_sent = 0
        self.passed_by: set[int] = set()  # who has sent since it might have

    @property
    def is_ready(self) -> bool:
        return self.num_sent < self.num_blocks and (self.num_sent + 1) * self.block_bytes <= self.granted


class Turns:
    """Of an engine whose blocks can be read at once: then whoever has credit may send."""

    def __init__(self) -> None:
        self._senders: dict[int, _Sender] = {}

    def opened(self, store: int, block_bytes: int, num_blocks: int) -> None:
        self._senders.setdefault(store, _Sender(block_bytes, num_blocks))

    def granted(self, store: int, total_bytes: int) -> None:
        sender = self._senders.get(store)
        if sender is not None:
            was_ready = sender.is_ready
            sender.granted = max(sender.granted, total_bytes)
            if not was_ready:
                sender.passed_by.clear()

    def sent(self, store: int) -> int | None:
        """A block of it. Another store that might have sent ever since this one's block before, if there is one."""
        passed_over = None
        for number, sender in self._senders.items():
            if number == store:
                sender.num_sent += 1
                sender.passed_by.clear()
            elif sender.is_ready:
                if store in sender.passed_by:
                    passed_over = number
                sender.passed_by.add(store)
        return passed_over

    def ended(self, store: int) -> None:
        self._senders.pop(store, None)

    def clear(self) -> None:
        """The connection is lost: nothing that was granted holds any more."""
        self._senders.clear()
