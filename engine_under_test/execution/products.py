"""Matrix products for few rows on a CPU: copies of the weights in the layouts that are quickest for one row and for several.

Owns: the copies, and which one a product uses. Never: anything but ``x @ w.T``, up to rounding.

A decode reads every weight once for few rows, so its speed is that of reading. Measured on SmolLM2's shapes in float32, one
thread, against `linear` on ``[out, in]``: for one row the transposed layout takes about two thirds of the time; for 2 to 32
rows oneDNN's blocked layout takes about two thirds, half for the head. Costs about twice the weights in memory, beside them.
"""

from __future__ import annotations

import torch
from torch.nn import functional

from engine_under_test.model.llama import Product
from engine_under_test.model.weights import LlamaWeights

_MOST_ROWS = 32  # above, `linear` is as quick


class PackedProduct:
    """``x @ w.T`` for the matrices of one model, float32 on a CPU."""

    def __init__(self, weights: LlamaWeights) -> None:
        matrices = [
            matrix
            for layer in weights.layers
            for matrix in (layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down)
        ]
        self._matrices = (*matrices, weights.head)  # kept, so that no identity is given twice
        self._transposed = {
            id(matrix): matrix.T.contiguous() for matrix in self._matrices if matrix.shape[1] <= matrix.shape[0]
        }
        self._blocked = {id(matrix): _reorder(matrix) for matrix in self._matrices}

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """[n, in] and [out, in] to [n, out]."""
        if len(x) == 1:
            transposed = self._transposed.get(id(w))
            return functional.linear(x, w) if transposed is None else torch.mm(x, transposed)
        if len(x) > _MOST_ROWS:
            return functional.linear(x, w)
        product: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self._blocked[id(w)], None, "none", [], "")
        return product


def _reorder(matrix: torch.Tensor) -> torch.Tensor:
    """oneDNN's layout for products with few rows, as torch's own compiler uses it."""
    blocked: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(matrix, 8)
    return blocked


def choose_product(weights: LlamaWeights, *, packs_weights: bool) -> Product:
    """Packed where that is wanted and can be; else plain."""
    head = weights.head
    can_pack = head.device.type == "cpu" and head.dtype is torch.float32 and torch._C._has_mkldnn
    return PackedProduct(weights) if packs_weights and can_pack else functional.linear
