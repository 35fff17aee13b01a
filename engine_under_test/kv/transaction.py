"""The only way to change KV memory: lookup -> reserve -> launch -> commit, or rollback, or abandon; release, fork, reset.

Owns the right to change the pool and the index, and the record of plans in flight. Never orders requests, never touches
tensors. What a plan takes is held by its *reservation* until the plan is committed; then the table owns it.

    empty/cached --reserve--> reserved --commit--> owned --release--> [quarantined --fence-->] cached | empty
                     ^------- rollback ---'  `----- abandon, behind the fence ------------^
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from typing import NamedTuple

from engine_under_test.errors import OutOfBlocks, ProtocolError
from engine_under_test.kv.block_pool import BlockPool
from engine_under_test.kv.prefix_index import PrefixIndex, blake2b_16, media_in
from engine_under_test.seams import BlockGate, Fence, Hasher, Observer
from engine_under_test.types import BlockCopy, Event, EventKind, Media, Plan, PrefixEntry, Reservation, RowId


class BlockTable:
    """The blocks of one choice since its last (re)start, and what it needs to know to publish them.

    ``blocks`` covers everything allocated; the first ``num_owned`` are owned, the others reserved by plans in flight.
    ``tokens`` and ``keys`` are the choice's own growing lists: prompt plus output, and the keys of its full blocks as far
    as they were computed. ``entries`` are the index entries of its first blocks.
    """

    __slots__ = (
        "blocks",
        "cache_generation",
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
        self.blocks: list[int] = []
        self.entries: list[PrefixEntry] = []
        self.num_owned = 0
        self.last_plan = 0  # the last launched plan that uses the blocks
        self.cache_generation = 0
        self.is_released = False


class _Hit(NamedTuple):
    block: int
    was_free: bool
    quarantined_until: int  # 0 unless it was in quarantine


class _Eviction(NamedTuple):
    entry: PrefixEntry
    place: int
    place_in_bucket: int


class _Take(NamedTuple):
    block: int
    eviction: _Eviction | None


class _Row:
    """What one row of a plan changed in its table, so that it can be undone."""

    __slots__ = ("copied_at", "hits", "num_blocks_before", "num_entries_before", "source", "table", "takes", "tokens_end")

    def __init__(self, table: BlockTable, tokens_end: int) -> None:
        self.table = table
        self.tokens_end = tokens_end
        self.num_blocks_before = len(table.blocks)
        self.num_entries_before = len(table.entries)
        self.hits: list[_Hit] = []
        self.takes: list[_Take] = []
        self.source: int | None = None  # a block copied on write; held until commit
        self.copied_at = 0


class _Record:
    """A reserved or launched plan."""

    __slots__ = ("filled", "is_launched", "plan", "quarantine_before", "rows")

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.rows: list[_Row] = []
        self.is_launched = False
        self.filled: list[int] = []  # taken from the pending fills
        self.quarantine_before: dict[int, int] | None = None  # copied when a hit leaves quarantine


class KvTransaction:
    """See the module. ``capacity`` is ``num_blocks * block_size`` slots."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        hasher: Hasher = blake2b_16,
        gate: BlockGate | None = None,
        observer: Observer | None = None,
        has_prefix_cache: bool = True,
    ) -> None:
        self.block_size = block_size
        self.pool = BlockPool(num_blocks)
        self.index = PrefixIndex(hasher)
        self.cache_generation = 0
        self._gate = gate
        self._observe = observer
        self._has_prefix_cache = has_prefix_cache
        self._in_flight: deque[_Record] = deque()
        self._unsettled: dict[int, Fence] = {}
        self._pending_fills: dict[int, None] = {}  # blocks that became empty and still hold old content
        self._pins: dict[int, int] = {}

    # ---- looking ----------------------------------------------------------------------------------------------------

    def lookup(self, table: BlockTable, max_blocks: int) -> tuple[int, ...]:
        """The blocks that hold the first tokens of an empty table's choice, at most `max_blocks` of them. Pure."""
        if not self._has_prefix_cache:
            return ()
        found = []
        parent: PrefixEntry | None = None
        size = self.block_size
        for number in range(max_blocks):
            start = number * size
            tokens = tuple(table.tokens[start : start + size])
            media = media_in(table.media, start, start + size) if table.media else ()
            parent = self.index.find(self._key(table, number), table.namespace, parent, tokens, media)
            if parent is None:
                break
            found.append(self.index.first_block(parent))
        return tuple(found)

    def _key(self, table: BlockTable, number: int) -> bytes:
        """The key of the table's full block `number`, computed once."""
        keys = table.keys
        size = self.block_size
        while len(keys) <= number:
            start = len(keys) * size
            media = media_in(table.media, start, start + size) if table.media else ()
            parent_key = keys[-1] if keys else None
            keys.append(self.index.key(table.namespace, parent_key, table.tokens[start : start + size], media))
        return keys[number]

    def needs_copy(self, table: BlockTable, start: int) -> bool:
        """A write at position `start` would meet a shared, partly filled block (KV-11)."""
        number, offset = divmod(start, self.block_size)
        return offset != 0 and self.pool.ref_counts[table.blocks[number]] > 1

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    @property
    def num_quarantined(self) -> int:
        return len(self.pool.quarantine)

    @property
    def pinned(self) -> tuple[int, ...]:
        return tuple(block for block, count in self._pins.items() for _ in range(count))

    @property
    def plans_in_flight(self) -> tuple[int, ...]:
        return tuple(record.plan.plan_id for record in self._in_flight if record.is_launched)

    @property
    def unsettled(self) -> tuple[int, ...]:
        return tuple(self._unsettled)

    def reservations(self) -> dict[int, tuple[int, ...]]:
        """For each plan in flight the blocks that it holds and no table owns yet (KV-2)."""
        found: dict[int, tuple[int, ...]] = {}
        for record in self._in_flight:
            held: list[int] = []
            for row in record.rows:
                table = row.table
                if not table.is_released:
                    first = max(row.num_blocks_before, table.num_owned)
                    held += table.blocks[first : -(-row.tokens_end // self.block_size)]
                if row.source is not None:
                    held.append(row.source if table.is_released else table.blocks[row.copied_at])
            found[record.plan.plan_id] = tuple(held)
        return found

    def sources(self) -> dict[BlockTable, list[tuple[int, int]]]:
        """For tables with copies in flight: (place in the table, source block), which the table owns until commit."""
        found: dict[BlockTable, list[tuple[int, int]]] = {}
        for record in self._in_flight:
            for row in record.rows:
                if row.source is not None and not row.table.is_released:
                    found.setdefault(row.table, []).append((row.copied_at, row.source))
        return found

    # ---- reserve and rollback ---------------------------------------------------------------------------------------

    def reserve(self, plan: Plan, tables: Items[BlockTable]) -> Reservation:
        """Takes everything that `plan` needs, or raises OutOfBlocks and changes nothing (KV-12).

        All hits are taken before any free block is: a block about to be hit must not be evicted for a row before it.
        """
        record = _Record(plan)
        size = self.block_size
        starts, counts = plan.starts, plan.num_tokens
        rows = record.rows
        for i, table in enumerate(tables):
            row = _Row(table, starts[i] + counts[i])
            rows.append(row)
            if not table.blocks:
                table.cache_generation = self.cache_generation
            if plan.hit_blocks[i]:
                self._take_hits(record, row, plan.hit_blocks[i])
        ref_counts = self.pool.ref_counts
        copies: list[BlockCopy] = []
        evicted: list[int] = []
        tables_out: list[tuple[int, ...]] = []
        slots: list[int] = []
        new_blocks: list[tuple[int, ...]] = []
        try:
            for row in rows:
                table, end = row.table, row.tokens_end
                blocks = table.blocks
                start = starts[len(tables_out)]
                number, offset = divmod(start, size)
                if offset and ref_counts[blocks[number]] > 1:
                    row.source, row.copied_at = blocks[number], number
                    blocks[number] = self._take(row, evicted)
                    copies.append(BlockCopy(row.source, blocks[number], offset))
                while len(blocks) * size < end:
                    blocks.append(self._take(row, evicted))
                tables_out.append(tuple(blocks))
                new_blocks.append(tuple([take.block for take in row.takes]) if row.takes else ())
                if end - start == 1:
                    slots.append(blocks[number] * size + offset)
                else:
                    _append_slots(slots, blocks, size, start, end)
        except OutOfBlocks:
            self._undo(record)
            raise
        fills = self._take_fills(record, evicted)
        self._in_flight.append(record)
        if self._observe is not None:
            for i, row in enumerate(rows):
                if row.takes:
                    self._tell(Event(EventKind.RESERVED, plan.row_id(i), plan.plan_id, new_blocks[i]))
        return Reservation(
            plan.plan_id, tuple(tables_out), tuple(slots), tuple(new_blocks), tuple(copies), tuple(fills), tuple(evicted)
        )

    def _take_hits(self, record: _Record, row: _Row, hits: tuple[int, ...]) -> None:
        pool = self.pool
        table = row.table
        for block in hits:
            quarantined_until = pool.quarantine.get(block, 0)
            if quarantined_until:
                if record.quarantine_before is None:
                    record.quarantine_before = dict(pool.quarantine)
                del pool.quarantine[block]
            was_free = bool(pool.is_free[block])
            if was_free:
                pool.unlink(block)
            pool.ref_counts[block] += 1
            row.hits.append(_Hit(block, was_free, quarantined_until))
            table.entries.append(self.index.entry_of[block])
        table.blocks.extend(hits)

    def _take(self, row: _Row, evicted: list[int]) -> int:
        pool = self.pool
        block = pool.first_free()
        if block is None:
            raise OutOfBlocks("a reservation needs one more block than are free")
        if self._gate is not None and not self._gate.admit():
            raise OutOfBlocks("a block was refused to the reservation")
        pool.unlink(block)
        pool.ref_counts[block] = 1
        eviction = None
        if block in self.index.entry_of:
            eviction = _Eviction(*self.index.forget(block))
            evicted.append(block)
        row.takes.append(_Take(block, eviction))
        return block

    def _take_fills(self, record: _Record, evicted: list[int]) -> list[int]:
        """Every block that became empty since the last plan, and every block evicted by this one (poison)."""
        if self._pending_fills:
            record.filled = list(self._pending_fills)
            self._pending_fills.clear()
        return record.filled + evicted

    def rollback(self, plan_id: int) -> None:
        """As if the newest reservation had not been: free order and evicted entries included."""
        record = self._in_flight[-1] if self._in_flight else None
        if record is None or record.plan.plan_id != plan_id or record.is_launched:
            raise ProtocolError(f"only the newest reservation can be rolled back, before launch; found plan {plan_id}")
        self._in_flight.pop()
        self._undo(record)
        self._pending_fills = dict.fromkeys(record.filled)
        self._tell(Event(EventKind.ROLLED_BACK, plan_id=plan_id))

    def _undo(self, record: _Record) -> None:
        pool = self.pool
        for row in reversed(record.rows):
            table = row.table
            for take in reversed(row.takes):
                pool.ref_counts[take.block] = 0
                pool.relink(take.block)
                if take.eviction is not None:
                    self.index.restore(take.block, *take.eviction)
            if row.source is not None:
                table.blocks[row.copied_at] = row.source
        for row in reversed(record.rows):
            table = row.table
            for hit in reversed(row.hits):
                pool.ref_counts[hit.block] -= 1
                if hit.was_free:
                    pool.relink(hit.block)
            del table.blocks[row.num_blocks_before :]
            del table.entries[row.num_entries_before :]
        if record.quarantine_before is not None:
            pool.quarantine = record.quarantine_before

    # ---- launch, commit, abandon ------------------------------------------------------------------------------------

    def launch(self, plan_id: int, fence: Fence) -> None:
        """From here on the plan can be committed or abandoned, not rolled back."""
        record = self._in_flight[-1]
        if record.plan.plan_id != plan_id or record.is_launched:
            raise ProtocolError(f"plan {plan_id} is not the newest reservation, or was launched before")
        record.is_launched = True
        for row in record.rows:
            row.table.last_plan = plan_id
        self._unsettled[plan_id] = fence
        if self._observe is not None:
            self._tell_launched(record)

    def commit(self, plan_id: int) -> None:
        """The oldest plan in flight is confirmed: its rows own their blocks, full ones become visible to look-ups.

        Rows whose table was released since (abort, preemption, end) confirm and publish nothing. Does not fail.
        """
        record = self._in_flight[0]
        if record.plan.plan_id != plan_id or not record.is_launched:
            raise ProtocolError(f"plan {plan_id} is not the oldest plan in flight")
        self._in_flight.popleft()
        size = self.block_size
        observe = self._observe
        for i, row in enumerate(record.rows):
            table = row.table
            if not table.is_released:
                end = row.tokens_end
                num_owned = -(-end // size)
                if num_owned > table.num_owned or row.source is not None:
                    if observe is not None:
                        self._tell_owned(record.plan, i, row, num_owned)
                    table.num_owned = num_owned
                if end // size > len(table.entries) and self._has_prefix_cache:
                    self._publish(table, end // size, record.plan, i)
            if row.source is not None:
                self._let_go(row.source, plan_id)
        self._tell(Event(EventKind.COMMITTED, plan_id=plan_id))

    def _publish(self, table: BlockTable, num_full: int, plan: Plan, row_number: int) -> None:
        if table.cache_generation != self.cache_generation:
            return
        size = self.block_size
        first = len(table.entries)
        for number in range(first, num_full):
            start = number * size
            tokens = tuple(table.tokens[start : start + size])
            media = media_in(table.media, start, start + size) if table.media else ()
            parent = table.entries[-1] if table.entries else None
            key = self._key(table, number)
            block = table.blocks[number]
            table.entries.append(self.index.publish(block, key, table.namespace, parent, tokens, media))
        if self._observe is not None:
            self._tell(Event(EventKind.PUBLISHED, plan.row_id(row_number), plan.plan_id, tuple(table.blocks[first:num_full])))

    def abandon(self, plan_id: int, reason: str) -> tuple[int, ...]:
        """The device lost a launched plan: it and every later one are undone, oldest last; their identifiers, oldest first.

        Evicted entries stay gone, and what was taken comes back empty behind the plan's fence.
        """
        if plan_id not in self.plans_in_flight:
            return ()
        abandoned: list[int] = []
        while not abandoned or abandoned[-1] != plan_id:
            record = self._in_flight.pop()
            abandoned.append(record.plan.plan_id)
            self._abandon(record)
            self._tell(Event(EventKind.ABANDONED, plan_id=record.plan.plan_id, reason=reason))
        return tuple(reversed(abandoned))

    def _abandon(self, record: _Record) -> None:
        plan_id = record.plan.plan_id
        pool = self.pool
        for block in record.filled:  # perhaps never poisoned: once more, as soon as it is free
            if pool.is_free[block] and block not in self.index.entry_of:
                self._pending_fills[block] = None
        for row in reversed(record.rows):
            table = row.table
            if table.is_released:
                if row.source is not None:
                    self._let_go(row.source, plan_id)
                continue
            if row.source is not None:
                self._let_go(table.blocks[row.copied_at], plan_id)
                table.blocks[row.copied_at] = row.source
            fence = plan_id
            for block in reversed(table.blocks[row.num_blocks_before :]):
                fence = self._let_go(block, fence)
            del table.blocks[row.num_blocks_before :]
            del table.entries[row.num_entries_before :]

    # ---- release, fork, pins ----------------------------------------------------------------------------------------

    def release(self, table: BlockTable, row: RowId | None = None) -> None:
        """The holder lets go of everything, tail first, behind the last launched plan that uses it.

        A parent never becomes free before its child, or the child's content could no longer be found (KV-15).
        """
        if table.is_released:
            raise ProtocolError("a table is released once")
        table.is_released = True
        if self._observe is not None and table.blocks:
            self._observe(Event(EventKind.RELEASED, row, blocks=tuple(reversed(table.blocks))))
        fence = table.last_plan
        for block in reversed(table.blocks):
            fence = self._let_go(block, fence)

    def _let_go(self, block: int, fence: int) -> int:
        """One holder fewer. Returns the plan that the block waits for, at least `fence`."""
        pool = self.pool
        last_use = pool.last_use[block]
        if last_use > fence:
            fence = last_use
        else:
            pool.last_use[block] = fence
        pool.ref_counts[block] -= 1
        if pool.ref_counts[block] == 0:
            if fence in self._unsettled:
                pool.quarantine[block] = fence
                self._tell(Event(EventKind.QUARANTINED, plan_id=fence, blocks=(block,)))
            else:
                self._free(block)
        return fence

    def _free(self, block: int) -> None:
        pool = self.pool
        if block in self.index.entry_of:
            pool.push_back(block)
        else:
            pool.push_front(block)
            self._pending_fills[block] = None
        if self._observe is not None:
            self._observe(Event(EventKind.FREED, blocks=(block,)))

    def settle(self) -> None:
        """Passes fences, oldest first, and frees what waited for them."""
        unsettled = self._unsettled
        settled = False
        while unsettled:
            plan_id = next(iter(unsettled))
            if not unsettled[plan_id].has_passed():
                break
            del unsettled[plan_id]
            settled = True
            self._tell(Event(EventKind.SETTLED, plan_id=plan_id))
        quarantine = self.pool.quarantine
        if settled and quarantine:
            oldest = next(iter(unsettled), None)
            for block in [each for each, fence in quarantine.items() if oldest is None or fence < oldest]:
                del quarantine[block]
                self._free(block)

    def fork(self, parent: BlockTable, child: BlockTable) -> None:
        """`child` (empty) shares every block of `parent`, a partly filled one included. No plan in flight may use it."""
        if any(row.table is parent for record in self._in_flight for row in record.rows):
            raise ProtocolError("a fork of a parent with plans in flight waits for them")
        for block in parent.blocks:
            self.pool.ref_counts[block] += 1
        child.blocks[:] = parent.blocks
        child.entries[:] = parent.entries
        child.num_owned = parent.num_owned
        child.last_plan = parent.last_plan
        child.cache_generation = parent.cache_generation

    def pin(self, blocks: Items[int]) -> None:
        """A transfer holds the blocks, whatever their state: a cached one leaves the free queue, content and all."""
        pool = self.pool
        for block in blocks:
            if pool.is_free[block]:
                pool.unlink(block)
            pool.quarantine.pop(block, None)
            pool.ref_counts[block] += 1
            self._pins[block] = self._pins.get(block, 0) + 1
        self._tell(Event(EventKind.PINNED, blocks=tuple(blocks)))

    def unpin(self, blocks: Items[int]) -> None:
        """The transfer has let go, tail first."""
        fence = 0
        for block in reversed(blocks):
            if block not in self._pins:
                raise ProtocolError(f"block {block} is not pinned; pins and unpins come in pairs")
            self._pins[block] -= 1
            if not self._pins[block]:
                del self._pins[block]
            fence = self._let_go(block, fence)
        self._tell(Event(EventKind.UNPINNED, blocks=tuple(blocks)))

    # ---- whole ------------------------------------------------------------------------------------------------------

    def reset_cache(self) -> None:
        """Empties the index. Free cached blocks become empty; tables that began before publish nothing more."""
        self.cache_generation += 1
        emptied = [block for block in self.pool.free_order() if block in self.index.entry_of]
        self.index.clear()
        for block in emptied:
            self._pending_fills[block] = None
        self._tell(Event(EventKind.CACHE_RESET))

    def restart(self) -> None:
        """Pool, index and fences start anew; every table is void."""
        self.pool = BlockPool(self.pool.num_blocks)
        self.index.clear()
        self.cache_generation += 1
        self._in_flight.clear()
        self._unsettled.clear()
        self._pins.clear()
        self._pending_fills = dict.fromkeys(range(1, self.pool.num_blocks + 1))

    def _tell(self, event: Event) -> None:
        if self._observe is not None:
            self._observe(event)

    def _tell_launched(self, record: _Record) -> None:
        plan = record.plan
        self._tell(Event(EventKind.LAUNCHED, plan_id=plan.plan_id, tokens=plan.num_rows))
        for i, row in enumerate(record.rows):
            row_id = plan.row_id(i)
            self._tell(Event(EventKind.SCHEDULED, row_id, plan.plan_id, tokens=plan.num_tokens[i]))
            if row.hits:
                blocks = tuple(hit.block for hit in row.hits)
                self._tell(Event(EventKind.HIT, row_id, plan.plan_id, blocks, len(blocks) * self.block_size))
            if row.source is not None:
                self._tell(Event(EventKind.COPIED, row_id, plan.plan_id, (row.source, row.table.blocks[row.copied_at])))
        evicted = tuple(take.block for row in record.rows for take in row.takes if take.eviction is not None)
        if evicted:
            self._tell(Event(EventKind.EVICTED, plan_id=plan.plan_id, blocks=evicted))

    def _tell_owned(self, plan: Plan, number: int, row: _Row, num_owned: int) -> None:
        table = row.table
        blocks = table.blocks[table.num_owned : num_owned]
        if row.source is not None:
            blocks = [table.blocks[row.copied_at], *blocks]
        self._tell(Event(EventKind.OWNED, plan.row_id(number), plan.plan_id, tuple(blocks)))


def _append_slots(slots: list[int], blocks: list[int], size: int, start: int, end: int) -> None:
    """The slots of positions ``start .. end - 1``, block by block."""
    while start < end:
        number, offset = divmod(start, size)
        count = min(size - offset, end - start)
        first = blocks[number] * size + offset
        slots.extend(range(first, first + count))
        start += count
