"""Paged attention as a test lays it out: rows, scrambled tables, poison, and what a dense float64 attention makes of it.

Owns the layout and the reference, written from the statement of attention alone. Never: a kernel, or a judgement.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_KEY = 16.0  # what a key has where a query's height meets it


@dataclass(frozen=True, slots=True)
class PagedShape:
    """``rows``: for each row its first query's position and its number of queries; no queries make a padding row."""

    heads: int
    kv_heads: int
    head: int
    block: int
    dtype: torch.dtype
    rows: tuple[tuple[int, int], ...]
    num_spare_queries: int = 0  # behind the last row
    height: float = 0.0  # of scores: see `_heighten`


@dataclass(frozen=True, slots=True)
class Paged:
    """A shape with numbers in it. Every slot that no row owns is NaN, and so is every query of none. ``owned``: the slots of
    each row, by position."""

    shape: PagedShape
    queries: torch.Tensor  # [n, heads, head]
    key_cache: torch.Tensor  # [slots, kv_heads, head]
    value_cache: torch.Tensor
    tables: torch.Tensor  # [rows, blocks]
    starts: torch.Tensor  # [rows]
    lengths: torch.Tensor  # [rows]
    row_begins: torch.Tensor  # [rows + 1]
    owned: tuple[tuple[int, ...], ...]

    def to(self, device: str) -> tuple[torch.Tensor, ...]:
        """Queries, caches and tables on `device`, in the order in which the kernels take them."""
        return tuple(tensor.to(device) for tensor in (self.queries, self.key_cache, self.value_cache, self.tables))


def lay_out(shape: PagedShape, seed: int) -> Paged:
    """Numbers and tables, a pure function of both arguments. Block 0 and a third of the others stay nobody's; odd rows share
    the whole blocks that both they and the row before had before their chunk; tables end in blocks that are not theirs."""
    generator = torch.Generator().manual_seed(seed)
    ends = [start + count for start, count in shape.rows]
    needed = [-(-end // shape.block) for end in ends]
    num_blocks = 1 + sum(needed) + max(sum(needed) // 2, 4)
    free = (1 + torch.randperm(num_blocks - 1, generator=generator)).tolist()
    tables: list[list[int]] = []
    for row, (start, _) in enumerate(shape.rows):
        shared = min(start, shape.rows[row - 1][0]) // shape.block if row % 2 else 0
        table = tables[row - 1][:shared] if shared else []
        tables.append(table + [free.pop() for _ in range(needed[row] - len(table))])
    owned = tuple(
        tuple(table[position // shape.block] * shape.block + position % shape.block for position in range(end))
        for table, end in zip(tables, ends, strict=True)
    )
    width = max(needed) + 1
    padded = [
        table + [0] * (width - len(table)) if row % 2 else table + free[-1:] * (width - len(table))
        for row, table in enumerate(tables)
    ]
    cache = (num_blocks * shape.block, shape.kv_heads, shape.head)
    keys, values = (_poisoned(torch.randn(cache, generator=generator), owned).to(shape.dtype) for _ in range(2))
    counts = [count for _, count in shape.rows]
    queries = _queries(shape, keys, owned, generator)
    if shape.height:
        _heighten(shape, queries, keys, generator)
    return Paged(
        shape, queries, keys, values, _int32(padded),
        _int32([start for start, _ in shape.rows]), _int32(ends),
        _int32([sum(counts[:row]) for row in range(len(counts) + 1)]), owned,
    )  # fmt: skip


def of_lengths(*lengths: int) -> tuple[tuple[int, int], ...]:
    """Rows of decodes."""
    return tuple((length - 1, 1) if length else (0, 0) for length in lengths)


def dense_attention(paged: Paged, *, num_unseen: int = 0, swaps_kv_heads: bool = False) -> torch.Tensor:
    """[n, heads, head] in float64: softmax(q k / sqrt(head)) v over positions 0 .. p, one row and head at a time; zeros for
    queries of no row. For tests of tolerances, with the last `num_unseen` positions left out, or KV heads 0 and 1 swapped."""
    shape = paged.shape
    group = shape.heads // shape.kv_heads
    result = torch.zeros(paged.queries.shape, dtype=torch.float64)
    for row, (start, count) in enumerate(shape.rows):
        begin = int(paged.row_begins[row])
        slots = list(paged.owned[row])
        for head in range(shape.heads):
            kv_head = head // group
            if swaps_kv_heads and kv_head < 2:
                kv_head = 1 - kv_head
            keys = paged.key_cache[slots, kv_head].to(torch.float64)
            values = paged.value_cache[slots, kv_head].to(torch.float64)
            query = paged.queries[begin : begin + count, head].to(torch.float64)
            scores = query @ keys.T / math.sqrt(shape.head)
            for ordinal in range(count):
                scores[ordinal, max(start + ordinal + 1 - num_unseen, 1) :] = -math.inf
            result[begin : begin + count, head] = torch.softmax(scores, dim=1) @ values
    return result


def _poisoned(cells: torch.Tensor, owned: tuple[tuple[int, ...], ...]) -> torch.Tensor:
    poisoned = torch.full_like(cells, math.nan)
    slots = sorted({slot for row in owned for slot in row})
    poisoned[slots] = cells[slots]
    return poisoned


def _queries(
    shape: PagedShape, keys: torch.Tensor, owned: tuple[tuple[int, ...], ...], generator: torch.Generator
) -> torch.Tensor:
    """Random, leaning towards the key of their own position, the more the longer the context: the last position carries weight
    in any."""
    lean = [
        (1 + math.log(start + ordinal + 1)) / math.sqrt(shape.head) for start, count in shape.rows for ordinal in range(count)
    ]
    own = [owned[row][start + ordinal] for row, (start, count) in enumerate(shape.rows) for ordinal in range(count)]
    leaning = torch.tensor(lean)[:, None, None] * keys[own].float().repeat_interleave(shape.heads // shape.kv_heads, dim=1)
    random = torch.randn(len(own), shape.heads, shape.head, generator=generator)
    spare = torch.full((shape.num_spare_queries, shape.heads, shape.head), math.nan)
    return torch.cat((random + leaning, spare)).to(shape.dtype)


def _heighten(shape: PagedShape, queries: torch.Tensor, keys: torch.Tensor, generator: torch.Generator) -> None:
    """Moves scores by `height`, in turns of query heads: all of them up; all down; those of some positions up and the others
    down; none. A softmax does not change when all its scores move, and its exponentials leave the range of a float32."""
    keys[..., 0] = torch.where(keys[..., 0].isnan(), math.nan, _KEY)
    signs = torch.randint(2, keys.shape[:2], generator=generator) * 2.0 - 1
    keys[..., 1] = torch.where(keys[..., 1].isnan(), math.nan, signs * _KEY).to(keys.dtype)
    step = shape.height * math.sqrt(shape.head) / _KEY
    turns = torch.tensor([(step, 0.0), (-step, 0.0), (0.0, step), (0.0, 0.0)])
    queries[..., :2] = turns[torch.arange(shape.heads) % len(turns)].to(queries.dtype)


def _int32(numbers: list[int] | list[list[int]]) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)
