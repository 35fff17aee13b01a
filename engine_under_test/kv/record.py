"""Owns the memory of a plan in the making or in flight: what it changed, so that it can be undone. Never undoes anything."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Items
from operator import add
from typing import NamedTuple

from engine_under_test.types import Media, Plan, PrefixEntry


class BlockTable:
    """The blocks of one choice since its last (re)start, and what is needed to publish them.

    ``blocks`` covers everything allocated, a tuple that is replaced when it changes (reservations and snapshots share it);
    the first ``num_owned`` are owned, the others reserved by plans in flight. ``tokens`` and ``keys`` are the choice's own
    growing lists: prompt plus output, and the keys of its full blocks as far as they were computed. ``entries`` are the
    index entries of its first blocks.
    """

    __slots__ = (
        "blocks",
        "cache_generation",
        "content_keys",
        "entries",
        "is_released",
        "keys",
        "last_plan",
        "media",
        "namespace",
        "num_owned",
        "tokens",
    )

    def __init__(self, namespace: bytes, tokens: list[int], media: tuple[Media, ...], keys: list[bytes]) -> None:
        self.namespace = namespace
        self.tokens = tokens
        self.media = media
        self.keys = keys
        self.content_keys: list[bytes] = []  # of the first blocks, beyond this engine
        self.blocks: tuple[int, ...] = ()
        self.entries: list[PrefixEntry] = []
        self.num_owned = 0
        self.last_plan = 0  # the last launched plan that uses the blocks
        self.cache_generation = 0
        self.is_released = False

    def replace(self, number: int, block: int) -> None:
        """Puts `block` in the place of the one at `number`."""
        self.blocks = (*self.blocks[:number], block, *self.blocks[number + 1 :])


class Hit(NamedTuple):
    """A block found in the prefix cache and taken from wherever it stood."""

    block: int
    was_free: bool


class Take(NamedTuple):
    """A block taken from the front of the free queue, and what `PrefixIndex.restore` wants to undo its eviction."""

    block: int
    eviction: tuple[PrefixEntry, int, int] | None


class Change:
    """What one row of a plan changed in its table. A row that only wrote into its own last block changed nothing."""

    __slots__ = ("copied_at", "end", "hits", "num_blocks_before", "num_entries_before", "source", "table", "takes")

    def __init__(self, table: BlockTable, end: int) -> None:
        self.table = table
        self.end = end  # the row's positions end before it
        self.num_blocks_before = len(table.blocks)
        self.num_entries_before = len(table.entries)
        self.hits: list[Hit] = []
        self.takes: list[Take] = []
        self.source: int | None = None  # a block copied on write; its count is held until commit
        self.copied_at = 0


class Record:
    """A reserved or launched plan. ``changes`` by row: rows with hits first, then in row order."""

    __slots__ = ("changes", "ends", "filled", "is_launched", "plan", "quarantine_before", "tables")

    def __init__(self, plan: Plan, tables: Items[BlockTable]) -> None:
        self.plan = plan
        self.tables = tables
        self.ends = list(map(add, plan.starts, plan.num_tokens))
        self.changes: dict[int, Change] = {}
        self.is_launched = False
        self.filled: list[int] = []  # what was taken from the pending fills
        self.quarantine_before: dict[int, int] | None = None  # copied when a hit leaves quarantine

    def change(self, row: int) -> Change:
        found = self.changes.get(row)
        if found is None:
            found = self.changes[row] = Change(self.tables[row], self.ends[row])
        return found

    def evicted(self) -> tuple[int, ...]:
        """Cached blocks that were taken, in this order."""
        if not self.changes:
            return ()
        changes = [change for _, change in sorted(self.changes.items())]
        return tuple([take.block for change in changes for take in change.takes if take.eviction is not None])

    def held(self, block_size: int) -> tuple[int, ...]:
        """The blocks that the plan holds and no table owns yet: takes and hits, and sources whose choice is gone."""
        if not self.changes:
            return ()
        held: list[int] = []
        for change in self.changes.values():
            table = change.table
            if not table.is_released:
                first = max(change.num_blocks_before, table.num_owned)
                held += table.blocks[first : -(-change.end // block_size)]
            if change.source is not None:
                held.append(change.source if table.is_released else table.blocks[change.copied_at])
        return tuple(held)

    def sources(self) -> Iterator[tuple[BlockTable, int, int]]:
        """(table, place, source block) of each copy whose choice is still there."""
        for change in self.changes.values():
            if change.source is not None and not change.table.is_released:
                yield change.table, change.copied_at, change.source
