"""The sampler for real logits: the steps, the arithmetic and the noise of `sampler.py`, so the same tokens.

Owns: how it is made quick for a vocabulary of 50,000: greedy rows stay on the device, rows with a temperature come to the
host once, one after the other, and noise is drawn only for tokens that may still be chosen. Never: a law of its own.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from engine_under_test.sampling.processors import apply_min_p, apply_top_k, apply_top_p
from engine_under_test.sampling.sampler import Draws
from engine_under_test.seams import Noise, Purpose
from engine_under_test.types import SamplingParams

Floats = npt.NDArray[np.float64]
Lanes = npt.NDArray[np.int64]

_FEW = 0.25  # share of the vocabulary up to which noise lane by lane is quicker than all of it


def sample(logits: torch.Tensor, draws: Draws, noise: Noise) -> list[int]:
    """One token for each row of `logits` [rows, vocabulary], float32 or bfloat16, which stay as they are."""
    logits = _without_early_stops(logits, draws)
    tokens: list[int] = logits.argmax(dim=1).tolist()
    warm = [row for row, params in enumerate(draws.params) if params.temperature > 0]
    if warm:
        on_host = logits[warm].to("cpu", torch.float64).numpy()
        for row, values in zip(warm, on_host, strict=True):
            tokens[row] = _draw(values, draws.params[row], draws.choices[row], draws.positions[row], noise)
    return tokens


def _without_early_stops(logits: torch.Tensor, draws: Draws) -> torch.Tensor:
    """The logits with the stop tokens of rows that have not emitted `min_tokens` tokens yet at -inf; a copy if there are."""
    vocab_size = logits.shape[1]
    masked = [
        (row, token)
        for row, (params, _choice, position, prompt_len) in enumerate(zip(*draws, strict=True))
        if params.min_tokens > position - prompt_len
        for token in params.stop_token_ids
        if 0 <= token < vocab_size
    ]
    if not masked:
        return logits
    rows, tokens = torch.tensor(masked, device=logits.device).T
    logits = logits.clone()
    logits[rows, tokens] = -torch.inf
    return logits


def _draw(logits: Floats, params: SamplingParams, choice: int, position: int, noise: Noise) -> int:
    """One sample from a row of logits: see `sampler.gumbel_max`."""
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (logits - logits.max()) / params.temperature
    lanes, left = _survivors(scaled, params)
    if not len(lanes):
        return int(scaled.argmax())  # everything masked, or not a number: as numpy's sampler ends
    uniforms = _uniforms(lanes, len(logits), params.seed, choice, position, noise)
    return int(lanes[(left - np.log(-np.log(uniforms))).argmax()])


def _survivors(scaled: Floats, params: SamplingParams) -> tuple[Lanes, Floats]:
    """The tokens that may be drawn, rising, with their values: each step sees only what the one before it left."""
    lanes = np.flatnonzero(scaled > -np.inf)
    left = scaled.take(lanes)
    steps: tuple[tuple[bool, Callable[[Floats], None]], ...] = (
        (params.min_p > 0, lambda values: apply_min_p(values, params.min_p)),
        (params.top_k > 0, lambda values: apply_top_k(values, params.top_k)),
        (params.top_p < 1, lambda values: apply_top_p(values, params.top_p)),
    )
    for is_on, apply in steps:
        if is_on:
            apply(left)
            kept = np.flatnonzero(left > -np.inf)
            lanes, left = lanes.take(kept), left.take(kept)
    return lanes, left


def _uniforms(lanes: Lanes, num_lanes: int, seed: int, choice: int, position: int, noise: Noise) -> Floats:
    if len(lanes) <= _FEW * num_lanes:
        return noise.uniform_at(seed, choice, position, Purpose.SAMPLE, lanes)
    address = np.array([seed], np.uint64), np.array([choice], np.uint32), np.array([position], np.uint32)
    whole: Floats = noise.uniform(*address, Purpose.SAMPLE, num_lanes)[0]
    return whole.take(lanes)
