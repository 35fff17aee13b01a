"""The runner inside one rank: the fingerprint model or a Llama, each computing its part and summing up with the others.

Owns which sums a step takes. Never: processes, or who is told what.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from engine_under_test.distributed.rank_collectives import Collectives
from engine_under_test.distributed.rank_config import Backend, FingerprintModel, LlamaFile, RankConfig
from engine_under_test.errors import ConfigError
from engine_under_test.execution import cells as law
from engine_under_test.execution.adapter_slots import AdapterLibrary
from engine_under_test.execution.fingerprint import FingerprintRunner, Rows
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.execution.verifying import Places
from engine_under_test.model.llama import Product
from engine_under_test.model.load import load_weights
from engine_under_test.model.lora import LoraWeights
from engine_under_test.model.sharding import shard, shard_config, shard_lora
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.seams import Grammars
from engine_under_test.types import Adapter, Plan, Reservation


class AdapterParts:
    """This rank's part of the adapters that the next plan loads: nothing of it is kept for longer."""

    def __init__(self, config: LlamaConfig, max_rank: int, rank: int, world_size: int) -> None:
        self._whole, self._rank, self._world_size = config, rank, world_size
        self.library = AdapterLibrary(shard_config(config, world_size), max_rank)

    def take(self, adapters: Mapping[Adapter, LoraWeights]) -> None:
        """Those of a plan that comes now."""
        self.library.keep(())
        for adapter, lora in adapters.items():
            self.library.add(adapter, shard_lora(lora, self._whole, self._rank, self._world_size))


def build(config: RankConfig, collectives: Collectives) -> tuple[FingerprintRunner | TransformerRunner, AdapterParts | None]:
    """The runner of this rank, and what it loads adapters from, if it is one that has their weights."""
    model, slots = config.model, config.num_adapter_slots
    if isinstance(model, FingerprintModel):
        more: dict[str, Any] = {"num_adapter_slots": slots, "grammars": _grammars(config, model.vocab_size)}
        return SplitFingerprints(config.num_blocks, config.block_size, model.vocab_size, collectives, **more), None
    whole = _weights(config)
    grammars = _grammars(config, whole.config.vocab_size)
    weights = shard(whole, collectives.rank, collectives.world_size)
    if config.backend is Backend.NCCL:
        weights = weights.to(device=torch.device("cuda", collectives.rank))
    parts = AdapterParts(whole.config, config.max_adapter_rank, collectives.rank, collectives.world_size) if slots else None
    runner = TransformerRunner(
        weights,
        config.num_blocks,
        config.block_size,
        product=SummedProduct(weights, collectives),
        grammars=grammars,
        adapters=None if parts is None else parts.library,
        num_adapter_slots=slots,
    )
    return runner, parts


def _grammars(config: RankConfig, vocab_size: int) -> CompiledGrammars | None:
    """None without. What is not the vocabulary of the model is refused, and ends the rank."""
    texts = config.grammar_texts
    if not texts:
        return None
    if len(texts) != vocab_size:
        raise ConfigError(
            f"grammar_texts are the bytes of each token of the model, {vocab_size} tokens, found {len(texts)}; hand in those "
            "of this model"
        )
    return CompiledGrammars(texts, are_tried=True)  # by the engine, at its door


def num_blocks_of(runner: FingerprintRunner | TransformerRunner, block_size: int) -> int:
    """The blocks that its store really has, without the padding block."""
    slots = len(runner.store) if isinstance(runner, FingerprintRunner) else runner.keys.shape[1]
    return slots // block_size - 1


def _weights(config: RankConfig) -> LlamaWeights:
    model = config.model
    assert not isinstance(model, FingerprintModel)  # it has none
    dtype: torch.dtype = getattr(torch, model.dtype)
    if isinstance(model, LlamaFile):
        return load_weights(Path(model.path), dtype)
    return tiny_random(LlamaConfig(**model.shape), model.seed, dtype)


class SummedProduct:
    """``x @ w.T``; where `w` holds this rank's columns of a matrix, the sum over all ranks. Two sums a layer."""

    def __init__(self, weights: LlamaWeights, collectives: Collectives) -> None:
        self._collectives = collectives
        self._weights = weights  # kept, so that no identity is given twice
        self._split = {
            id(matrix): f"{name} {number}"
            for number, layer in enumerate(weights.layers)
            for name, matrix in (("o", layer.o), ("down", layer.down))
        }

    own = staticmethod(functional.linear)

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """[n, in] and [out, in] to [n, out]."""
        return self._sum(functional.linear(x, w), w)

    def summed(self, product: Product) -> Product:
        """See `llama.PartialProduct`."""
        return lambda x, w: self._sum(product(x, w), w)

    def _sum(self, part: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        name = self._split.get(id(w))
        if name is not None:
            self._collectives.all_reduce(part, name)
        return part


class SplitFingerprints(FingerprintRunner):
    """The fingerprint model of docs/fingerprint.md with each word split by heads of 16 bits: this rank stores some of them, and
    0 in place of the others.

    The running sum and the digest are linear in the words read, so each rank adds up its own part and the ranks' sums are
    summed: the same bits as on one rank, whatever the number of ranks, since addition mod 2^64 has no order.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        vocab_size: int,
        collectives: Collectives,
        *,
        num_adapter_slots: int = 0,
        grammars: Grammars | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, vocab_size, num_adapter_slots=num_adapter_slots, grammars=grammars)
        bits = 64 // collectives.world_size
        self._mask = (2**bits - 1) << bits * collectives.rank
        self._poison = law.POISON & np.uint64(self._mask)
        self._collectives = collectives
        self.store[:] = self._poison

    def _fill(self, blocks: Sequence[int]) -> None:
        self._blocks[list(blocks)] = self._poison

    def _compute(self, plan: Plan, reservation: Reservation, rows: Rows) -> list[law.Words]:
        words, slots, mask = self._words, reservation.slots, self._mask
        computed = self._layer_one_of(plan, reservation, rows)
        for slot, word in zip(slots, computed, strict=True):
            words[2 * slot] = word & mask
        sums = self._sum(np.array(self._running_sums(plan, rows), dtype=np.uint64), "layer one").tolist()
        for slot, word, total in zip(slots, computed, sums, strict=True):
            words[2 * slot + 1] = law.layer_two(word, total) & mask
        whole = self._read(rows.blocks)
        return [whole[2 * begin : 2 * (begin + end)] for begin, end in zip(rows.begins, rows.ends, strict=True)]

    def _digests(self, read: Sequence[law.Words], places: Places) -> law.Words:
        return self._sum(super()._digests(read, places), "digests")

    def _running_digests(self, read: law.Words, positions: range) -> law.Words:
        return self._sum(np.ascontiguousarray(super()._running_digests(read, positions)), "digests of a prompt")

    def _sum(self, words: law.Words, what: str) -> law.Words:
        self._collectives.all_reduce(torch.from_numpy(words.view(np.int64)), what)
        return words
