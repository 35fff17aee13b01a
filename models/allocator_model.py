"""Who holds each block, by the harness's own bookkeeping; it accepts any free block and predicts none.

Owns the tables as plans showed them, the holders that follow from them, and when the last holder of a block let go.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Key = tuple[str, int, int]  # request_id, choice, incarnation
Table = tuple[int, ...]


class AllocatorModel:
    """Holders of blocks. A choice holds its table; a source of a copy on write stays held until its plan has landed.

    ``is_remapped``: the target may go on with another block than the plan's, so that holders can not be told from plans; only
    `let_go_now` says there when a block was let go.
    """

    def __init__(self, is_remapped: bool = False) -> None:
        self._is_remapped = is_remapped
        self.tables: dict[Key, Table] = {}
        self._holders: dict[int, set[Key]] = {}
        self._sources: dict[Key, set[int]] = {}
        self._released: dict[int, int] = {}
        self._clock = 0

    def released_at(self, block: int) -> int | None:
        """A number that rises with every release; equal for blocks whose order of release nobody promised."""
        if block in self._holders and not self._is_remapped:
            return None
        return self._released.get(block, 0)

    def is_held(self, block: int) -> bool:
        return block in self._holders

    def hold(self, key: Key, table: Table) -> None:
        """A plan (or a fork) shows the table of a choice."""
        known = self.tables.get(key, ())
        if known == table:
            return
        self.tables[key] = table
        common = len(known)
        if table[:common] != known:
            left = set(known).difference(table)
            self._sources.setdefault(key, set()).update(left)
            common = 0
        for block in table[common:]:
            holders = self._holders.get(block)
            if holders is None:
                self._holders[block] = {key}
            else:
                holders.add(key)

    def landed(self, key: Key) -> list[int]:
        """The plan that copied for a choice is committed: the sources that nobody else holds, now released."""
        sources = self._sources.pop(key, None)
        if not sources:
            return []
        self._clock += 1
        return self._let_go(key, sorted(sources - set(self.tables.get(key, ()))))

    def shorten(self, key: Key, table: Table) -> list[int]:
        """The table is but this beginning of what it was; blocks that nobody holds any more are released, the tail first."""
        known = self.tables[key]
        self.tables[key] = table
        self._clock += 1
        return self._let_go(key, list(reversed(known[len(table) :])))

    def replace(self, key: Key, table: Table) -> list[int]:
        """After an abandon: the table is what it was before; blocks that nobody holds any more are released."""
        known = self.tables.get(key, ())
        left = (self._sources.pop(key, set()) | set(known)) - set(table)
        self.tables.pop(key, None)
        if table:
            self.tables[key] = table
            for block in table:
                self._holders.setdefault(block, set()).add(key)
        self._clock += 1
        return self._let_go(key, [block for block in reversed(known) if block in left] + sorted(left - set(known)))

    def release(self, keys: Sequence[Key]) -> list[int]:
        """Choices end or are preempted. Tail first; with several at once, nobody promised an order between them."""
        released: list[int] = []
        self._clock += 1
        for key in keys:
            table = self.tables.pop(key, ())
            sources = self._sources.pop(key, None)
            blocks = list(reversed(table))
            if sources:
                blocks += sorted(sources.difference(table))
            released += self._let_go(key, blocks, is_alone=len(keys) == 1)
        return released

    def let_go_now(self, blocks: Iterable[int]) -> None:
        """Blocks whose last use ended at this instant (a quarantine, a lock): for the order of eviction, they are released
        now, all at once."""
        self._clock += 1
        for block in blocks:
            if self._is_remapped or block not in self._holders:
                self._released[block] = self._clock

    def clear(self) -> None:
        """The target was restarted: nobody holds anything."""
        self.tables.clear()
        self._holders.clear()
        self._sources.clear()
        self._released.clear()

    def _let_go(self, key: Key, blocks: Sequence[int], is_alone: bool = False) -> list[int]:
        released = []
        for block in blocks:
            holders = self._holders.get(block)
            if holders is None or key not in holders:
                continue
            holders.discard(key)
            if not holders:
                del self._holders[block]
                if not self._is_remapped:
                    self._clock += is_alone
                    self._released[block] = self._clock
                released.append(block)
        return released
