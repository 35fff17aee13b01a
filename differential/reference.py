"""Oracle one: the logits of a whole token sequence by the plainest arithmetic there is, in float64.

One dense pass over all positions: no cache, no pages, no batch, no chunk, every tensor spelled out. Written from the papers
(Touvron et al. 2023; Zhang, Sennrich 2019 for RMSNorm; Su et al. 2021 for rotary positions; Shazeer 2020 for SwiGLU; Ainslie
et al. 2023 for grouped queries) and from the layout that `model/weights.py` states; it shares weights with the engine and
not a line of arithmetic. Never: a tolerance, or a verdict (`compare.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_under_test.model.weights import LayerWeights, LlamaConfig, LlamaWeights

_COMPLEX = {torch.float32: torch.complex64, torch.float64: torch.complex128}


def reference_logits(
    weights: LlamaWeights, tokens: Sequence[int], dtype: torch.dtype = torch.float64, *, begin: int = 0
) -> torch.Tensor:
    """[len(tokens) - begin, vocab] in `dtype`: row ``i`` holds the logits of the token behind position ``begin + i``.

    The weights are read as they are stored (a bfloat16 weight is the number that it is) and everything is computed in
    `dtype`, float64 or float32. Rows below `begin` go through the layers, but not through the head.
    """
    if dtype not in _COMPLEX:
        raise ValueError(f"the reference computes in float64 or float32, found {dtype}; choose one of them")
    config = weights.config
    with torch.inference_mode():
        hidden = weights.embedding[torch.tensor(tokens, dtype=torch.long)].to(dtype)
        turns = _turns(config, len(tokens), dtype)
        for layer in weights.layers:
            hidden = hidden + _attention(config, layer, _normed(hidden, layer.attention_norm, config.rms_eps), turns)
            hidden = hidden + _gated(layer, _normed(hidden, layer.mlp_norm, config.rms_eps))
        last = _normed(hidden[begin:], weights.final_norm, config.rms_eps)
        return _projected(last, weights.head)


def reference_cells(weights: LlamaWeights, tokens: Sequence[int], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """[2, layers, len(tokens), kv_heads, head]: the keys, turned, and the values that a cache holds of these tokens."""
    config = weights.config
    kept = []
    with torch.inference_mode():
        hidden = weights.embedding[torch.tensor(tokens, dtype=torch.long)].to(dtype)
        turns = _turns(config, len(tokens), dtype)
        for layer in weights.layers:
            normed = _normed(hidden, layer.attention_norm, config.rms_eps)
            kept.append(torch.stack(_keys_and_values(config, layer, normed, turns)))
            hidden = hidden + _attention(config, layer, normed, turns)
            hidden = hidden + _gated(layer, _normed(hidden, layer.mlp_norm, config.rms_eps))
    return torch.stack(kept, dim=1)


def _projected(x: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """``y[n, o] = sum over i of x[n, i] * matrix[o, i]``."""
    return torch.einsum("ni,oi->no", x, matrix.to(x.dtype))


def _normed(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """Each row over its root mean square."""
    mean_square = x.square().sum(dim=1, keepdim=True) / x.shape[1]
    return x / torch.sqrt(mean_square + eps) * gain.to(x.dtype)


def _gated(layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
    """SwiGLU: ``down(silu(gate x) * up x)``, with ``silu(z) = z / (1 + exp(-z))``."""
    gate = _projected(x, layer.gate)
    return _projected(gate / (1 + torch.exp(-gate)) * _projected(x, layer.up), layer.down)


def _turns(config: LlamaConfig, num: int, dtype: torch.dtype) -> torch.Tensor:
    """[num, head / 2] unit complex numbers: position ``p`` turns pair ``i`` by ``p * theta ** (-2 i / head)``. The angle is
    always taken in float64: a float32 angle is 3e-5 off at position 500."""
    pairs = torch.arange(config.head_size // 2, dtype=torch.float64)
    angles = torch.outer(torch.arange(num, dtype=torch.float64), config.rope_theta ** (-2 * pairs / config.head_size))
    return torch.polar(torch.ones_like(angles), angles).to(_COMPLEX[dtype])


def _turned(x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """``x`` [n, heads, head], dimensions ``i`` and ``i + head / 2`` as the two parts of a complex number, turned."""
    real, imaginary = x.chunk(2, dim=2)
    turned = torch.complex(real.contiguous(), imaginary.contiguous()) * turns[:, None, :]
    return torch.cat((turned.real, turned.imag), dim=2)


def _keys_and_values(
    config: LlamaConfig, layer: LayerWeights, x: torch.Tensor, turns: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both [n, kv_heads, head]; the keys turned."""
    shape = x.shape[0], config.num_kv_heads, config.head_size
    return _turned(_projected(x, layer.k).reshape(shape), turns), _projected(x, layer.v).reshape(shape)


def _attention(config: LlamaConfig, layer: LayerWeights, x: torch.Tensor, turns: torch.Tensor) -> torch.Tensor:
    """Every query head by itself: softmax over the positions up to its own."""
    num, head = x.shape[0], config.head_size
    queries = _turned(_projected(x, layer.q).reshape(num, config.num_heads, head), turns)
    keys, values = _keys_and_values(config, layer, x, turns)
    is_later = torch.ones(num, num, dtype=torch.bool).triu(diagonal=1)
    queries_a_group = config.num_heads // config.num_kv_heads
    mixed = []
    for number in range(config.num_heads):
        group = number // queries_a_group
        scores = queries[:, number] @ keys[:, group].T / head**0.5
        mixed.append(torch.softmax(scores.masked_fill(is_later, -torch.inf), dim=1) @ values[:, group])
    return _projected(torch.cat(mixed, dim=1), layer.o)
