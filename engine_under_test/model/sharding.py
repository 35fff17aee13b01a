"""The part of a Llama that one of several ranks computes (Shoeybi et al. 2019, Megatron-LM, section 3).

Owns which rows and columns belong to whom. Query, key and value heads and the columns of the feed-forward are split, so that
the products behind them (``o``, ``down``) give each rank a summand. Embedding, norms and output head are whole on every rank:
each then knows all logits and samples the same token. Never: the sums (`distributed/`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch

from engine_under_test.errors import ConfigError
from engine_under_test.model.lora import LoraModule, LoraWeights
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


class _Part(NamedTuple):
    """Where a rank's part of a matrix lies: along which dimension of [out, in], from where, how long."""

    dim: int
    begin: int
    length: int


def _parts(whole: LlamaConfig, rank: int, world_size: int) -> dict[str, _Part]:
    """Of each matrix of a layer."""
    mine, size = shard_config(whole, world_size), whole.head_size
    first_kv = rank * whole.num_kv_heads // world_size
    queries, keys, inner = mine.num_heads * size, mine.num_kv_heads * size, mine.intermediate_size
    return {
        "q": _Part(0, rank * queries, queries), "k": _Part(0, first_kv * size, keys), "v": _Part(0, first_kv * size, keys),
        "o": _Part(1, rank * queries, queries), "gate": _Part(0, rank * inner, inner), "up": _Part(0, rank * inner, inner),
        "down": _Part(1, rank * inner, inner),
    }  # fmt: skip


def _piece(tensor: torch.Tensor, part: _Part) -> torch.Tensor:
    return tensor.narrow(*part).clone(memory_format=torch.contiguous_format)


def shard(weights: LlamaWeights, rank: int, world_size: int) -> LlamaWeights:
    """The part of `rank`, in memory of its own."""
    parts = _parts(weights.config, rank, world_size)

    def layer(each: LayerWeights) -> LayerWeights:
        return replace(each, **{name: _piece(getattr(each, name), part) for name, part in parts.items()})

    mine = shard_config(weights.config, world_size)
    return replace(weights, config=mine, layers=tuple(map(layer, weights.layers)))


def shard_lora(lora: LoraWeights, config: LlamaConfig, rank: int, world_size: int) -> LoraWeights:
    """The part of `rank` of an adapter for a whole model of this shape: rows of ``b`` where the rows of the matrix are split,
    columns of ``a`` where its columns are, so that the ranks' products add up to the whole one."""
    parts = _parts(config, rank, world_size)

    def module(name: str, each: LoraModule) -> LoraModule:
        part = parts[name]
        return LoraModule(each.a, _piece(each.b, part)) if part.dim == 0 else LoraModule(_piece(each.a, part), each.b)

    return replace(lora, layers=tuple({name: module(name, each) for name, each in of.items()} for of in lora.layers))
