"""What tasks on a tiny model are made of: its shape, a pool for its trials, prompts.

Owns these defaults. Never which tasks there are (`float_runner.py`, `float_depth.py`, `float_kernels.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from differential.setting import ModelSpec, Setting, World
from differential.trials import Trial
from engine_under_test.config import EngineConfig
from engine_under_test.model.weights import LlamaConfig
from engine_under_test.types import Request, SamplingParams

VOCAB = 97
NAN = VOCAB - 1  # the token that may be none: in no prompt that `prompts` draws
LAYERS = 2


def model_of(
    heads: int,
    kv_heads: int,
    head_size: int,
    seed: int,
    dtype: str = "float32",
    *,
    layers: int = LAYERS,
    ties_head: bool = True,
) -> ModelSpec:
    """A tiny random model."""
    shape = LlamaConfig(VOCAB, 48, layers, heads, kv_heads, head_size, 64, ties_head=ties_head)
    return ModelSpec("tiny", dtype, seed % 2**31, shape)


def trial(
    model: ModelSpec, setting: Setting, floors: Mapping[str, int], *, block_size: int = 4, slots: int = 384, **config: Any
) -> Trial:
    """A trial in a pool of so many slots, with a budget for everything at once unless ``config`` has another."""
    pool = {"num_blocks": slots // block_size, "max_tokens_per_step": 256, "max_num_seqs": 40, "vocab_size": VOCAB}
    return Trial(World(model, EngineConfig(block_size=block_size, **{**pool, **config}), setting), floors)


def prompts(chance: random.Random, lengths: Sequence[int], outputs: Callable[[int], int]) -> tuple[Request, ...]:
    """Greedy requests; the token that may be none is in no prompt."""
    return tuple(
        Request(f"r{number}", tuple(chance.randrange(NAN) for _ in range(length)), SamplingParams(max_tokens=outputs(number)))
        for number, length in enumerate(lengths)
    )
