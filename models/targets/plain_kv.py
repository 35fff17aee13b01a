"""KV memory as plainly as it can be: lists and dicts, no prefix cache, every release waits for all plans in flight.

Stands in for `engine_under_test.kv` where the scheduler is driven alone. Fast it is not, and nothing is ever undone.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass

from engine_under_test.errors import OutOfBlocks
from engine_under_test.events import Event, EventKind
from engine_under_test.kv.record import BlockTable
from engine_under_test.types import BlockCopy, Plan, Reservation, RowId


@dataclass(frozen=True, slots=True)
class _Row:
    """What one row of a plan in flight took. ``source``: the block that the one at ``place`` is a copy of."""

    row_id: RowId
    table: BlockTable
    end: int
    num_blocks_before: int
    source: int | None = None
    place: int = 0


class PlainKv:
    """Blocks 1 .. num_blocks: free, held (counted) or waiting for plans. Tells `observe` what becomes of them."""

    def __init__(self, num_blocks: int, block_size: int, events: list[Event]) -> None:
        self.block_size = block_size
        self.free = list(range(1, num_blocks + 1))
        self.ref_counts = [0] * (num_blocks + 1)
        self.quarantine: dict[int, int] = {}
        self.in_flight: dict[int, list[_Row]] = {}
        self.unsettled: list[int] = []
        self._fills: list[int] = []
        self._events = events

    def reserve(self, plan: Plan, tables: Items[BlockTable]) -> Reservation:
        need = sum(self._need(table, start, count) for table, start, count in self._rows(plan, tables))
        if need > len(self.free):
            raise OutOfBlocks(f"a plan needs at most the {len(self.free)} free blocks, found {need}")
        fills, self._fills = self._fills, []
        copies: list[BlockCopy] = []
        taken: list[tuple[int, ...]] = []
        held: list[_Row] = []
        for row_id, (table, start, count) in zip(plan.row_ids(), self._rows(plan, tables), strict=True):
            before, (number, offset) = len(table.blocks), divmod(start, self.block_size)
            new = [self._take() for _ in range(self._need(table, start, count))]
            taken.append(tuple(new))
            source = None
            if offset and self.ref_counts[table.blocks[number]] > 1:
                source = table.blocks[number]
                copies.append(BlockCopy(source, new[0], offset))
                table.replace(number, new.pop(0))
            table.blocks += tuple(new)
            held.append(_Row(row_id, table, start + count, before, source, number))
        self.in_flight[plan.plan_id] = held
        self.unsettled.append(plan.plan_id)
        self._tell_reserved(plan, taken, held)
        slots = (
            self._slot(table, at) for table, start, count in self._rows(plan, tables) for at in range(start, start + count)
        )
        return Reservation(
            plan.plan_id,
            tuple(tuple(table.blocks) for table in tables),
            tuple(slots),
            tuple(taken),
            tuple(copies),
            tuple(fills),
        )

    def _rows(self, plan: Plan, tables: Items[BlockTable]) -> list[tuple[BlockTable, int, int]]:
        return list(zip(tables, plan.starts, plan.num_tokens, strict=True))

    def _need(self, table: BlockTable, start: int, count: int) -> int:
        number, offset = divmod(start, self.block_size)
        copies = 1 if offset and self.ref_counts[table.blocks[number]] > 1 else 0
        return -(-(start + count) // self.block_size) - len(table.blocks) + copies

    def _take(self) -> int:
        block = self.free.pop(0)
        self.ref_counts[block] = 1
        return block

    def _slot(self, table: BlockTable, at: int) -> int:
        return table.blocks[at // self.block_size] * self.block_size + at % self.block_size

    def _tell_reserved(self, plan: Plan, taken: Items[tuple[int, ...]], held: Items[_Row]) -> None:
        self._events.append(Event(EventKind.LAUNCHED, plan_id=plan.plan_id, tokens=plan.num_rows))
        for number, (blocks, taker) in enumerate(zip(taken, held, strict=True)):
            row = plan.row_id(number)
            if blocks:
                self._events.append(Event(EventKind.RESERVED, row, plan.plan_id, blocks))
            self._events.append(Event(EventKind.SCHEDULED, row, plan.plan_id, tokens=plan.num_tokens[number]))
            if taker.source is not None:
                self._events.append(Event(EventKind.COPIED, row, plan.plan_id, (taker.source, blocks[0])))

    def commit(self, plan_id: int) -> None:
        for row in self.in_flight.pop(plan_id):
            if not row.table.is_released:
                self._own(row, plan_id)
            if row.source is not None:
                self._let_go(row.source)
        self.unsettled.remove(plan_id)
        self._events.append(Event(EventKind.COMMITTED, plan_id=plan_id))
        self._events.append(Event(EventKind.SETTLED, plan_id=plan_id))
        for block in [block for block, plan in self.quarantine.items() if plan <= plan_id]:
            del self.quarantine[block]
            self._free(block)

    def _own(self, row: _Row, plan_id: int) -> None:
        table, end = row.table, -(-row.end // self.block_size)
        copy = () if row.source is None else (table.blocks[row.place],)
        self._events.append(Event(EventKind.OWNED, row.row_id, plan_id, (*copy, *table.blocks[table.num_owned : end])))
        table.num_owned = end

    def release(self, table: BlockTable, row: RowId) -> None:
        table.is_released = True
        if table.blocks:
            self._events.append(Event(EventKind.RELEASED, row, blocks=tuple(reversed(table.blocks))))
        for block in reversed(table.blocks):
            self._let_go(block)

    def _let_go(self, block: int) -> None:
        self.ref_counts[block] -= 1
        if self.ref_counts[block]:
            return
        if self.in_flight:
            self.quarantine[block] = max(self.in_flight)
            self._events.append(Event(EventKind.QUARANTINED, plan_id=max(self.in_flight), blocks=(block,)))
        else:
            self._free(block)

    def _free(self, block: int) -> None:
        self.free.insert(0, block)
        self._fills.append(block)
        self._events.append(Event(EventKind.FREED, blocks=(block,)))

    def fork(self, parent: BlockTable, child: BlockTable) -> None:
        for block in parent.blocks:
            self.ref_counts[block] += 1
        child.blocks = parent.blocks
        child.num_owned = parent.num_owned

    def reservations(self) -> dict[int, tuple[int, ...]]:
        """What plans in flight hold beside the tables: new blocks not owned yet, and the blocks that they copy from."""
        found: dict[int, tuple[int, ...]] = {}
        for plan_id, rows in self.in_flight.items():
            held: list[int] = []
            for row in rows:
                table = row.table
                if not table.is_released:
                    held += table.blocks[max(row.num_blocks_before, table.num_owned) : -(-row.end // self.block_size)]
                if row.source is not None:
                    held.append(row.source if table.is_released else table.blocks[row.place])
            found[plan_id] = tuple(held)
        return found

    def sources(self, table: BlockTable) -> list[tuple[int, int]]:
        """Places of a table whose copy is in flight, each with the block that it is copied from."""
        rows = (row for each in self.in_flight.values() for row in each)
        return [(row.place, row.source) for row in rows if row.table is table and row.source is not None]
