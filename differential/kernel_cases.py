"""What the suite `kernel-numbers` lays out: rows, groups, sizes, heights of scores, and pages far behind.

Owns which case has what, and the stores that lie far behind. Never: a kernel, or a judgement.

A case is chosen for an edge: of a piece (512 positions are one program of a decode), of a round of the reduction (16 pieces),
of the rows that a program looks through at once (64), of a tile of query heads (16), of what an exponential can hold, of what
a 32-bit number can count. Those whose programs could write each other's results have several KV heads and groups that are no
power of two.
"""

from __future__ import annotations

import math
import mmap
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, product

import torch

from properties.paged import Paged, PagedShape, of_lengths
from properties.suite import Profile

KERNELS, PAGED_TORCH, EAGER = "kernels", "paged-torch", "eager"
BOTH, FORWARDS, BACKWARDS = ("forwards", "backwards"), ("forwards",), ("backwards",)
HEIGHT = 300.0  # exp(300) is no float32, and exp(-300) is 0 in it
GROUPS = (1, 3, 4, 16, 24, 32)
_PAST = 2**31
# Pages that nobody touches are never there, so a store of gigabytes costs nothing; this flag asks the kernel not to count them.
_NORESERVE = 0x4000 if sys.platform == "linux" else 0


@dataclass(frozen=True, slots=True)
class Case:
    """``orders``: in which the programs of a grid run. ``is_far``: the store's slots that are used are its last ones."""

    shape: PagedShape
    orders: tuple[str, ...] = BOTH
    is_far: bool = False
    back_end: str = KERNELS

    @property
    def is_decode(self) -> bool:
        return all(count <= 1 for _, count in self.shape.rows)

    @property
    def name(self) -> str:
        shape = self.shape
        ends = sorted({start + count for start, count in shape.rows})
        parts = (
            f"{self.back_end}, {'decodes' if self.is_decode else 'chunks'} of {len(shape.rows)} rows up to position {ends[-1]}",
            f"{shape.heads} heads over {shape.kv_heads} of {shape.head}, blocks of {shape.block}",
            str(shape.dtype).removeprefix("torch."),
            *([f"scores of {shape.height:g}"] if shape.height else []),
            *(["pages at the end of a vast store"] if self.is_far else []),
        )
        return ", ".join(parts)


def cases(profile: Profile) -> Iterator[Case]:
    """Every edge once; in the night also every shape, with short rows."""
    yield from _edges()
    if profile is Profile.NIGHTLY:
        yield from _every_shape()


def _edges() -> Iterator[Case]:
    full, half = torch.float32, torch.bfloat16
    yield Case(PagedShape(6, 2, 64, 16, full, of_lengths(511, 512, 0, 513)))
    yield Case(PagedShape(16, 1, 128, 32, half, of_lengths(512, 0, 1024, 33), height=HEIGHT))
    yield Case(PagedShape(48, 2, 64, 32, full, of_lengths(34, 0, 5), height=HEIGHT))
    yield Case(PagedShape(32, 1, 64, 16, half, of_lengths(31, 512, 513)), BACKWARDS)
    yield Case(PagedShape(1, 1, 64, 16, full, of_lengths(8193, 1)), FORWARDS)
    yield Case(PagedShape(4, 1, 128, 32, half, of_lengths(8193, 3), height=HEIGHT), BACKWARDS)
    many = tuple((row % 5, 1 + (row % 9 == 0)) for row in range(67))
    yield Case(PagedShape(3, 1, 64, 16, half, many), FORWARDS)
    yield Case(PagedShape(6, 2, 64, 16, full, ((0, 18), (0, 0), (20, 7)), 2))
    yield Case(PagedShape(24, 1, 128, 32, full, ((30, 4), (0, 0), (63, 1)), height=HEIGHT), BACKWARDS)
    yield Case(PagedShape(48, 2, 64, 16, half, ((14, 3), (0, 5)), 3, height=HEIGHT))
    yield Case(PagedShape(32, 1, 64, 32, half, ((509, 3), (511, 2), (0, 0), (0, 20)), 3), FORWARDS)
    yield Case(PagedShape(16, 1, 128, 16, full, ((5, 13), (16, 2))), BACKWARDS)
    yield Case(PagedShape(4, 1, 64, 32, half, ((8190, 3),), height=HEIGHT), FORWARDS)
    yield Case(PagedShape(4, 2, 64, 16, half, of_lengths(33, 5)), FORWARDS, is_far=True)
    yield Case(PagedShape(4, 2, 64, 32, half, ((30, 3), (0, 4))), FORWARDS, is_far=True)
    # A head of one number: what is counted in vectors passes the edge too.
    for back_end in (PAGED_TORCH, EAGER):
        yield Case(PagedShape(8, 4, 1, 16, full, ((30, 3), (17, 1), (0, 4), (4, 1))), FORWARDS, True, back_end)


def _every_shape() -> Iterator[Case]:
    heights = cycle((0.0, HEIGHT, HEIGHT, 0.0, HEIGHT))
    for group, head, block, dtype in product(GROUPS, (64, 128), (16, 32), (torch.float32, torch.bfloat16)):
        yield Case(PagedShape(2 * group, 2, head, block, dtype, of_lengths(17, 0, 64, 33), height=next(heights)))
        yield Case(PagedShape(2 * group, 2, head, block, dtype, ((13, 5), (0, 0), (0, 17)), 2, height=next(heights)))


def smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them."""
    shape = case.shape
    rows = shape.rows
    if len(rows) > 1:
        half = len(rows) // 2
        yield from (replace(case, shape=replace(shape, rows=part)) for part in (rows[:half], rows[half:]))
        for place in range(len(rows)):
            yield replace(case, shape=replace(shape, rows=rows[:place] + rows[place + 1 :]))
    if shape.kv_heads > 1 and not case.is_far:
        yield replace(case, shape=replace(shape, heads=shape.heads // shape.kv_heads, kv_heads=1))
    if shape.num_spare_queries:
        yield replace(case, shape=replace(shape, num_spare_queries=0))
    if shape.height:
        yield replace(case, shape=replace(shape, height=0.0))
    if len(case.orders) > 1:
        yield from (replace(case, orders=(order,)) for order in case.orders)


def moved_far(paged: Paged, back_end: str) -> Paged:
    """The same layout at the end of a store so long that 32 bits do not count what lies before: its numbers for the kernels,
    its vectors for the back ends in torch, which index those."""
    shape = paged.shape
    step = shape.kv_heads * (shape.head if back_end == KERNELS else 1)
    num_blocks = -(-_PAST // (step * shape.block))
    first = num_blocks * shape.block
    size = (first + paged.key_cache.shape[0], shape.kv_heads, shape.head)
    keys, values = _vast(size, shape.dtype), _vast(size, shape.dtype)
    keys[first:], values[first:] = paged.key_cache, paged.value_cache
    owned = tuple(tuple(first + slot for slot in row) for row in paged.owned)
    return replace(paged, key_cache=keys, value_cache=values, tables=paged.tables + num_blocks, owned=owned)


def _vast(size: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Zeros."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
    memory = mmap.mmap(-1, math.prod(size) * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype).view(size)
