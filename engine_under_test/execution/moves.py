"""Whole blocks between the store of a runner and the host, on the streams for it.

Owns: the staging buffers of moves, their place on the streams, and what each touches, declared. Never: who wants a block, or
for how long it is held. A read goes on COPY_OUT; a write goes on TRANSFER, behind the launch before it: a fill of that launch
may still be under way on the block.

Every move asks for its staging buffer before anything is put on the device: a shortage of memory costs a transfer, not a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engine_under_test.errors import OutOfMemory
from engine_under_test.seams import Device, DeviceOp, Fence, Memory, Page, Space, Stream, StreamDevice

OUT, IN = "transfer out", "transfer in"  # buffers of the host that the device writes and reads


class BlockMove:
    """See `runner.Move`."""

    __slots__ = ("_device", "_finish", "_staging", "fence", "raw")

    def __init__(self, device: Device, staging: Page, finish: Callable[[Any], bytes | None] | None = None) -> None:
        self._device = device
        self._staging = staging
        self._finish = finish
        self.raw: Any = None
        self.fence: Fence

    def data(self) -> bytes | None:
        if self.raw is None or self._finish is None:
            return None
        if isinstance(self._device, StreamDevice):
            self._device.host_touches(reads=(self._staging,))
        return self._finish(self.raw)


class BlockMoves:
    """``get`` starts to bring a block to the host, ``finish`` gives its bytes when it is there, or None if they are of no use;
    ``put`` starts to write one."""

    def __init__(
        self,
        device: Device,
        pages: Sequence[Page],
        get: Callable[[int], Any],
        finish: Callable[[Any], bytes | None],
        put: Callable[[int, bytes], None],
        block_bytes: int,
        memory: Memory | None = None,
    ) -> None:
        self._device = device
        self._pages = pages
        self._get = get
        self._finish = finish
        self._put = put
        self._block_bytes = block_bytes
        self._memory = memory
        self._count = 0

    def read(self, block: int) -> BlockMove:
        """See `runner.Mover.read_block`."""
        self._allocate(f"a store of block {block}", Space.PINNED, Space.HOST)
        move = BlockMove(self._device, self._staging(OUT), self._finish)

        def run() -> None:
            move.raw = self._get(block)

        op = DeviceOp(f"store of block {block}", frozenset((self._pages[block],)), frozenset((move._staging,)), run)
        move.fence = self._submit(Stream.COPY_OUT, op, None)
        return move

    def write(self, block: int, data: bytes, behind: Fence | None) -> BlockMove:
        """See `runner.Mover.write_block`."""
        self._allocate(f"a load of block {block}", Space.PINNED)
        move = BlockMove(self._device, self._staging(IN))
        if isinstance(self._device, StreamDevice):
            self._device.host_touches(writes=(move._staging,))
        op = DeviceOp(
            f"load of block {block}",
            frozenset((move._staging,)),
            frozenset((self._pages[block],)),
            partial(self._put, block, data),
        )
        move.fence = self._submit(Stream.TRANSFER, op, behind)
        return move

    def _allocate(self, what: str, *spaces: Space) -> None:
        """Asks for a buffer of a block's size that the device reads or writes and, where bytes are made of it, for these."""
        memory, size = self._memory, self._block_bytes
        if memory is None:
            return
        for space in spaces:
            if not memory.admit(size, space):
                raise OutOfMemory(f"{what}: {size} bytes of {space} memory were refused; it is left out")

    def _staging(self, buffer: str) -> Page:
        """A page of its own for each move: it is let go of with the move."""
        self._count += 1
        return Page(buffer, self._count)

    def _submit(self, stream: Stream, op: DeviceOp, behind: Fence | None) -> Fence:
        device = self._device
        if isinstance(device, StreamDevice):
            return device.submit_to(stream, op, () if behind is None else (behind,))
        device.submit(op)
        return device.fence()
