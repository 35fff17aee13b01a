"""The runner inside one rank: the fingerprint model or a Llama, each computing its part and summing up with the others.

Owns which sums a step takes. Never: processes, or who is told what.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from engine_under_test.distributed.rank_collectives import Collectives
from engine_under_test.distributed.rank_config import Backend, FingerprintModel, LlamaFile, RankConfig
from engine_under_test.execution import cells as law
from engine_under_test.execution.fingerprint import FingerprintRunner, Rows
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.execution.verifying import Places
from engine_under_test.model.load import load_weights
from engine_under_test.model.sharding import shard
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from engine_under_test.types import Plan, Reservation


def build(config: RankConfig, collectives: Collectives) -> FingerprintRunner | TransformerRunner:
    """The runner of this rank."""
    model = config.model
    if isinstance(model, FingerprintModel):
        return SplitFingerprints(config.num_blocks, config.block_size, model.vocab_size, collectives)
    weights = shard(_weights(config), collectives.rank, collectives.world_size)
    if config.backend is Backend.NCCL:
        weights = weights.to(device=torch.device("cuda", collectives.rank))
    return TransformerRunner(weights, config.num_blocks, config.block_size, product=SummedProduct(weights, collectives))


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

    def __call__(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        """[n, in] and [out, in] to [n, out]."""
        product = functional.linear(x, w)
        name = self._split.get(id(w))
        if name is not None:
            self._collectives.all_reduce(product, name)
        return product


class SplitFingerprints(FingerprintRunner):
    """The fingerprint model of docs/fingerprint.md with each word split by heads of 16 bits: this rank stores some of them, and
    0 in place of the others.

    The running sum and the digest are linear in the words read, so each rank adds up its own part and the ranks' sums are
    summed: the same bits as on one rank, whatever the number of ranks, since addition mod 2^64 has no order.
    """

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int, collectives: Collectives) -> None:
        super().__init__(num_blocks, block_size, vocab_size)
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

    def _sum(self, words: law.Words, what: str) -> law.Words:
        self._collectives.all_reduce(torch.from_numpy(words.view(np.int64)), what)
        return words
