"""The part of a Llama that one of several ranks computes (Shoeybi et al. 2019, Megatron-LM, section 3).

Owns which rows and columns belong to whom. Query, key and value heads and the columns of the feed-forward are split, so that
the products behind them (``o``, ``down``) give each rank a summand. Embedding, norms and output head are whole on every rank:
each then knows all logits and samples the same token. Never: the sums (`distributed/`).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from engine_under_test.errors import ConfigError
from engine_under_test.model.weights import LayerWeights, LlamaConfig, LlamaWeights


def shard_config(config: LlamaConfig, world_size: int) -> LlamaConfig:
    """The shape of one rank's part. KV heads fewer than ranks are kept by several ranks each. ConfigError if it is not even."""
    kv_heads, inner = config.num_kv_heads, config.intermediate_size
    rules = (
        (config.num_heads % world_size == 0, f"num_heads ({config.num_heads}) is a multiple of the ranks"),
        (
            kv_heads % world_size == 0 or world_size % kv_heads == 0,
            f"num_kv_heads ({kv_heads}) is a multiple of the ranks, or the ranks of it",
        ),
        (
            config.intermediate_size % world_size == 0,
            f"intermediate_size ({config.intermediate_size}) is a multiple of the ranks",
        ),
    )
    for holds, rule in rules:
        if not holds:
            raise ConfigError(f"a Llama is split evenly: {rule}, found {world_size} ranks; take another number of ranks")
    return replace(
        config,
        num_heads=config.num_heads // world_size,
        num_kv_heads=max(kv_heads // world_size, 1),
        intermediate_size=inner // world_size,
    )


def shard(weights: LlamaWeights, rank: int, world_size: int) -> LlamaWeights:
    """The part of `rank`, in memory of its own."""
    whole, mine = weights.config, shard_config(weights.config, world_size)
    first_kv = rank * whole.num_kv_heads // world_size

    def piece(tensor: torch.Tensor, dim: int, begin: int, length: int) -> torch.Tensor:
        return tensor.narrow(dim, begin, length).clone(memory_format=torch.contiguous_format)

    def layer(each: LayerWeights) -> LayerWeights:
        size = whole.head_size
        queries, keys, inner = mine.num_heads * size, mine.num_kv_heads * size, mine.intermediate_size
        return LayerWeights(
            attention_norm=each.attention_norm,
            q=piece(each.q, 0, rank * queries, queries),
            k=piece(each.k, 0, first_kv * size, keys),
            v=piece(each.v, 0, first_kv * size, keys),
            o=piece(each.o, 1, rank * queries, queries),
            mlp_norm=each.mlp_norm,
            gate=piece(each.gate, 0, rank * inner, inner),
            up=piece(each.up, 0, rank * inner, inner),
            down=piece(each.down, 1, rank * inner, inner),
        )

    return replace(weights, config=mine, layers=tuple(map(layer, weights.layers)))
