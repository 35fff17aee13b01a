"""The only way to change KV memory: lookup -> reserve -> launch -> commit, or rollback, or abandon; release, fork, reset.

Owns the right to change the pool and the index, and the record of plans in flight; how a block is let go, and what it waits for
then, stands in `holding.py`. Never orders requests, never touches tensors. What a plan takes is held by its *reservation* until
the plan is committed; then the table owns it.

    empty/cached --reserve--> reserved --commit--> owned --release--> [quarantined --fence-->] cached | empty
                     ^------- rollback ---'  `----- abandon, behind the fence ------------^
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items

from engine_under_test.errors import OutOfBlocks, ProtocolError
from engine_under_test.events import Event, EventKind, event_of
from engine_under_test.kv.holding import Holding
from engine_under_test.kv.prefix_index import PrefixIndex, blake2b_16, media_in
from engine_under_test.kv.record import BlockTable, Change, Hit, Record, Take
from engine_under_test.kv.telling import copy_owned, launched, owned
from engine_under_test.seams import BlockGate, Fence, Hasher, Observer
from engine_under_test.types import BlockCopy, Plan, PrefixEntry, Reservation, RowId

# Looked up once: a member of an enumeration costs as much as the event itself.
_RESERVED, _COMMITTED, _PUBLISHED, _RELEASED = EventKind.RESERVED, EventKind.COMMITTED, EventKind.PUBLISHED, EventKind.RELEASED


class KvTransaction(Holding):
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
        super().__init__(num_blocks, PrefixIndex(hasher), gate, observer)
        self.block_size = block_size
        self.cache_generation = 0
        self._has_prefix_cache = has_prefix_cache
        self._in_flight: deque[Record] = deque()
        self.on_published: Callable[[BlockTable, int, int], None] | None = None  # blocks first .. last - 1 of a table

    # ---- looking ----------------------------------------------------------------------------------------------------

    def lookup(self, table: BlockTable, max_blocks: int) -> tuple[int, ...]:
        """The blocks that hold the first tokens of an empty table's choice, at most `max_blocks` of them. Pure."""
        if not self._has_prefix_cache:
            return ()
        first_block = self.index.first_block
        return tuple([first_block(entry) for entry in self._find(table, max_blocks)])

    def _find(self, table: BlockTable, max_blocks: int) -> list[PrefixEntry]:
        """The entries of the table's first blocks, as far as they can be found, at most `max_blocks` of them."""
        found: list[PrefixEntry] = []
        parent: PrefixEntry | None = None
        size = self.block_size
        for number in range(max_blocks):
            start = number * size
            tokens = tuple(table.tokens[start : start + size])
            media = media_in(table.media, start, start + size) if table.media else ()
            parent = self.index.find(self._key(table, number), table.namespace, parent, tokens, media)
            if parent is None:
                break
            found.append(parent)
        return found

    def _key(self, table: BlockTable, number: int) -> bytes:
        """The key of the table's full block `number`, computed once."""
        keys = table.keys
        if number < len(keys):
            return keys[number]
        size = self.block_size
        while len(keys) <= number:
            start = len(keys) * size
            media = media_in(table.media, start, start + size) if table.media else ()
            parent_key = keys[-1] if keys else None
            keys.append(self.index.key(table.namespace, parent_key, table.tokens[start : start + size], media))
        return keys[number]

    @property
    def plans_in_flight(self) -> tuple[int, ...]:
        return tuple([record.plan.plan_id for record in self._in_flight if record.is_launched])

    def reservations(self) -> dict[int, tuple[int, ...]]:
        """For each plan in flight the blocks that it holds and no table owns yet (KV-2)."""
        return {record.plan.plan_id: record.held(self.block_size) for record in self._in_flight}

    def sources(self) -> dict[BlockTable, list[tuple[int, int]]]:
        """For tables with copies in flight: (place in the table, source block), which the table owns until commit."""
        found: dict[BlockTable, list[tuple[int, int]]] = {}
        for record in self._in_flight:
            for table, place, source in record.sources() if record.changes else ():
                found.setdefault(table, []).append((place, source))
        return found

    # ---- reserve and rollback ---------------------------------------------------------------------------------------

    def reserve(self, plan: Plan, tables: Items[BlockTable]) -> Reservation:
        """Takes everything that `plan` needs, or raises OutOfBlocks and changes nothing (KV-12).

        All hits are taken before any free block is: a block about to be hit must not be evicted for a row before it.
        """
        record = Record(plan, tables)
        if any(plan.hit_blocks):
            for row, hits in enumerate(plan.hit_blocks):
                if hits:
                    self._take_hits(record, row, hits)
        size = self.block_size
        ref_counts = self.pool.ref_counts
        copies: list[BlockCopy] = []
        slots: list[int] = []
        try:
            for row, (table, start, end) in enumerate(zip(tables, plan.starts, record.ends, strict=True)):
                blocks = table.blocks
                number = start // size
                offset = start - number * size
                if offset and ref_counts[blocks[number]] > 1:
                    copies.append(self._copy_on_write(record.change(row), number, offset))
                    blocks = table.blocks
                while len(blocks) * size < end:
                    table.blocks = blocks = (*blocks, self._take(record.change(row)))
                if end - start == 1:
                    slots.append(blocks[number] * size + offset)
                else:
                    _append_slots(slots, blocks, size, start, end)
        except OutOfBlocks:
            self._undo(record)
            raise
        return self._reserved(record, slots, copies)

    def _reserved(self, record: Record, slots: list[int], copies: list[BlockCopy]) -> Reservation:
        """The reservation is complete: it joins the plans in flight, and takes the fills that are due (poison): every
        block that became empty since the last plan, and every block that it evicted itself."""
        plan, changes = record.plan, record.changes
        new_blocks: list[tuple[int, ...]] = [()] * len(record.tables)
        evicted: tuple[int, ...] = ()
        if changes:
            self._begin(record, new_blocks)
            evicted = record.evicted()
        record.filled = list(self._pending_fills)
        self._pending_fills.clear()
        self._in_flight.append(record)
        tables = tuple([table.blocks for table in record.tables])
        fills = (*record.filled, *evicted)
        return Reservation(plan.plan_id, tables, tuple(slots), tuple(new_blocks), tuple(copies), fills, evicted)

    def _begin(self, record: Record, new_blocks: list[tuple[int, ...]]) -> None:
        """Fills in what each row took, and tells of it."""
        for row, change in record.changes.items():
            takes = change.takes
            if change.num_blocks_before == 0:
                change.table.cache_generation = self.cache_generation
            if takes:
                new_blocks[row] = taken = tuple([take.block for take in takes])
                if self._observe is not None:
                    plan = record.plan
                    self._observe(event_of((_RESERVED, plan.row_id(row), plan.plan_id, taken, 0, "")))

    def _take_hits(self, record: Record, row: int, hits: tuple[int, ...]) -> None:
        pool = self.pool
        change = record.change(row)
        for block in hits:
            if block in pool.quarantine:
                if record.quarantine_before is None:
                    record.quarantine_before = dict(pool.quarantine)
                del pool.quarantine[block]
            was_free = bool(pool.is_free[block])
            if was_free:
                pool.unlink(block)
            pool.ref_counts[block] += 1
            change.hits.append(Hit(block, was_free))
            change.table.entries.append(self.index.entry_of[block])
        change.table.blocks += hits

    def _copy_on_write(self, change: Change, number: int, num_slots: int) -> BlockCopy:
        """The row's partly filled, shared block is replaced by a block of its own; the source stays held until commit."""
        target = self._take(change)
        change.source, change.copied_at = change.table.blocks[number], number
        change.table.replace(number, target)
        return BlockCopy(change.source, target, num_slots)

    def _take(self, change: Change) -> int:
        pool, index = self.pool, self.index
        block = pool.first_free()
        if block is None:
            raise OutOfBlocks("a reservation needs one more block than are free")
        if self._gate is not None and not self._gate.admit():
            raise OutOfBlocks("a block was refused to the reservation")
        pool.unlink(block)
        pool.ref_counts[block] = 1
        eviction = index.forget(block) if block in index.entry_of else None
        change.takes.append(Take(block, eviction))
        return block

    def settle(self) -> None:
        """Passes fences, but not while a plan is reserved: what is freed would join the queue from which that plan took, and no
        rollback could restore it."""
        if not self._in_flight or self._in_flight[-1].is_launched:
            super().settle()

    def rollback(self, plan_id: int) -> None:
        """As if the newest reservation had not been: free order and evicted entries included."""
        record = self._in_flight[-1] if self._in_flight else None
        if record is None or record.plan.plan_id != plan_id or record.is_launched:
            raise ProtocolError(f"only the newest reservation can be rolled back, before launch; found plan {plan_id}")
        self._in_flight.pop()
        self._undo(record)
        self._pending_fills = dict.fromkeys(record.filled)
        self._tell(Event(EventKind.ROLLED_BACK, plan_id=plan_id))

    def _undo(self, record: Record) -> None:
        """In exactly the reverse order of what was done: takes row by row, then hits."""
        pool = self.pool
        changes = [change for _, change in sorted(record.changes.items(), reverse=True)]
        for change in changes:
            for take in reversed(change.takes):
                pool.ref_counts[take.block] = 0
                pool.relink(take.block)
                if take.eviction is not None:
                    self.index.restore(take.block, *take.eviction)
            if change.source is not None:
                change.table.replace(change.copied_at, change.source)
        for change in changes:
            for hit in reversed(change.hits):
                pool.ref_counts[hit.block] -= 1
                if hit.was_free:
                    pool.relink(hit.block)
            change.table.blocks = change.table.blocks[: change.num_blocks_before]
            del change.table.entries[change.num_entries_before :]
        if record.quarantine_before is not None:
            pool.quarantine = record.quarantine_before

    # ---- launch, commit, abandon ------------------------------------------------------------------------------------

    def launch(self, plan_id: int, fence: Fence) -> None:
        """From here on the plan can be committed or abandoned, not rolled back."""
        record = self._in_flight[-1]
        if record.plan.plan_id != plan_id or record.is_launched:
            raise ProtocolError(f"plan {plan_id} is not the newest reservation, or was launched before")
        record.is_launched = True
        for table in record.tables:
            table.last_plan = plan_id
        self._unsettled[plan_id] = fence
        if self._observe is not None:
            for event in launched(record, self.block_size):
                self._observe(event)

    def commit(self, plan_id: int, ends: list[int] | None = None) -> None:
        """The oldest plan in flight is confirmed: its rows own their blocks, full ones become visible to look-ups.

        ``ends``: up to where each row is confirmed, if not all that it computed is: what lies behind was drafts that fell, and
        blocks that hold nothing else are let go. The tables' tokens reach up to these ends. Rows whose table was released since
        (abort, preemption, end) confirm and publish nothing. Does not fail.
        """
        record = self._in_flight[0]
        if record.plan.plan_id != plan_id or not record.is_launched:
            raise ProtocolError(f"plan {plan_id} is not the oldest plan in flight")
        self._in_flight.popleft()
        size, observe = self.block_size, self._observe
        planned_ends = record.ends
        if ends is not None:
            record.ends = ends
        for row, (table, end) in enumerate(zip(record.tables, record.ends, strict=True)):
            if table.is_released:
                continue
            if table.num_owned * size < end:
                if observe is not None:
                    observe(owned(record, row, size))
                table.num_owned = -(-end // size)
            if end // size > len(table.entries) and self._has_prefix_cache:
                self._publish(table, end // size, record.plan, row)
        for row, change in record.changes.items():
            if change.source is None:
                continue
            if observe is not None and not change.table.is_released:
                observe(copy_owned(record, row, change))
            self._let_go(change.source, plan_id)
        if ends is not None:
            self._trim(record, planned_ends)
        if observe is not None:
            observe(event_of((_COMMITTED, None, plan_id, (), 0, "")))

    def _trim(self, record: Record, planned_ends: Items[int]) -> None:
        """Gives back what only drafts that fell were written to, behind the plan that wrote them. Behind such drafts nothing
        is planned, so that no later plan holds any of it; behind other rows one may."""
        for table, end, planned_end in zip(record.tables, record.ends, planned_ends, strict=True):
            num_blocks = -(-end // self.block_size)
            if end == planned_end or table.is_released or len(table.blocks) <= num_blocks:
                continue
            fence = table.last_plan
            for block in reversed(table.blocks[num_blocks:]):
                fence = self._let_go(block, fence)
            table.blocks = table.blocks[:num_blocks]

    def _publish(self, table: BlockTable, num_full: int, plan: Plan, row_number: int) -> None:
        if table.cache_generation != self.cache_generation:
            return
        size, entries, blocks = self.block_size, table.entries, table.blocks
        first = len(entries)
        parent = entries[-1] if entries else None
        if parent is not None and parent not in self.index:
            return  # distrusted since
        for number in range(first, num_full):
            start = number * size
            tokens = tuple(table.tokens[start : start + size])
            media = media_in(table.media, start, start + size) if table.media else ()
            key = self._key(table, number)
            parent = self.index.publish(blocks[number], key, table.namespace, parent, tokens, media)
            entries.append(parent)
        if self.on_published is not None:
            self.on_published(table, first, num_full)
        if self._observe is not None:
            row_id, published = plan.row_id(row_number), blocks[first:num_full]
            self._observe(event_of((_PUBLISHED, row_id, plan.plan_id, published, 0, "")))

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

    def _abandon(self, record: Record) -> None:
        plan_id = record.plan.plan_id
        pool = self.pool
        for block in record.filled:  # perhaps never poisoned: once more, as soon as it is free
            if pool.is_free[block] and block not in self.index.entry_of:
                self._pending_fills[block] = None
        for _, change in sorted(record.changes.items(), reverse=True):
            table = change.table
            if table.is_released:
                if change.source is not None:
                    self._let_go(change.source, plan_id)
                continue
            fence = table.last_plan  # later plans, lost with this one, used its blocks too
            if change.source is not None:
                self._let_go(table.blocks[change.copied_at], fence)
                table.replace(change.copied_at, change.source)
            for block in reversed(table.blocks[change.num_blocks_before :]):
                fence = self._let_go(block, fence)
            table.blocks = table.blocks[: change.num_blocks_before]
            # What plans before this one have published since stays published.
            del table.entries[max(change.num_entries_before, table.num_owned) :]

    # ---- release, fork ----------------------------------------------------------------------------------------------

    def release(self, table: BlockTable, row: RowId | None = None) -> None:
        """The holder lets go of everything, tail first, behind the last launched plan that uses it.

        A parent never becomes free before its child, or the child's content could no longer be found (KV-15).
        """
        if table.is_released:
            raise ProtocolError("a table is released once")
        table.is_released = True
        if self._observe is not None and table.blocks:
            self._observe(event_of((_RELEASED, row, None, table.blocks[::-1], 0, "")))
        fence = table.last_plan
        for block in reversed(table.blocks):
            fence = self._let_go(block, fence)

    def fork(self, parent: BlockTable, child: BlockTable) -> None:
        """`child` (empty) shares every block of `parent`, a partly filled one included. No plan in flight may use it."""
        if any(table is parent for record in self._in_flight for table in record.tables):
            raise ProtocolError("a fork of a parent with plans in flight waits for them")
        for block in parent.blocks:
            self.pool.ref_counts[block] += 1
        child.blocks = parent.blocks
        child.entries[:] = parent.entries
        child.num_owned = parent.num_owned
        child.last_plan = parent.last_plan
        child.cache_generation = parent.cache_generation

    def publish_pinned(self, table: BlockTable, first: int, blocks: tuple[int, ...], row: RowId) -> bool:
        """Pinned blocks hold the content of an empty table's choice from its block `first` on, and are found from now on. What
        stands before them is pinned too, so that it can be found still; if it was distrusted since, False, and they are not."""
        size, index = self.block_size, self.index
        heads = self._find(table, first)
        if len(heads) < first:
            return False
        parent = heads[-1] if heads else None
        for number, block in enumerate(blocks, start=first):
            start = number * size
            tokens = tuple(table.tokens[start : start + size])
            media = media_in(table.media, start, start + size) if table.media else ()
            parent = index.publish(block, self._key(table, number), table.namespace, parent, tokens, media)
        self._tell(Event(EventKind.LOADED, row, blocks=blocks, tokens=first * size))
        return True

    # ---- whole ------------------------------------------------------------------------------------------------------

    def reset_cache(self) -> None:
        """Empties the index. Free cached blocks become empty; tables that began before publish nothing more."""
        self.cache_generation += 1
        emptied = [block for block in self.pool.free_order() if block in self.index.entry_of]
        self.index.clear()
        for block in emptied:
            self._pending_fills[block] = None
        self._tell(Event(EventKind.CACHE_RESET))

    def distrust(self, blocks: Items[int]) -> None:
        """One of them is no good: none is found any more, nor what stands behind it in any prefix. Whoever holds them goes on,
        and publishes nothing behind them."""
        for block in self.index.behind(blocks):
            self.index.forget(block)
            if self.pool.is_free[block]:
                self._pending_fills[block] = None

    def restart(self) -> None:
        """Pool, index and fences start anew; every table is void."""
        super().restart()
        self.cache_generation += 1
        self._in_flight.clear()


def _append_slots(slots: list[int], blocks: tuple[int, ...], size: int, start: int, end: int) -> None:
    """The slots of positions ``start .. end - 1``, block by block."""
    while start < end:
        number, offset = divmod(start, size)
        count = min(size - offset, end - start)
        first = blocks[number] * size + offset
        slots.extend(range(first, first + count))
        start += count
