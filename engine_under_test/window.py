"""The window of the harness: a snapshot of everything, made from what the engine's parts hold.

Owns how a snapshot is put together. Never changes anything.
"""

from __future__ import annotations

from typing import TypeVar

from engine_under_test.book import Book
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.types import Snapshot

_Column = TypeVar("_Column")


def snapshot_of(kv: KvTransaction, book: Book, last: Snapshot) -> Snapshot:
    """A snapshot after `last` (`NOTHING`: the first). Copies.

    A column in which nothing differs from the last snapshot is the very same object, for memos by identity; whether it
    differs is seen from the data, never from a note that somebody took of a change.
    """
    size = book.config.block_size
    pool, entry_of = kv.pool, kv.index.entry_of
    sources = kv.sources()
    return Snapshot(
        size,
        book.config.num_blocks,
        book.generation,
        kv.cache_generation,
        _known(pool.free_order(), last.free),
        last.cached if last.cached == entry_of else dict(entry_of),
        _known(tuple(pool.ref_counts), last.ref_counts),
        _known(kv.reservations(), last.reservations),
        _known(kv.pinned, last.pinned),
        last.quarantined if last.quarantined == pool.quarantine else dict(pool.quarantine),
        _known(kv.plans_in_flight, last.plans),
        _known(kv.unsettled, last.unsettled),
        _known(tuple([seq.snapshot(size, None) for seq in book.waiting]), last.waiting),
        _known(tuple([seq.snapshot(size, sources.get(seq.table)) for seq in book.running]), last.running),
        adapters=_known(book.adapters.kept, last.adapters),
        adapter_slots=_known(book.adapters.slots, last.adapter_slots),
        loading=_known(tuple([seq.row_id for seq in book.waiting if seq.load is not None]), last.loading)
        if book.num_loading
        else (),
    )


def _known(found: _Column, last: _Column) -> _Column:
    return last if found == last else found


NOTHING = Snapshot(0, 0, 0, 0, (), {}, None, {}, (), {}, (), (), (), ())
