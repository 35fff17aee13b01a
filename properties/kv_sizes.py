"""Sizes of a small remote pool, at both ends of its link, for worlds in memory and for storms on real connections.

Owns what these have in common: a few blocks under way, a few transfers at a time. Times are whoever's clock it is.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine_under_test.distributed.store_pool import StoredBlock
from engine_under_test.distributed.store_session import StoreLimits
from engine_under_test.distributed.transfers import ConnectorConfig


def engine_end(block_bytes: int, **changes: Any) -> ConnectorConfig:
    """Three blocks of a load under way; ``changes``: fields of the configuration."""
    return replace(ConnectorConfig(block_bytes, window_bytes=3 * block_bytes, max_loads=4, max_stores=6), **changes)


def on_wall_clock(block_bytes: int) -> ConnectorConfig:
    """An engine's end that gives up in fractions of a second what no other one hinders."""
    times = {"load_deadline_s": 0.8, "store_deadline_s": 4.0, "handshake_s": 1.5, "abort_grace_s": 0.8}
    return engine_end(block_bytes, blocks_per_step=4, **times)


def store_end(block_bytes: int, **changes: Any) -> StoreLimits:
    """Two blocks of a store under way; ``changes``: fields of the limits."""
    small = StoreLimits(
        max_blocks=16,
        max_block_bytes=block_bytes,
        max_transfers=16,
        window_bytes=2 * block_bytes,
        max_staged_bytes=32 * block_bytes,
        completed_remembered=16,
    )
    return replace(small, **changes)


def rotten(block: StoredBlock) -> StoredBlock:
    """The store's memory has changed a byte of it; once more, and it is another one still."""
    return StoredBlock(block.digest, bytes([(block.data[0] + 1) % 256]) + block.data[1:])
