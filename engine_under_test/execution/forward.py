"""One pass of a batch through all layers: whole, or in tiles whose bits do not depend on the batch.

Owns: the loop over layers, and where a step asks for memory. Never: a formula (`model/llama.py`), how pages are read
(`attention.py`, `tiles.py`), or the choice of a token.
"""

from __future__ import annotations

from functools import partial

import torch
from torch.nn import functional

from engine_under_test.execution.adapter_slots import RowAdapters
from engine_under_test.execution.attention import Attention
from engine_under_test.execution.batch import Batch
from engine_under_test.execution.media import MediaEmbeddings
from engine_under_test.execution.memory import StepMemory
from engine_under_test.execution.tiles import TILE_TOKENS, in_tiles
from engine_under_test.model import llama
from engine_under_test.model.weights import LlamaConfig, LlamaWeights


class WholeForward:
    """Every product over all tokens of the batch at once."""

    def __init__(
        self,
        weights: LlamaWeights,
        attention: Attention,
        memory: StepMemory,
        product: llama.Product,
        media: MediaEmbeddings | None = None,
    ) -> None:
        self._product = product
        self._media = media
        self._weights = weights
        self._attention = attention
        self._memory = memory

    def __call__(
        self, batch: Batch, keys: torch.Tensor, values: torch.Tensor, adapters: RowAdapters | None = None
    ) -> torch.Tensor:
        """[rows that sample, vocab] float32; keys and values [layers, slots, kv_heads, head] are written and read."""
        product = self._product if adapters is None else adapters.whole(self._product)
        weights, config, dtype = self._weights, self._weights.config, keys.dtype
        take_hidden(self._memory, config, batch.num_tokens, dtype)
        hidden = embed(weights, batch, self._media)
        by = llama.angles(config, batch.positions, dtype)
        for number, layer in enumerate(weights.layers):
            take_layer(self._memory, config, number, batch, batch.num_tokens, dtype)
            attend = partial(self._attend, keys[number], values[number], batch)
            hidden = llama.run_layer(hidden, layer, config, by, attend, product)
        num = len(batch.sampled)
        if not num:
            return llama.no_logits(weights)
        self._memory.take("logits", num * torch.float32.itemsize * config.vocab_size)
        return llama.logits(hidden[batch.sampled], weights, self._product)

    def _attend(
        self,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        batch: Batch,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
    ) -> torch.Tensor:
        self._attention.store(keys, values, key_cache, value_cache, batch.slots)
        return self._attention.attend(queries, key_cache, value_cache, batch)


class TiledForward:
    """Every product over one tile of tokens, padded to its full height, tile after tile.

    A matrix product's order of summation may depend on its shape, but not on what the other rows hold, nor (on the machines
    where the tests ran) on a row's place in its tile. So a token comes to the same bits whatever shares its tile.
    """

    def __init__(
        self, weights: LlamaWeights, attention: Attention, memory: StepMemory, media: MediaEmbeddings | None = None
    ) -> None:
        self._media = media
        self._weights = weights
        self._attention = attention
        self._memory = memory

    def __call__(
        self, batch: Batch, keys: torch.Tensor, values: torch.Tensor, adapters: RowAdapters | None = None
    ) -> torch.Tensor:
        """See `WholeForward`."""
        weights, config, dtype = self._weights, self._weights.config, keys.dtype
        n = batch.num_tokens
        padded = -(-n // TILE_TOKENS) * TILE_TOKENS
        take_hidden(self._memory, config, padded, dtype)
        hidden = in_tiles(embed(weights, batch, self._media))
        angles = [llama.angles(config, positions, dtype) for positions in in_tiles(batch.positions)]
        products: list[llama.Product] = [
            functional.linear if adapters is None else adapters.tile(begin, TILE_TOKENS) for begin in range(0, n, TILE_TOKENS)
        ]
        for number, layer in enumerate(weights.layers):
            take_layer(self._memory, config, number, batch, padded, dtype)
            tiles = zip(hidden, angles, products, strict=True)
            heads = [llama.project(tile, layer, config, by, product) for tile, by, product in tiles]
            queries, new_keys, new_values = (torch.cat(parts)[:n] for parts in zip(*heads, strict=True))
            self._attention.store(new_keys, new_values, keys[number], values[number], batch.slots)
            attended = in_tiles(self._attention.attend(queries, keys[number], values[number], batch))
            rest = zip(hidden, attended, products, strict=True)
            hidden = [llama.finish(tile, part, layer, config, product) for tile, part, product in rest]
        num = len(batch.sampled)
        if not num:
            return llama.no_logits(weights)
        self._memory.take("logits", -(-num // TILE_TOKENS) * TILE_TOKENS * torch.float32.itemsize * config.vocab_size)
        sampled = in_tiles(torch.cat(hidden)[batch.sampled])
        return torch.cat([llama.logits(tile, weights) for tile in sampled])[:num]


def embed(weights: LlamaWeights, batch: Batch, media: MediaEmbeddings | None) -> torch.Tensor:
    """[n, hidden]: of tokens, and of media where they stand."""
    hidden = llama.embed(weights, batch.tokens)
    return hidden if media is None else media.lay_over(hidden, batch.media)


def take_hidden(memory: StepMemory, config: LlamaConfig, num_tokens: int, dtype: torch.dtype) -> None:
    """Embeddings and angles."""
    memory.take("hidden states", num_tokens * dtype.itemsize * (config.hidden_size + config.head_size))


def take_layer(memory: StepMemory, config: LlamaConfig, number: int, batch: Batch, num_tokens: int, dtype: torch.dtype) -> None:
    """What one layer allocates: the pages it gathers and its heads, then the widest moment of the rest of it."""
    head = config.head_size * dtype.itemsize
    gathered = 2 * sum(batch.length_list) * config.num_kv_heads * head
    memory.take(f"attention of layer {number}", gathered + 2 * num_tokens * (config.num_heads + config.num_kv_heads) * head)
    width = 2 * config.hidden_size + 3 * config.intermediate_size
    memory.take(f"feed-forward of layer {number}", num_tokens * width * dtype.itemsize)
