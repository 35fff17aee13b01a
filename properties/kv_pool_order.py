"""In which order a remote pool may let go of what it holds, kept from what it heard: least recently used first, tails first.

Owns when each key was used last: stored, or the source of a load. Knows nothing of the pool's own order.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

_NEVER = (0, 0)


class PoolOrder:
    """Told of each use, and of what is there behind each store."""

    def __init__(self) -> None:
        self._held: frozenset[bytes] = frozenset()
        self._uses: dict[bytes, tuple[int, int]] = {}  # by key: which use, and how near to the head
        self._count = 0

    def is_held(self, key: bytes) -> bool:
        return key in self._held

    def used(self, keys: Sequence[bytes]) -> None:
        """These, in the order of their prefix."""
        self._count += 1
        self._uses.update({key: (self._count, -place) for place, key in enumerate(keys)})

    def stored(self, keys: Sequence[bytes], held: Collection[bytes], pinned: Collection[bytes]) -> tuple[bytes, bytes] | None:
        """A store of `keys` is complete, behind which the pool has `held`; ``pinned``: sources of loads. A key that went, and
        one that stayed though it was used before that one, if there are such."""
        gone = self._held.difference(held)
        self._held = frozenset(held)
        self.used(keys)
        might_go = self._held.difference(pinned, keys)
        latest = max(gone, key=self._use, default=None)
        earliest = min(might_go, key=self._use, default=None)
        found = None
        if latest is not None and earliest is not None and self._use(earliest) < self._use(latest):
            found = latest, earliest
        for key in gone:
            self._uses.pop(key, None)
        return found

    def _use(self, key: bytes) -> tuple[int, int]:
        return self._uses.get(key, _NEVER)
