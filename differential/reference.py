"""Oracle one: the logits of a whole token sequence by the plainest arithmetic there is, in float64.

One dense pass over all positions: no cache, no pages, no batch, no chunk, every tensor spelled out. Written from the papers
(Touvron et al. 2023; Zhang, Sennrich 2019 for RMSNorm; Su et al. 2021 for rotary positions; Shazeer 2020 for SwiGLU; Ainslie
et al. 2023 for grouped queries) and from the layout that `model/weights.py` states; it shares weights with the engine and
not a line of arithmetic. In bfloat16 it rounds where the published models round: every tensor that a formula names is
bfloat16, while the inside of a norm, a softmax, an angle or a sum of products is float32 (angles: float64) up to one rounding.
Never: a tolerance, or a verdict (`compare.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import torch

from engine_under_test.model.weights import LayerWeights, LlamaConfig, LlamaWeights


class Rounding(StrEnum):
    """What attention rounds to bfloat16 beside its queries, keys, values and result; in other types nothing differs."""

    EAGER = "eager"  # scores, scores over the root, and shares: as the published models do, written in tensors
    TILED = "tiled"  # scores, exponentials, and what these make of the values before it is divided by their sum
    FUSED = "fused"  # exponentials alone: a kernel that keeps the rest to itself


# What the inside of a norm, a softmax or a sum of products is computed in.
_INSIDE = {torch.float64: torch.float64, torch.float32: torch.float32, torch.bfloat16: torch.float32}


def reference_logits(
    weights: LlamaWeights,
    tokens: Sequence[int],
    dtype: torch.dtype = torch.float64,
    *,
    begin: int = 0,
    rounding: Rounding = Rounding.EAGER,
    given: Callable[[int], torch.Tensor] | None = None,
) -> torch.Tensor:
    """[len(tokens) - begin, vocab] in `dtype`: row ``i`` holds the logits of the token behind position ``begin + i``.

    The weights are read as they are stored (a bfloat16 weight is the number that it is) and everything is computed in
    `dtype`: float64, float32, or bfloat16, where `rounding` says what attention rounds. Rows below `begin` go through the
    layers, but not through the head. A negative token stands for an embedding that `given` knows, [hidden].
    """
    if dtype not in _INSIDE:
        raise ValueError(f"the reference computes in float64, float32 or bfloat16, found {dtype}; choose one of them")
    config = weights.config
    with torch.inference_mode():
        hidden = _embedded(weights, tokens, given).to(dtype)
        turns = _turns(config, len(tokens), dtype)
        for layer in weights.layers:
            hidden = hidden + _attention(config, layer, _normed(hidden, layer.attention_norm, config.rms_eps), turns, rounding)
            hidden = hidden + _gated(layer, _normed(hidden, layer.mlp_norm, config.rms_eps))
        last = _normed(hidden[begin:], weights.final_norm, config.rms_eps)
        return _projected(last, weights.head)


def reference_cells(
    weights: LlamaWeights,
    tokens: Sequence[int],
    dtype: torch.dtype = torch.float64,
    given: Callable[[int], torch.Tensor] | None = None,
) -> torch.Tensor:
    """[2, layers, len(tokens), kv_heads, head]: the keys, turned, and the values that a cache holds of these tokens."""
    config = weights.config
    kept = []
    with torch.inference_mode():
        hidden = _embedded(weights, tokens, given).to(dtype)
        turns = _turns(config, len(tokens), dtype)
        for layer in weights.layers:
            normed = _normed(hidden, layer.attention_norm, config.rms_eps)
            kept.append(torch.stack(_keys_and_values(config, layer, normed, turns)))
            hidden = hidden + _attention(config, layer, normed, turns, Rounding.EAGER)
            hidden = hidden + _gated(layer, _normed(hidden, layer.mlp_norm, config.rms_eps))
    return torch.stack(kept, dim=1)


def _embedded(weights: LlamaWeights, tokens: Sequence[int], given: Callable[[int], torch.Tensor] | None) -> torch.Tensor:
    rows = [weights.embedding[token] if token >= 0 or given is None else given(token) for token in tokens]
    return torch.stack(rows)


def _product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """``x @ y``, summed inside, rounded once."""
    inside = _INSIDE[x.dtype]
    return (x.to(inside) @ y.to(inside)).to(x.dtype)


def _projected(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``y[n, o] = sum over i of x[n, i] * matrix[o, i]``."""
    return _product(x, matrix.to(x.dtype).T)


def _normed(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """Each row over its root mean square, rounded, then weighted."""
    inside = x.to(_INSIDE[x.dtype])
    mean_square = inside.square().sum(dim=1, keepdim=True) / x.shape[1]
    return (inside / torch.sqrt(mean_square + eps)).to(x.dtype) * gain.to(x.dtype)


def _gated(layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
    """SwiGLU: ``down(silu(gate x) * up x)``, with ``silu(z) = z / (1 + exp(-z))``."""
    gate = _projected(x, layer.gate).to(_INSIDE[x.dtype])
    return _projected((gate / (1 + torch.exp(-gate))).to(x.dtype) * _projected(x, layer.up), layer.down)


def _turns(config: LlamaConfig, num: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosine and sine [num, 1, head / 2]: position ``p`` turns pair ``i`` by ``p * theta ** (-2 i / head)``. The angle is
    always taken in float64: a float32 angle is 3e-5 off at position 500."""
    pairs = torch.arange(config.head_size // 2, dtype=torch.float64)
    angles = torch.outer(torch.arange(num, dtype=torch.float64), config.rope_theta ** (-2 * pairs / config.head_size))
    return torch.cos(angles)[:, None].to(dtype), torch.sin(angles)[:, None].to(dtype)


def _turned(x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """``x`` [n, heads, head]: the plane of dimensions ``i`` and ``i + head / 2`` is turned."""
    cos, sin = turns
    half = x.shape[2] // 2
    across, along = x[:, :, :half], x[:, :, half:]
    return torch.cat((across * cos - along * sin, across * sin + along * cos), dim=2)


def _keys_and_values(
    config: LlamaConfig, layer: LayerWeights, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both [n, kv_heads, head]; the keys turned."""
    shape = x.shape[0], config.num_kv_heads, config.head_size
    return _turned(_projected(x, layer.k).reshape(shape), turns), _projected(x, layer.v).reshape(shape)


def _attention(
    config: LlamaConfig, layer: LayerWeights, x: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], rounding: Rounding
) -> torch.Tensor:
    """Every query head by itself: softmax over the positions up to its own."""
    num, head = x.shape[0], config.head_size
    queries = _turned(_projected(x, layer.q).reshape(num, config.num_heads, head), turns)
    keys, values = _keys_and_values(config, layer, x, turns)
    is_later = torch.ones(num, num, dtype=torch.bool).triu(diagonal=1)
    queries_a_group = config.num_heads // config.num_kv_heads
    mixed = [
        _mixed(queries[:, number], keys[:, number // queries_a_group], values[:, number // queries_a_group], is_later, rounding)
        for number in range(config.num_heads)
    ]
    return _projected(torch.cat(mixed, dim=1), layer.o)


def _mixed(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, is_later: torch.Tensor, rounding: Rounding
) -> torch.Tensor:
    """One query head, [n, head]: the values by the shares that a softmax of ``queries . keys / sqrt(head)`` gives them."""
    dtype, inside = queries.dtype, _INSIDE[queries.dtype]
    scores = queries.to(inside) @ keys.to(inside).T
    root = queries.shape[1] ** 0.5
    if rounding is Rounding.EAGER:
        scores = (scores.to(dtype) / root).to(inside)
    else:
        scores = (scores if rounding is Rounding.FUSED else scores.to(dtype).to(inside)) / root
    scores = scores.masked_fill(is_later, -torch.inf)
    powers = torch.exp(scores - scores.amax(dim=1, keepdim=True))
    total = powers.sum(dim=1, keepdim=True)
    if rounding is Rounding.EAGER:
        return _product((powers / total).to(dtype), values)
    mixed = powers.to(dtype).to(inside) @ values.to(inside)
    if rounding is Rounding.TILED:
        mixed = mixed.to(dtype).to(inside)
    return (mixed / total).to(dtype)
