"""Fixed tiles: the shapes of the batch-invariant mode (SE-4), and attention in them.

Owns: how tokens, queries and keys are cut and padded so that every operation has the same shape whatever the batch. Never:
the arithmetic of a layer.

A token's attention is computed in the tile of queries whose positions agree with its own but for the last three bits, at its
place there, over tiles of keys that begin at multiples of `TILE_KEYS`: shapes, places and order depend on its position alone.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from engine_under_test.execution.attention import TorchStore, slots_of_row
from engine_under_test.execution.batch import Batch

TILE_TOKENS = 8
TILE_KEYS = 64  # a multiple of TILE_TOKENS, so that no tile of queries stands astride two tiles of keys


def in_tiles(rows: torch.Tensor) -> list[torch.Tensor]:
    """[n, ...] cut into copies of `TILE_TOKENS` rows, the last one padded with zeros.

    Copies, since an allocation of its own begins where the alignment is always the same.
    """
    padding = -len(rows) % TILE_TOKENS
    padded = torch.cat((rows, rows.new_zeros(padding, *rows.shape[1:]))) if padding else rows
    return [tile.clone() for tile in padded.view(-1, TILE_TOKENS, *rows.shape[1:])] if len(rows) else []


class FixedTiles(TorchStore):
    """Paged attention for the batch-invariant mode: an online softmax (Milakov, Gimelshein 2018) over fixed tiles of keys."""

    name = "fixed-tiles"

    def attend(self, queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Attention.attend`."""
        attended = torch.empty_like(queries)
        for row, (start, length) in enumerate(zip(batch.start_list, batch.length_list, strict=True)):
            slots = slots_of_row(batch, row)
            keys, values = _tiles_of_keys(key_cache[slots]), _tiles_of_keys(value_cache[slots])
            begin = batch.row_begin_list[row]
            for first in range(start // TILE_TOKENS * TILE_TOKENS, length, TILE_TOKENS):
                low, high = max(first, start), min(first + TILE_TOKENS, length)
                mine = slice(begin + low - start, begin + high - start)
                tile = functional.pad(queries[mine], (0, 0, 0, 0, low - first, first + TILE_TOKENS - high))
                found = _attend_tile(tile, first, keys, values)
                attended[mine] = found[low - first : high - first]
        return attended


def _tiles_of_keys(gathered: torch.Tensor) -> list[torch.Tensor]:
    """[length, kv_heads, head] as tiles [kv_heads, TILE_KEYS, head], zeros behind the end."""
    padded = functional.pad(gathered, (0, 0, 0, 0, 0, -len(gathered) % TILE_KEYS))
    return [tile.transpose(0, 1).contiguous() for tile in padded.view(-1, TILE_KEYS, *gathered.shape[1:])]


def _attend_tile(queries: torch.Tensor, first: int, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
    """[TILE_TOKENS, heads, head] for the queries at positions `first` and on."""
    num, heads, size = queries.shape
    kv_heads = keys[0].shape[0]
    folded = queries.view(num, kv_heads, -1, size).permute(1, 2, 0, 3).reshape(kv_heads, -1, size)
    best = torch.full((kv_heads, folded.shape[1], 1), -torch.inf, device=queries.device)
    total = torch.zeros_like(best)
    summed = torch.zeros(folded.shape, device=queries.device)
    positions = torch.arange(first, first + num, device=queries.device).repeat(heads // kv_heads)[:, None]
    for number in range(first // TILE_KEYS + 1):
        key, value = keys[number], values[number]
        scores = torch.bmm(folded, key.transpose(1, 2)).float() * size**-0.5
        columns = torch.arange(number * TILE_KEYS, (number + 1) * TILE_KEYS, device=queries.device)
        scores = scores.masked_fill(columns > positions, -torch.inf)
        higher = torch.maximum(best, scores.amax(dim=-1, keepdim=True))
        weights, shrink = torch.exp(scores - higher), torch.exp(best - higher)
        total = total * shrink + weights.sum(dim=-1, keepdim=True)
        summed = summed * shrink + torch.bmm(weights.to(value.dtype), value).float()
        best = higher
    attended = (summed / total).to(queries.dtype).view(kv_heads, heads // kv_heads, num, size)
    return attended.permute(2, 0, 1, 3).reshape(num, heads, size)
