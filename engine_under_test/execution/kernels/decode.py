"""Attention of decodes: one query a row, over the row's context in the paged cache.

Owns the split of a context over programs, and the reduction of what they found. Never: a write to the cache, or a read of a
slot beyond a row's length.

A decode reads every key and value of its context once and does little else, so it is bound by memory. The context is cut
into pieces of SPLIT positions, each read by a program of its own (flash-decoding: Dao, Haziza, Massa, Sizov 2023), and a
second kernel adds the pieces up. The cuts lie at fixed positions, the reduction goes over a fixed number of pieces at a time,
and a context of one piece takes the same way: whatever else is in the batch, the same machine code does the same to a row, so
that its result is bit for bit the same (SE-4).

What was last run where stands in `docs/last-seen.json`: suites ``kernels-interpreter``, ``kernels-compiled``,
``kernels-cuda`` and ``attention-bandwidth``.
"""

from __future__ import annotations

from typing import Any

import torch
from triton import language as tl

from engine_under_test.execution.kernels import door
from engine_under_test.execution.kernels.launch import LOG2_E, MAX, SUM, factor_type, kernel

SPLIT = 512  # positions: 8 rows of 8 KV heads and 2k context give 256 programs; partial results add 2 % to what is read
_PIECES = 16  # that the reduction reads at once: 8k positions
_LEAST_ROWS = 16  # of a matrix product


def decode_attention(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
    scale: float | None = None,
) -> torch.Tensor:
    """[rows, heads, head]: attention of each row's one query over positions 0 .. ``lengths[row]`` - 1.

    `queries` [rows, heads, head]; caches [slots, kv_heads, head]; position p of a row lies in slot
    ``tables[row, p // block_size] * block_size + p % block_size``. `tables` [rows, blocks] and `lengths` [rows] are int32; a
    length of 0 marks a padding row, which reads nothing and gets zeros. Entries of a table behind the length are not read.
    Query head h reads KV head ``h // (heads // kv_heads)``. `scale` is head ** -0.5 by default. float32 or bfloat16,
    accumulated in float32, the result in the type of `queries`; everything contiguous on one device. Raises ConfigError for
    anything else.
    """
    door.check_cache(key_cache, value_cache)
    door.check_queries(queries, key_cache)
    door.check_tables(tables, key_cache, block_size)
    rows, heads, head = queries.shape
    kv_heads = key_cache.shape[1]
    door.check_index("tables", tables, key_cache, (rows, tables.shape[1]))
    door.check_index("lengths", lengths, key_cache, (rows,))
    outputs = torch.empty_like(queries)
    num_splits = max(-(-tables.shape[1] * block_size // SPLIT), 1)
    if rows == 0:
        return outputs
    partials = torch.empty((rows, heads, num_splits, head), dtype=torch.float32, device=queries.device)
    sums = torch.empty((rows, heads, num_splits), dtype=torch.float32, device=queries.device)
    split_kernel.launch(
        queries.device, (kv_heads, num_splits, rows), queries, key_cache, value_cache, tables, lengths, partials, sums,
        tables.shape[1], num_splits, door.scale_of(scale, head) * LOG2_E,
        **split_constants(heads, kv_heads, head, block_size, queries.device, queries.dtype),
    )  # fmt: skip
    reduce_kernel.launch(
        queries.device, (heads, rows), partials, sums, lengths, outputs, num_splits, HEADS=heads, HEAD=head, SPLIT=SPLIT,
        PIECES=_PIECES, num_warps=4,
    )  # fmt: skip
    return outputs


def split_constants(
    heads: int, kv_heads: int, head: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """What `split_kernel` is compiled for."""
    group, is_half = heads // kv_heads, dtype == torch.bfloat16
    return {
        "KV_HEADS": kv_heads, "GROUP": group, "GROUP_ROWS": max(_LEAST_ROWS, 1 << (group - 1).bit_length()), "HEAD": head,
        "BLOCK": block_size, "TILE": 64 if is_half else 32, "SPLIT": SPLIT,
        "FACTOR": factor_type(device, dtype), "num_warps": 4 if is_half or head == 64 else 8, "num_stages": 3,
    }  # fmt: skip


@kernel("table_width", "num_splits", "scale")
def split_kernel(
    queries: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, tables: tl.tensor, lengths: tl.tensor,
    partials: tl.tensor, sums: tl.tensor, table_width: tl.tensor, num_splits: tl.tensor, scale: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, SPLIT: tl.constexpr, FACTOR: tl.constexpr,
) -> None:  # fmt: skip
    """One program for each KV head, piece of the context and row: all query heads of the group, TILE positions at a time.

    KV heads are the fastest axis of the grid, so that programs that run together read neighbouring memory. `partials` gets
    the piece's attention, `sums` the binary logarithm of its sum of exponentials. `scale` includes log2(e).

    Last run: `docs/last-seen.json`, ``kernels-interpreter`` (CPU), ``kernels-compiled`` (machine code only), ``kernels-cuda``.
    """
    kv_head = tl.program_id(0)
    split = tl.program_id(1)
    row = tl.program_id(2)
    length = tl.load(lengths + row)
    begin = split * SPLIT
    end = tl.minimum(begin + SPLIT, length)
    if begin < end:
        members = tl.arange(0, GROUP_ROWS)
        dims = tl.arange(0, HEAD)
        heads = row.to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + members
        is_member = members < GROUP
        query = tl.load(queries + heads[:, None] * HEAD + dims[None, :], mask=is_member[:, None], other=0.0).to(FACTOR)
        table = tables + row.to(tl.int64) * table_width
        highest = tl.full([GROUP_ROWS], float("-inf"), tl.float32)
        total = tl.full([GROUP_ROWS], 0.0, tl.float32)
        attended = tl.full([GROUP_ROWS, HEAD], 0.0, tl.float32)
        for first in range(begin, end, TILE):
            positions = first + tl.arange(0, TILE)
            is_read = positions < end
            blocks = tl.load(table + positions // BLOCK, mask=is_read, other=0).to(tl.int64)
            cells = (blocks * BLOCK + positions % BLOCK) * (KV_HEADS * HEAD) + kv_head * HEAD
            keys = tl.load(key_cache + cells[None, :] + dims[:, None], mask=is_read[None, :], other=0.0).to(FACTOR)
            values = tl.load(value_cache + cells[:, None] + dims[None, :], mask=is_read[:, None], other=0.0).to(FACTOR)
            scores = tl.dot(query, keys, input_precision="ieee") * scale
            scores = tl.where(is_read[None, :], scores, float("-inf"))
            raised = tl.maximum(highest, tl.reduce(scores, 1, MAX))
            weights = tl.exp2(scores - raised[:, None])
            fading = tl.exp2(highest - raised)
            total = total * fading + tl.reduce(weights, 1, SUM)
            attended = tl.dot(weights.to(FACTOR), values, attended * fading[:, None], input_precision="ieee")
            highest = raised
        attended = attended / total[:, None]
        places = heads * num_splits + split
        tl.store(partials + places[:, None] * HEAD + dims[None, :], attended, mask=is_member[:, None])
        tl.store(sums + places, highest + tl.log2(total), mask=is_member)


@kernel("num_splits")
def reduce_kernel(
    partials: tl.tensor, sums: tl.tensor, lengths: tl.tensor, outputs: tl.tensor, num_splits: tl.tensor,
    HEADS: tl.constexpr, HEAD: tl.constexpr, SPLIT: tl.constexpr, PIECES: tl.constexpr,
) -> None:  # fmt: skip
    """One program for each head and row: adds up the row's pieces, each weighted by its share of the exponentials.

    Last run: `docs/last-seen.json`, ``kernels-interpreter`` (CPU), ``kernels-compiled`` (machine code only), ``kernels-cuda``.
    """
    head = tl.program_id(0)
    row = tl.program_id(1)
    dims = tl.arange(0, HEAD)
    place = row.to(tl.int64) * HEADS + head
    num_pieces = (tl.load(lengths + row) + SPLIT - 1) // SPLIT
    highest = tl.full([1], float("-inf"), tl.float32)
    total = tl.full([1], 0.0, tl.float32)
    attended = tl.full([HEAD], 0.0, tl.float32)
    for first in range(0, num_pieces, PIECES):
        pieces = first + tl.arange(0, PIECES)
        is_read = pieces < num_pieces
        logs = tl.load(sums + place * num_splits + pieces, mask=is_read, other=float("-inf"))
        parts = tl.load(
            partials + (place * num_splits + pieces)[:, None] * HEAD + dims[None, :], mask=is_read[:, None], other=0.0
        )
        raised = tl.maximum(highest, tl.reduce(logs, 0, MAX))
        weights = tl.exp2(logs - raised)
        fading = tl.exp2(highest - raised)
        total = total * fading + tl.reduce(weights, 0, SUM)
        attended = attended * fading + tl.reduce(weights[:, None] * parts, 0, SUM)
        highest = raised
    attended = attended / tl.where(total == 0.0, 1.0, total)
    tl.store(outputs + place * HEAD + dims, attended)
