"""What the engine's end of the remote KV pool deals in: its configuration, the blocks that it may touch, hits and answers, a
transfer as it knows it, totals. Values only: what is done with them stands in `connector.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.protocol import Machine, State
from engine_under_test.errors import ConfigError


class KvPages(Protocol):
    """The blocks of the engine, as a transfer may touch them. `pin` and `unpin` are those of a `KvTransaction`."""

    def pin(self, blocks: Sequence[int]) -> None: ...
    def unpin(self, blocks: Sequence[int]) -> None: ...
    def read(self, block: int) -> bytes | None:
        """The content of a committed block; None: it is on its way from the device, ask again. Raises RunnerError if it can not
        be had, for want of memory or because it is no good: then its store is left out."""

    def write(self, block: int, data: bytes) -> None:
        """Fills a block that nobody can see yet. Raises RunnerError if that can not be done: then the load ends before it."""


@dataclass(frozen=True, slots=True)
class ConnectorConfig:
    """``block_bytes``: bytes of every block. ``window_bytes``: what a load may have under way; all in all at most
    ``max_loads * window_bytes``. ``load_deadline_s``: how long a request may wait for a load. ``store_deadline_s``: how long a
    block may stay pinned for a store, retries included. ``blocks_per_step``: of all stores together."""

    block_bytes: int
    window_bytes: int = 8 << 20
    max_loads: int = 16
    max_stores: int = 16
    load_deadline_s: float = 5.0
    store_deadline_s: float = 30.0
    handshake_s: float = 5.0
    abort_grace_s: float = 5.0
    blocks_per_step: int = 16
    token: bytes = b""

    def __post_init__(self) -> None:
        if not 1 <= self.block_bytes <= m.MAX_BLOCK_BYTES:
            raise ConfigError(f"block_bytes must be 1 to {m.MAX_BLOCK_BYTES}, found {self.block_bytes}; correct it")
        if self.window_bytes < self.block_bytes:
            raise ConfigError(
                f"window_bytes must hold a block, found {self.window_bytes} for blocks of {self.block_bytes}; raise it"
            )
        if min(self.max_loads, self.max_stores, self.blocks_per_step) < 1:
            raise ConfigError("max_loads, max_stores and blocks_per_step must be at least 1; raise them")


class RemoteHit(NamedTuple):
    """The first ``num_blocks`` of what ``owner`` asked for can be loaded: `accept` or `abort`."""

    owner: Hashable
    transfer: int
    num_blocks: int


class LoadAnswer(NamedTuple):
    """The end of a load for the request that waited: ``num_blocks`` hold what was asked for, the others are to be let go of and
    computed. Given once for each load that was not aborted."""

    owner: Hashable
    transfer: int
    num_blocks: int
    reason: str


@dataclass(slots=True)
class ConnectorCounters:
    """Totals. Blocks, but for the first five and the last."""

    loads: int = 0
    stores: int = 0
    aborted: int = 0
    cut: int = 0  # loads that brought less than the hit
    connections_lost: int = 0
    loaded_blocks: int = 0
    stored_blocks: int = 0
    corrupt_blocks: int = 0
    unmoved_blocks: int = 0  # that the engine's device could not bring, or take
    broken: str = ""  # why a connection was closed from here last


@dataclass(slots=True, eq=False)
class Transfer:
    """One transfer as the engine's end knows it. ``owner`` None: a store, or a load whose request is gone or answered.

    ``granted`` and ``moved``: bytes of blocks since the transfer began on this connection.
    """

    number: int
    machine: Machine
    opened: m.Open
    state: State
    deadline: float
    owner: Hashable = None
    blocks: tuple[int, ...] = ()
    lease_ends: float = float("inf")
    grace_ends: float = float("inf")
    num_offered: int = 0
    granted: int = 0
    moved: int = 0
    next_index: int = 0
    arrived: set[int] = field(default_factory=set)
    spoiled: set[int] = field(default_factory=set)

    @property
    def num_whole(self) -> int:
        """Blocks that arrived whole, contiguous from the first."""
        return next(index for index in range(len(self.blocks) + 1) if index not in self.arrived)
