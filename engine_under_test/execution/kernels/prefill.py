"""Attention of chunks: consecutive queries of each row, over its context in the paged cache, the chunk itself included.

Owns the walk of a tile of queries over the positions before it. Never: a write to the cache, or a read of a slot behind the
last query of a row.

Online softmax over tiles of positions (FlashAttention-2: Dao 2023), keys and values gathered through the table. A tile
holds several query positions and all query heads of a KV group, so that each key is loaded once for all of them. Tiles of
positions begin at position 0 of the row, whatever the chunk: a query's result does not depend on how its prompt was cut, on
its place in a tile, or on other rows.

What was last run where stands in `docs/last-seen.json`: suites ``kernels-interpreter``, ``kernels-compiled``,
``kernels-cuda``.
"""

from __future__ import annotations

from typing import Any

import torch
from triton import language as tl

from engine_under_test.execution.kernels import door
from engine_under_test.execution.kernels.launch import LOG2_E, MAX, SUM, factor_type, kernel

_ROWS_AT_ONCE = 64  # of the batch, when a program looks for the row of its tile
# (query positions x query heads of the group, positions read at once). Full float32 products run without tensor cores and
# keep their factors in registers; larger tiles would spill.
_TILE = {torch.bfloat16: (64, 64), torch.float32: (32, 16)}


def prefill_attention(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    tables: torch.Tensor,
    starts: torch.Tensor,
    row_begins: torch.Tensor,
    block_size: int,
    scale: float | None = None,
) -> torch.Tensor:
    """[n, heads, head]: causal attention of every query, in the type of `queries`.

    Row r owns the queries ``row_begins[r] .. row_begins[r + 1] - 1``, at positions ``starts[r]``, ``starts[r]`` + 1, ...;
    the query at position p reads positions 0 .. p, found through ``tables[r]`` as in `decode_attention`. `starts` [rows],
    `row_begins` [rows + 1] (from 0, not falling) and `tables` [rows, blocks] are int32. A row without queries reads nothing;
    queries behind the last row are padding: not read, zeros in the result. Shapes, types and errors otherwise as in
    `decode_attention`.
    """
    door.check_cache(key_cache, value_cache)
    door.check_queries(queries, key_cache)
    door.check_tables(tables, key_cache, block_size)
    rows = tables.shape[0]
    num_queries, heads, head = queries.shape
    kv_heads = key_cache.shape[1]
    door.check_index("starts", starts, key_cache, (rows,))
    door.check_index("row_begins", row_begins, key_cache, (rows + 1,))
    outputs = torch.zeros_like(queries)
    if rows == 0 or num_queries == 0:
        return outputs
    constants = prefill_constants(heads, kv_heads, head, block_size, queries.device, queries.dtype)
    # Row r begins at tile row_begins[r] // tile + r: room for every row's last, partly filled tile, without asking the device
    # how long the rows are.
    num_tiles = num_queries // constants["TILE_QUERIES"] + rows
    prefill_kernel.launch(
        queries.device, (num_tiles, kv_heads), queries, key_cache, value_cache, tables, starts, row_begins, outputs,
        tables.shape[1], rows, door.scale_of(scale, head) * LOG2_E, **constants,
    )  # fmt: skip
    return outputs


def prefill_constants(
    heads: int, kv_heads: int, head: int, block_size: int, device: torch.device, dtype: torch.dtype
) -> dict[str, Any]:
    """What `prefill_kernel` is compiled for."""
    group = heads // kv_heads
    group_rows = 1 << (group - 1).bit_length()
    tile_rows, tile = _TILE[dtype]
    return {
        "KV_HEADS": kv_heads, "GROUP": group, "GROUP_ROWS": group_rows, "HEAD": head, "BLOCK": block_size,
        "TILE": tile, "TILE_QUERIES": max(tile_rows // group_rows, 1),
        "ROWS_AT_ONCE": _ROWS_AT_ONCE, "FACTOR": factor_type(device, dtype),
        "num_warps": 4, "num_stages": 2,
    }  # fmt: skip


@kernel("table_width", "num_rows", "scale")
def prefill_kernel(
    queries: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, tables: tl.tensor, starts: tl.tensor,
    row_begins: tl.tensor, outputs: tl.tensor, table_width: tl.tensor, num_rows: tl.tensor, scale: tl.tensor,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD: tl.constexpr, BLOCK: tl.constexpr,
    TILE: tl.constexpr, TILE_QUERIES: tl.constexpr, ROWS_AT_ONCE: tl.constexpr, FACTOR: tl.constexpr,
) -> None:  # fmt: skip
    """One program for each KV head and tile of TILE_QUERIES queries of one row. `scale` includes log2(e).

    Last run: `docs/last-seen.json`, ``kernels-interpreter`` (CPU), ``kernels-compiled`` (machine code only), ``kernels-cuda``.
    """
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    num_begun = 0  # rows whose first tile is this one or lies before it
    for first_row in range(0, num_rows, ROWS_AT_ONCE):
        rows = first_row + tl.arange(0, ROWS_AT_ONCE)
        is_row = rows < num_rows
        first_tiles = tl.load(row_begins + rows, mask=is_row, other=0) // TILE_QUERIES + rows
        num_begun += tl.reduce((is_row & (first_tiles <= tile)).to(tl.int32), 0, SUM)
    row = num_begun - 1
    begin = tl.load(row_begins + row)
    num_queries = tl.load(row_begins + row + 1) - begin
    first_query = (tile - begin // TILE_QUERIES - row) * TILE_QUERIES
    if first_query < num_queries:
        start = tl.load(starts + row)
        members = tl.arange(0, TILE_QUERIES * GROUP_ROWS)
        dims = tl.arange(0, HEAD)
        ordinals = first_query + members // GROUP_ROWS
        heads = (begin + ordinals).to(tl.int64) * (KV_HEADS * GROUP) + kv_head * GROUP + members % GROUP_ROWS
        is_query = (ordinals < num_queries) & (members % GROUP_ROWS < GROUP)
        query = tl.load(queries + heads[:, None] * HEAD + dims[None, :], mask=is_query[:, None], other=0.0).to(FACTOR)
        table = tables + tl.cast(row, tl.int64) * table_width
        end = start + tl.minimum(first_query + TILE_QUERIES, num_queries)
        highest = tl.full([TILE_QUERIES * GROUP_ROWS], float("-inf"), tl.float32)
        total = tl.full([TILE_QUERIES * GROUP_ROWS], 0.0, tl.float32)
        attended = tl.full([TILE_QUERIES * GROUP_ROWS, HEAD], 0.0, tl.float32)
        for first in range(0, end, TILE):
            positions = first + tl.arange(0, TILE)
            is_read = positions < end
            blocks = tl.load(table + positions // BLOCK, mask=is_read, other=0).to(tl.int64)
            cells = (blocks * BLOCK + positions % BLOCK) * (KV_HEADS * HEAD) + kv_head * HEAD
            keys = tl.load(key_cache + cells[None, :] + dims[:, None], mask=is_read[None, :], other=0.0).to(FACTOR)
            values = tl.load(value_cache + cells[:, None] + dims[None, :], mask=is_read[:, None], other=0.0).to(FACTOR)
            scores = tl.dot(query, keys, input_precision="ieee") * scale
            # `is_read` too: the padding queries of a tile stand behind the last position that is loaded.
            is_seen = is_read[None, :] & (positions[None, :] <= start + ordinals[:, None])
            scores = tl.where(is_seen, scores, float("-inf"))
            raised = tl.maximum(highest, tl.reduce(scores, 1, MAX))
            weights = tl.exp2(scores - raised[:, None])
            fading = tl.exp2(highest - raised)
            total = total * fading + tl.reduce(weights, 1, SUM)
            attended = tl.dot(weights.to(FACTOR), values, attended * fading[:, None], input_precision="ieee")
            highest = raised
        attended = attended / total[:, None]
        tl.store(outputs + heads[:, None] * HEAD + dims[None, :], attended, mask=is_query[:, None])
