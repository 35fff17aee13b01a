"""Owns the state of every block: its count of holders, its place in the free queue, its quarantine.

Never decides who gets a block and never knows what a block holds. A block is in exactly one of: held (count > 0), free (in
the queue), quarantined (count 0, but a launched plan that uses it has not passed its fence).
"""

from __future__ import annotations

from itertools import islice, takewhile

from engine_under_test.types import PADDING_BLOCK


class BlockPool:
    """Blocks ``1 .. num_blocks``; block 0, the padding block, is never handed out.

    The free queue is a doubly linked list in two arrays with the padding block as its sentinel, so that a block can leave
    from the middle and, undone in reverse order, come back to the very same place in constant time (Knuth, "Dancing
    Links", 2000).
    """

    __slots__ = ("_next", "_prev", "is_free", "last_use", "num_blocks", "num_free", "quarantine", "ref_counts")

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self.ref_counts = [0] * (num_blocks + 1)
        self.is_free = bytearray([0] + [1] * num_blocks)
        # For a block with released holders: the last launched plan that used it through any of them.
        self.last_use = [0] * (num_blocks + 1)
        self.quarantine: dict[int, int] = {}  # block -> plan whose fence it waits for, in order of release
        self._next = [*range(1, num_blocks + 1), PADDING_BLOCK]
        self._prev = [num_blocks, *range(num_blocks)]

    def first_free(self) -> int | None:
        """The block that `take_first` would take."""
        return self._next[PADDING_BLOCK] or None

    def unlink(self, block: int) -> None:
        """Takes a free block out of the queue, wherever it stands."""
        before, after = self._prev[block], self._next[block]
        self._next[before] = after
        self._prev[after] = before
        self.is_free[block] = 0
        self.num_free -= 1

    def relink(self, block: int) -> None:
        """Undoes the latest `unlink` that has not been undone."""
        self._next[self._prev[block]] = block
        self._prev[self._next[block]] = block
        self.is_free[block] = 1
        self.num_free += 1

    def push_front(self, block: int) -> None:
        """An empty block: next to be taken."""
        self._insert(block, PADDING_BLOCK, self._next[PADDING_BLOCK])

    def push_back(self, block: int) -> None:
        """A cached block: taken after everything that was let go before it."""
        self._insert(block, self._prev[PADDING_BLOCK], PADDING_BLOCK)

    def _insert(self, block: int, before: int, after: int) -> None:
        self._prev[block], self._next[block] = before, after
        self._next[before] = block
        self._prev[after] = block
        self.is_free[block] = 1
        self.num_free += 1

    def free_order(self) -> tuple[int, ...]:
        """The queue from its front, read link by link, as it really is (O(pool))."""
        successors = self._next
        if not successors[PADDING_BLOCK]:
            return ()
        order = [successors[PADDING_BLOCK]]
        # The list grows while it is read: what follows each block in it is appended, up to the padding block.
        links = map(successors.__getitem__, order)
        order.extend(takewhile(bool, islice(links, self.num_blocks)))  # one more than there can be, so that a circle shows
        return tuple(order)
