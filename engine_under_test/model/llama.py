"""The arithmetic of a Llama on flat tokens, [n, hidden]: what a layer computes, with attention handed in.

Sources: Touvron et al. 2023 (the architecture); Zhang, Sennrich 2019 (RMSNorm); Su et al. 2021 (rotary positions); Ainslie et
al. 2023 (grouped-query attention); Shazeer 2020 (SwiGLU). Owns: these formulas, in the type of the weights. Never: where keys
and values are kept, which tokens stand in one batch, or the choice of a token.

Everything here works token by token: no row of a result depends on another row, but for what `attend` does. ``product(x, w)``
is ``x @ w.T`` and may be handed in, since the bits of a matrix product depend on the shape it is computed in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from torch.nn import functional

from engine_under_test.model.weights import LayerWeights, LlamaConfig, LlamaWeights

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@runtime_checkable
class PartialProduct(Protocol):
    """A product of one rank's part of the weights, with the sum over all ranks where these split a matrix by columns."""

    def own(self, x: torch.Tensor, w: torch.Tensor, /) -> torch.Tensor:
        """What this rank alone comes to."""

    def summed(self, product: Product, /) -> Product:
        """Another product of this rank's part, with the same sums."""

    def __call__(self, x: torch.Tensor, w: torch.Tensor, /) -> torch.Tensor: ...


class Angles(NamedTuple):
    """Cosine and sine of the rotation at each token, for each pair of dimensions: [n, 1, head_size / 2]."""

    cos: torch.Tensor
    sin: torch.Tensor


class Heads(NamedTuple):
    """What attention is given: queries [n, heads, head], keys and values [n, kv_heads, head], rotated."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor


def angles(config: LlamaConfig, positions: torch.Tensor, dtype: torch.dtype) -> Angles:
    """The rotations at `positions` [n]. Float64 up to the last rounding: an angle of thousands keeps few digits in float32."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float64, device=positions.device) / config.head_size
    turns = positions.to(torch.float64)[:, None, None] * config.rope_theta**-exponents
    return Angles(turns.cos().to(dtype), turns.sin().to(dtype))


def rotate(heads: torch.Tensor, by: Angles) -> torch.Tensor:
    """[n, heads, head] turned by halves: dimension i with dimension i + head / 2."""
    left, right = heads.chunk(2, dim=-1)
    return torch.cat((left * by.cos - right * by.sin, right * by.cos + left * by.sin), dim=-1)


def rms_norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Scaled to a root mean square of 1 in float32, cast back, and only then weighted, as the published models were."""
    wide = hidden.float()
    wide = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + eps)
    return wide.to(hidden.dtype) * weight


def project(
    hidden: torch.Tensor, layer: LayerWeights, config: LlamaConfig, by: Angles, product: Product = functional.linear
) -> Heads:
    """The first half of a layer, up to attention."""
    normed = rms_norm(hidden, layer.attention_norm, config.rms_eps)
    n, size = len(hidden), config.head_size
    queries = product(normed, layer.q).view(n, config.num_heads, size)
    keys = product(normed, layer.k).view(n, config.num_kv_heads, size)
    values = product(normed, layer.v).view(n, config.num_kv_heads, size)
    return Heads(rotate(queries, by), rotate(keys, by), values)


def finish(
    hidden: torch.Tensor, attended: torch.Tensor, layer: LayerWeights, config: LlamaConfig, product: Product = functional.linear
) -> torch.Tensor:
    """The second half of a layer: `attended` [n, heads, head] projected and added, then SwiGLU."""
    hidden = hidden + product(attended.reshape(len(hidden), -1), layer.o)
    normed = rms_norm(hidden, layer.mlp_norm, config.rms_eps)
    return hidden + product(functional.silu(product(normed, layer.gate)) * product(normed, layer.up), layer.down)


def run_layer(
    hidden: torch.Tensor,
    layer: LayerWeights,
    config: LlamaConfig,
    by: Angles,
    attend: Attend,
    product: Product = functional.linear,
) -> torch.Tensor:
    """One layer, [n, hidden] to [n, hidden]; ``attend(queries, keys, values)`` answers [n, heads, head]."""
    heads = project(hidden, layer, config, by, product)
    return finish(hidden, attend(*heads), layer, config, product)


def embed(weights: LlamaWeights, tokens: torch.Tensor) -> torch.Tensor:
    """[n] to [n, hidden]."""
    return functional.embedding(tokens, weights.embedding)


def logits(hidden: torch.Tensor, weights: LlamaWeights, product: Product = functional.linear) -> torch.Tensor:
    """[n, hidden] to [n, vocab], float32."""
    normed = rms_norm(hidden, weights.final_norm, weights.config.rms_eps)
    return product(normed, weights.head).float()


def no_logits(weights: LlamaWeights) -> torch.Tensor:
    """[0, vocab] float32."""
    return torch.empty(0, weights.config.vocab_size, device=weights.head.device)
