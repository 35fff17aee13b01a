"""Owns the words in which the transaction tells an observer what it did. Built only when there is an observer."""

from __future__ import annotations

from engine_under_test.events import Event, EventKind, event_of
from engine_under_test.kv.record import Change, Record

# Looked up once: a member of an enumeration costs as much as the event itself.
_LAUNCHED, _SCHEDULED, _OWNED, _EVICTED = EventKind.LAUNCHED, EventKind.SCHEDULED, EventKind.OWNED, EventKind.EVICTED


def launched(record: Record, block_size: int) -> list[Event]:
    """The plan is on its way: what it computes, what it found, copied and evicted."""
    plan = record.plan
    plan_id, row_ids = plan.plan_id, plan.row_ids()
    told = [event_of((_LAUNCHED, None, plan_id, (), len(row_ids), ""))]
    told += [
        event_of((_SCHEDULED, row_id, plan_id, (), count, "")) for row_id, count in zip(row_ids, plan.num_tokens, strict=True)
    ]
    for row, change in record.changes.items():
        if change.hits:
            blocks = tuple([hit.block for hit in change.hits])
            told.append(Event(EventKind.HIT, row_ids[row], plan_id, blocks, len(blocks) * block_size))
        if change.source is not None:
            copy = (change.source, change.table.blocks[change.copied_at])
            told.append(Event(EventKind.COPIED, row_ids[row], plan_id, copy))
    if evicted := record.evicted():
        told.append(event_of((_EVICTED, None, plan_id, evicted, 0, "")))
    return told


def owned(record: Record, row: int, block_size: int) -> Event:
    """The row's blocks that its table is about to own."""
    table, plan = record.tables[row], record.plan
    blocks = table.blocks[table.num_owned : -(-record.ends[row] // block_size)]
    return event_of((_OWNED, plan.row_id(row), plan.plan_id, blocks, 0, ""))


def copy_owned(record: Record, row: int, change: Change) -> Event:
    """The copy takes the place of its source."""
    copy = (change.table.blocks[change.copied_at],)
    return Event(EventKind.OWNED, record.plan.row_id(row), record.plan.plan_id, copy)
