"""Deliberate faults for the tests of this folder: what is wrong is known, so that it can be asked whether it is found.

Owns the faults. Each is a fault of arithmetic that leaves every shape, plan and length as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from engine_under_test.model import llama
from engine_under_test.model.weights import LayerWeights, LlamaConfig, LlamaWeights


def with_queries_a_position_late(weights: LlamaWeights) -> LlamaWeights:
    """Queries turned by one position more than keys: the turns add up, so that the weights can hold the fault."""
    config = weights.config
    pairs = torch.arange(config.head_size // 2, dtype=torch.float64)
    angle = (config.rope_theta ** (-2 * pairs / config.head_size))[None, :, None]

    def late(q: torch.Tensor) -> torch.Tensor:
        by_half = q.double().view(config.num_heads, 2, config.head_size // 2, -1)
        left, right = by_half[:, 0], by_half[:, 1]
        turned = (left * angle.cos() - right * angle.sin(), right * angle.cos() + left * angle.sin())
        return torch.stack(turned, dim=1).reshape(q.shape).to(q.dtype)

    return _each_layer(weights, lambda layer: replace(layer, q=late(layer.q)))


def with_two_kv_heads_swapped(weights: LlamaWeights) -> LlamaWeights:
    """The first two KV heads stand in each other's place."""
    config = weights.config
    order = [1, 0, *range(2, config.num_kv_heads)]

    def swapped(rows: torch.Tensor) -> torch.Tensor:
        return rows.view(config.num_kv_heads, config.head_size, -1)[order].reshape(rows.shape)

    return _each_layer(weights, lambda layer: replace(layer, k=swapped(layer.k), v=swapped(layer.v)))


def _each_layer(weights: LlamaWeights, change: Callable[[LayerWeights], LayerWeights]) -> LlamaWeights:
    return replace(weights, layers=tuple(map(change, weights.layers)))


def angles_late_from(first: int) -> Callable[[LlamaConfig, torch.Tensor, torch.dtype], llama.Angles]:
    """In place of `llama.angles`: from position `first` on, every position is taken for the next one. (All positions late alike
    would change nothing: only their differences are seen.)"""
    angles = llama.angles

    def late(config: LlamaConfig, positions: torch.Tensor, dtype: torch.dtype) -> llama.Angles:
        return angles(config, positions + (positions >= first), dtype)

    return late
