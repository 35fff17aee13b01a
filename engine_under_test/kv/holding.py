"""The life of a block between its holders: let go of behind a fence, quarantined, freed, to be filled; held by a transfer.

Owns the counts of holders, the fences that have not passed, the fills that are due, and the pins of transfers. Never knows a
plan's rows or a table: `transaction.py`, which it is the lower half of, does.

    held --let go--> [quarantined --fence-->] cached | empty (a fill is due) --claim, pin--> held
"""

from __future__ import annotations

from collections.abc import Sequence as Items

from engine_under_test.errors import ProtocolError
from engine_under_test.events import Event, EventKind, event_of
from engine_under_test.kv.block_pool import BlockPool
from engine_under_test.kv.prefix_index import PrefixIndex
from engine_under_test.seams import BlockGate, Fence, Observer

# Looked up once: a member of an enumeration costs as much as the event itself.
_QUARANTINED, _FREED, _SETTLED = EventKind.QUARANTINED, EventKind.FREED, EventKind.SETTLED


class Holding:
    """See the module."""

    def __init__(self, num_blocks: int, index: PrefixIndex, gate: BlockGate | None, observer: Observer | None) -> None:
        self.pool = BlockPool(num_blocks)
        self.index = index
        self._gate = gate
        self._observe = observer
        self._unsettled: dict[int, Fence] = {}
        self._pending_fills: dict[int, None] = {}  # blocks that became empty and still hold old content
        self._pins: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        return self.pool.num_free

    @property
    def num_quarantined(self) -> int:
        return len(self.pool.quarantine)

    @property
    def pinned(self) -> tuple[int, ...]:
        return tuple([block for block, count in self._pins.items() for _ in range(count)]) if self._pins else ()

    @property
    def num_pinned(self) -> int:
        """Blocks that some transfer holds."""
        return len(self._pins)

    @property
    def unsettled(self) -> tuple[int, ...]:
        return tuple(self._unsettled)

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
                if self._observe is not None:
                    self._observe(event_of((_QUARANTINED, None, fence, (block,), 0, "")))
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
            self._observe(event_of((_FREED, None, None, (block,), 0, "")))

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
            if self._observe is not None:
                self._observe(event_of((_SETTLED, None, plan_id, (), 0, "")))
        if not settled:
            return
        quarantine = self.pool.quarantine
        if quarantine:
            oldest = next(iter(unsettled), None)
            for block in [each for each, fence in quarantine.items() if oldest is None or fence < oldest]:
                del quarantine[block]
                self._free(block)

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

    def claim(self, count: int) -> tuple[tuple[int, ...], int] | None:
        """For a transfer to write: `count` blocks from the free queue, pinned, and how many of them were cached. All or
        nothing: None, and nothing has changed, if there are too few or one is refused."""
        pool, index, gate = self.pool, self.index, self._gate
        if count > pool.num_free or (gate is not None and not all(gate.admit() for _ in range(count))):
            return None
        blocks: list[int] = []
        evicted: list[int] = []
        for _ in range(count):
            block = pool.first_free()
            assert block is not None  # there are enough
            pool.unlink(block)
            pool.ref_counts[block] = self._pins[block] = 1
            self._pending_fills.pop(block, None)  # it is written whole, or comes back empty
            if block in index.entry_of:
                index.forget(block)
                evicted.append(block)
            blocks.append(block)
        claimed = tuple(blocks)
        self._tell(Event(EventKind.CLAIMED, blocks=claimed))
        if evicted:
            self._tell(Event(EventKind.EVICTED, blocks=tuple(evicted)))
        return claimed, len(evicted)

    def restart(self) -> None:
        """Everything starts anew, with every block empty and to be filled."""
        self.pool = BlockPool(self.pool.num_blocks)
        self.index.clear()
        self._unsettled.clear()
        self._pins.clear()
        self._pending_fills = dict.fromkeys(range(1, self.pool.num_blocks + 1))

    def _tell(self, event: Event) -> None:
        if self._observe is not None:
            self._observe(event)
