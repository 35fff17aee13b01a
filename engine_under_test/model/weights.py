"""The shape of a Llama and its weights, as torch tensors; a tiny random model of any shape.

Owns: which tensors a Llama consists of, in which layout. Never: a file format (`load.py`), or what is computed with them.

Every projection is stored ``[out, in]``, so that ``y = x @ w.T``. Query and key rows stand in the order of the rotation by
halves: within a head, dimension ``i`` turns with dimension ``i + head_size / 2`` (a file that pairs neighbours is permuted
by its loader).
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from engine_under_test.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The shape of a Llama (Touvron et al. 2023): RMSNorm, rotary positions, grouped-query attention, SwiGLU.

    ``num_heads`` is a multiple of ``num_kv_heads``; query head ``h`` reads KV head ``h // (num_heads // num_kv_heads)``.
    ``ties_head``: the output head is the embedding. ``max_positions``: the longest context that the model was made for.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    rope_theta: float = 10000.0
    rms_eps: float = 1e-5
    max_positions: int = 2048
    ties_head: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and (type(value) is not int or value < 1):
                raise ConfigError(f"{field.name} of a Llama must be an integer of at least 1, found {value!r}; correct it")
            if field.type == "float" and not value > 0:
                raise ConfigError(f"{field.name} of a Llama must be above 0, found {value!r}; correct it")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads must be a multiple of num_kv_heads, found {self.num_heads} and {self.num_kv_heads}; correct one"
            )
        if self.head_size % 2:
            raise ConfigError(f"head_size must be even so that positions can turn pairs, found {self.head_size}; correct it")


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. ``q`` [heads * head, hidden]; ``k``, ``v`` [kv_heads * head, hidden]; ``o`` [hidden, heads * head];
    ``gate``, ``up`` [intermediate, hidden]; ``down`` [hidden, intermediate]; both norms [hidden]."""

    attention_norm: torch.Tensor
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    mlp_norm: torch.Tensor
    gate: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


@dataclass(frozen=True, slots=True)
class LlamaWeights:
    """All of a model: ``embedding`` and ``head`` [vocab, hidden] (one tensor if tied), ``final_norm`` [hidden]."""

    config: LlamaConfig
    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    head: torch.Tensor

    def to(self, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> LlamaWeights:
        """The same weights in another type or place; a tied head stays tied."""

        def moved(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(device=device, dtype=dtype)

        embedding = moved(self.embedding)
        layers = tuple(
            LayerWeights(*[moved(getattr(layer, field.name)) for field in fields(LayerWeights)]) for layer in self.layers
        )
        head = embedding if self.config.ties_head else moved(self.head)
        return replace(self, embedding=embedding, layers=layers, final_norm=moved(self.final_norm), head=head)


def tiny_random(config: LlamaConfig, seed: int, dtype: torch.dtype = torch.float32) -> LlamaWeights:
    """Random weights of the given shape, a pure function of `seed`, scaled so that logits differ by several units."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, dtype=torch.float64) * scale).to(dtype)

    def norm() -> torch.Tensor:
        return (1 + 0.1 * torch.randn(config.hidden_size, generator=generator, dtype=torch.float64)).to(dtype)

    hidden, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_size, config.num_kv_heads * config.head_size

    def layer() -> LayerWeights:
        shapes: dict[str, Any] = {
            "q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries),
            "gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner),
        }  # fmt: skip
        # Twice the usual scale for queries and keys: attention then prefers few positions, and a wrong one is seen.
        drawn = {
            name: normal(*shape, scale=(2.0 if name in "qk" else 1.0) * shape[1] ** -0.5) for name, shape in shapes.items()
        }
        return LayerWeights(attention_norm=norm(), mlp_norm=norm(), **drawn)

    embedding = normal(config.vocab_size, hidden, scale=1.0)
    layers = tuple(layer() for _ in range(config.num_layers))
    final_norm = norm()
    head = embedding if config.ties_head else normal(config.vocab_size, hidden, scale=2.0 * hidden**-0.5)
    return LlamaWeights(config, embedding, layers, final_norm, head)
