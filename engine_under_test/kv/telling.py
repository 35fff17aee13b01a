"""Owns the words in which the transaction tells an observer what it did. Built only when there is an observer."""

from __future__ import annotations

from collections.abc import Iterator

from engine_under_test.kv.record import Change, Record
from engine_under_test.types import Event, EventKind


def launched(record: Record, block_size: int) -> Iterator[Event]:
    """The plan is on its way: what it computes, what it found, copied and evicted."""
    plan = record.plan
    plan_id, scheduled = plan.plan_id, EventKind.SCHEDULED
    yield Event(EventKind.LAUNCHED, plan_id=plan_id, tokens=plan.num_rows)
    for row, count in enumerate(plan.num_tokens):
        yield Event(scheduled, plan.row_id(row), plan_id, (), count)
    for row, change in record.changes.items():
        row_id = plan.row_id(row)
        if change.hits:
            blocks = tuple(hit.block for hit in change.hits)
            yield Event(EventKind.HIT, row_id, plan.plan_id, blocks, len(blocks) * block_size)
        if change.source is not None:
            yield Event(EventKind.COPIED, row_id, plan.plan_id, (change.source, change.table.blocks[change.copied_at]))
    if evicted := record.evicted():
        yield Event(EventKind.EVICTED, plan_id=plan.plan_id, blocks=evicted)


def owned(record: Record, row: int, block_size: int) -> Event:
    """The row's blocks that its table is about to own."""
    table = record.tables[row]
    blocks = table.blocks[table.num_owned : -(-record.ends[row] // block_size)]
    return Event(EventKind.OWNED, record.plan.row_id(row), record.plan.plan_id, tuple(blocks))


def copy_owned(record: Record, row: int, change: Change) -> Event:
    """The copy takes the place of its source."""
    copy = (change.table.blocks[change.copied_at],)
    return Event(EventKind.OWNED, record.plan.row_id(row), record.plan.plan_id, copy)
