"""What the remote pool holds: content key -> one block, pinned or evictable. Memory only, one thread, no clock.

Owns capacity, pins and eviction: least recently used first, and of blocks that came together the tail before the head. Never
knows a connection.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

from engine_under_test.errors import ProtocolError


class StoredBlock(NamedTuple):
    """``digest`` as the engine that computed the block took it."""

    digest: bytes
    data: bytes


class StorePool:
    """``used_bytes`` <= ``capacity_bytes`` always. Equal keys mean equal content: the first entry stays."""

    __slots__ = ("_blocks", "_pins", "capacity_bytes", "used_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self.capacity_bytes = capacity_bytes
        self.used_bytes = 0
        self._blocks: OrderedDict[bytes, StoredBlock] = OrderedDict()  # the one to be evicted next first
        self._pins: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def pinned(self) -> dict[bytes, int]:
        """Key -> number of transfers that read it."""
        return dict(self._pins)

    def keys(self) -> tuple[bytes, ...]:
        """What is here, the one to be evicted next first."""
        return tuple(self._blocks)

    def get(self, key: bytes) -> StoredBlock | None:
        return self._blocks.get(key)

    def count_prefix(self, keys: Sequence[bytes], block_bytes: int) -> int:
        """How many of `keys`, from the first on, are here with this size."""
        for number, key in enumerate(keys):
            block = self._blocks.get(key)
            if block is None or len(block.data) != block_bytes:
                return number
        return len(keys)

    def pin(self, keys: Sequence[bytes]) -> None:
        """A transfer reads these blocks, all of which are here: they stay until `unpin`."""
        for key in keys:
            self._pins[key] = self._pins.get(key, 0) + 1
        self._touch(keys)

    def unpin(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            if key not in self._pins:
                raise ProtocolError("pins and unpins of a stored block come in pairs")
            self._pins[key] -= 1
            if not self._pins[key]:
                del self._pins[key]

    def put(self, keys: Sequence[bytes], blocks: Sequence[StoredBlock]) -> int:
        """Makes blocks visible; how many of them, from the first on, are here now. What is here already stays as it is."""
        present: list[bytes] = []
        for key, block in zip(keys, blocks, strict=True):
            if key not in self._blocks:
                if not self._make_room(len(block.data), set(present)):
                    break
                self._blocks[key] = block
                self.used_bytes += len(block.data)
            present.append(key)
        self._touch(present)
        return len(present)

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Used now, the head last of all, so that a tail is evicted before its head."""
        for key in reversed(keys):
            self._blocks.move_to_end(key)

    def _make_room(self, num_bytes: int, spared: set[bytes]) -> bool:
        """Evicts until `num_bytes` fit, or evicts nothing and says False."""
        excess = self.used_bytes + num_bytes - self.capacity_bytes
        victims: list[bytes] = []
        for key, block in self._blocks.items():
            if excess <= 0:
                break
            if key not in self._pins and key not in spared:
                victims.append(key)
                excess -= len(block.data)
        if excess > 0:
            return False
        for key in victims:
            self.used_bytes -= len(self._blocks.pop(key).data)
        return True
