"""The sampler for real logits: the steps, the arithmetic and the noise of `sampler.py`, so the same tokens.

Owns: how it is made quick for a vocabulary of 50,000: greedy rows stay on the device, rows with a temperature come to the
host once, one after the other, and noise is drawn only for tokens that may still be chosen. Never: a law of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
_SMALL_VOCABULARY = 4096  # up to which all noise of all rows at once is quicker still


def sample(logits: torch.Tensor, draws: Draws, noise: Noise) -> list[int]:
    """One token for each row of `logits` [rows, vocabulary], float32 or bfloat16, which stay as they are."""
    logits = _without_early_stops(logits, draws)
    tokens: list[int] = logits.argmax(dim=1).tolist()
    warm = [row for row, params in enumerate(draws.params) if params.temperature > 0]
    if not warm:
        return tokens
    on_host: Floats = logits[warm].to("cpu", torch.float64).numpy()
    whole = _noise_of_rows(draws, warm, logits.shape[1], noise) if logits.shape[1] <= _SMALL_VOCABULARY else None
    for place, row in enumerate(warm):
        params = draws.params[row]
        with np.errstate(over="ignore", invalid="ignore"):  # as in `sampler.gumbel_max`
            scaled = (on_host[place] - on_host[place].max()) / params.temperature
        lanes, left = _survivors(scaled, params)
        if whole is not None:
            uniforms = whole[place].take(lanes)
        elif len(lanes) <= _FEW * len(scaled):
            uniforms = noise.uniform_at(params.seed, draws.choices[row], draws.positions[row], Purpose.SAMPLE, lanes)
        else:
            uniforms = _noise_of_rows(draws, [row], len(scaled), noise)[0].take(lanes)
        # With nothing left (all masked, or not a number) it ends as numpy's sampler does.
        tokens[row] = int(lanes[(left - np.log(-np.log(uniforms))).argmax()] if len(lanes) else scaled.argmax())
    return tokens


def _noise_of_rows(draws: Draws, rows: Sequence[int], num_lanes: int, noise: Noise) -> Floats:
    return noise.uniform(
        np.array([draws.params[row].seed for row in rows], dtype=np.uint64),
        np.array([draws.choices[row] for row in rows], dtype=np.uint32),
        np.array([draws.positions[row] for row in rows], dtype=np.uint32),
        Purpose.SAMPLE,
        num_lanes,
    )


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
