"""Adapters on the device: a fixed number of slots with room for the weights of one each, and products that use them by row.

Owns: the buffers of the slots, what is copied into them, and the low-rank products. Never: which adapter belongs into which
slot, or when (`Reservation`).

The rows of a batch are grouped by slot, so that each slot costs two thin products over its own rows (as in Chen et al., Punica,
MLSys 2024); rows without an adapter are not touched. A slot into which nothing was loaded holds NaN.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch.nn import functional

from engine_under_test.errors import BadInput
from engine_under_test.model.llama import PartialProduct, Product
from engine_under_test.model.lora import MODULES, LoraWeights, module_shapes
from engine_under_test.model.weights import LlamaConfig, LlamaWeights
from engine_under_test.types import Adapter


class AdapterLibrary:
    """The weights of adapters in the host's memory, by name and version, for runners to load from. At most `max_rank`."""

    def __init__(self, config: LlamaConfig, max_rank: int = 16) -> None:
        self.config = config
        self.max_rank = max_rank
        self._weights: dict[Adapter, LoraWeights] = {}

    def add(self, adapter: Adapter, weights: LoraWeights) -> None:
        """BadInput if it does not fit: made for another model, or of too high a rank."""
        shapes = module_shapes(self.config)
        if len(weights.layers) != self.config.num_layers or any(
            (len(factors.b), factors.a.shape[1]) != shapes[module]
            for layer in weights.layers
            for module, factors in layer.items()
        ):
            raise BadInput(f"an adapter must have the shapes of its model, found others in {adapter.name!r}; use its own model")
        if weights.rank > self.max_rank:
            raise BadInput(
                f"an adapter's rank must be at most {self.max_rank} here, found {weights.rank} in {adapter.name!r}; "
                "raise max_rank"
            )
        self._weights[adapter] = weights

    def keep(self, adapters: Collection[Adapter]) -> None:
        """Drops all others: `Engine.adapters` says whose weights are still needed."""
        self._weights = {adapter: weights for adapter, weights in self._weights.items() if adapter in adapters}

    def find(self, adapter: Adapter) -> LoraWeights | None:
        return self._weights.get(adapter)


class AdapterSlots:
    """Slots 1 .. `num_slots` in the type and at the place of the model's weights."""

    def __init__(self, weights: LlamaWeights, num_slots: int, max_rank: int) -> None:
        self.num_slots = num_slots
        shapes = module_shapes(weights.config)
        like = weights.embedding

        def buffer(*shape: int) -> torch.Tensor:
            return torch.full((num_slots + 1, *shape), torch.nan, dtype=like.dtype, device=like.device)

        self._a: list[dict[str, torch.Tensor]] = []  # by layer and module: [slots + 1, rank, in]
        self._b: list[dict[str, torch.Tensor]] = []  # [slots + 1, out, rank]
        self._of_matrix: dict[int, tuple[int, str]] = {}  # layer and module, by the identity of the model's own matrix
        for number, layer in enumerate(weights.layers):
            self._a.append({module: buffer(max_rank, shapes[module][1]) for module in MODULES})
            self._b.append({module: buffer(shapes[module][0], max_rank) for module in MODULES})
            self._of_matrix.update({id(getattr(layer, module)): (number, module) for module in MODULES})
        self._weights = weights  # kept, so that no identity is given twice
        self.place = like.device
        self._ranks = [max_rank] * (num_slots + 1)
        self._scales = [1.0] * (num_slots + 1)
        self._changed: list[set[tuple[int, str]]] = [set(self._of_matrix.values()) for _ in range(num_slots + 1)]

    def load(self, slot: int, lora: LoraWeights) -> None:
        """Copies an adapter into a slot, over whatever lay there."""
        for number, modules in enumerate(lora.layers):
            for module, (a, b) in modules.items():
                self._a[number][module][slot, : lora.rank].copy_(a)
                self._b[number][module][slot, :, : lora.rank].copy_(b)
        self._ranks[slot], self._scales[slot] = lora.rank, lora.scale
        self._changed[slot] = {(number, module) for number, modules in enumerate(lora.layers) for module in modules}

    def may_change(self, w: torch.Tensor) -> bool:
        """Whether it is a matrix that adapters change."""
        return id(w) in self._of_matrix

    def added(self, slot: int, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor | None:
        """What the adapter in a slot adds to ``x @ w.T``, [n, out]; None if it does not change this matrix."""
        place = self._of_matrix.get(id(w))
        if place is None or place not in self._changed[slot]:
            return None
        number, module = place
        rank = self._ranks[slot]
        narrow = functional.linear(x, self._a[number][module][slot, :rank])
        return functional.linear(narrow, self._b[number][module][slot, :, :rank]) * self._scales[slot]


class RowAdapters:
    """The slots of one batch, token by token, 0 for none; and products that honour them."""

    def __init__(self, slots: AdapterSlots, of_tokens: Sequence[int]) -> None:
        self._slots = slots
        self._of_tokens = tuple(of_tokens)
        place = slots.place
        used = sorted(set(self._of_tokens) - {0})
        self._rows = {
            slot: torch.tensor([row for row, each in enumerate(self._of_tokens) if each == slot], device=place) for slot in used
        }

    def whole(self, product: Product) -> Product:
        """For products over all tokens of the batch at once. Of a product that is one rank's part the slots hold the like part
        of the adapters, and what is summed up over the ranks is both."""
        if isinstance(product, PartialProduct):
            return product.summed(self.whole(product.own))

        def adapted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = product(x, w)
            if self._slots.may_change(w):
                for slot, rows in self._rows.items():
                    added = self._slots.added(slot, x[rows], w)
                    if added is not None:
                        y[rows] += added
            return y

        return adapted

    def tile(self, begin: int, num_tokens: int) -> Product:
        """For products over the tile of tokens that begins at `begin`: every operation has the tile's shape, whoever is in
        it."""
        of_rows = self._of_tokens[begin : begin + num_tokens]
        place = self._slots.place
        masks = {
            slot: torch.tensor([each == slot for each in of_rows] + [False] * (num_tokens - len(of_rows)), device=place)
            for slot in sorted(set(of_rows) - {0})
        }

        def adapted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            y = functional.linear(x, w)
            for slot, mask in masks.items():
                added = self._slots.added(slot, x, w)
                if added is not None:
                    y = torch.where(mask[:, None], y + added, y)
            return y

        return adapted
