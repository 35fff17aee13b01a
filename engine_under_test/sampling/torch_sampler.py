"""The sampler for real logits: the steps, the arithmetic and the noise of `sampler.py`, so the same tokens.

Owns: how it is made quick for a vocabulary of 50,000: plain greedy rows stay on the device, the others come to the host once,
one after the other, and noise is drawn only for tokens that may still be chosen. Never: a law of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import torch

from engine_under_test.sampling.adjustments import NO_PROCESSORS, Processors, stuck_after
from engine_under_test.sampling.logprobs import told
from engine_under_test.sampling.processors import apply_min_p, apply_top_k, apply_top_p
from engine_under_test.sampling.sampler import Draws, Sampled, asks_for, mask_early_stops, scaled
from engine_under_test.seams import Grammars, Noise, Purpose
from engine_under_test.types import Logprobs, LogprobsMode, SamplingParams

Floats = npt.NDArray[np.float64]
Lanes = npt.NDArray[np.int64]

_FEW = 0.25  # share of the vocabulary up to which noise lane by lane is quicker than all of it
_SMALL_VOCABULARY = 4096  # up to which all noise of all rows at once is quicker still


def sample(logits: torch.Tensor, draws: Draws, noise: Noise) -> list[int]:
    """One token for each row of `logits` [rows, vocabulary], float32 or bfloat16, which stay as they are."""
    return sample_and_tell(logits, draws, noise).tokens


def sample_and_tell(
    logits: torch.Tensor,
    draws: Draws,
    noise: Noise,
    processors: Processors = NO_PROCESSORS,
    grammars: Grammars | None = None,
    settled: Mapping[int, int] = MappingProxyType({}),
) -> Sampled:
    """The same, with log-probabilities for the rows that ask. ``settled``: see `sampler.sample_and_tell`."""
    logits = logits.float()
    histories = draws.histories or (None,) * len(draws.params)
    on_host = [
        row
        for row, (params, history) in enumerate(zip(draws.params, histories, strict=True))
        if params.temperature > 0 or history is not None
    ]
    tokens = _greedy(logits, draws, on_host)
    if not on_host:
        return Sampled(tokens)
    rows: Floats = logits[on_host].to("cpu", torch.float64).numpy()
    warm = [row for row in on_host if draws.params[row].temperature > 0 and row not in settled]
    ahead: dict[int, Floats] = {}
    if warm and logits.shape[1] <= _SMALL_VOCABULARY:
        ahead = dict(zip(warm, _noise_of_rows(draws, warm, logits.shape[1], noise), strict=True))
    logprobs: list[Logprobs | None] = [None] * len(tokens)
    stuck: dict[int, str] = {}
    for place, row in enumerate(on_host):
        params, history, logits_of_row = draws.params[row], histories[row], rows[place : place + 1]
        raw = logits_of_row[0].copy() if asks_for(params, LogprobsMode.RAW) else None
        if history is not None and params.is_adjusted:
            why = stuck_after(logits_of_row[0], params, history, processors, grammars)
            if why is not None:
                stuck[row] = why
        mask_early_stops(logits_of_row, _one(draws, row))
        drawn = scaled(logits_of_row[0], params)
        left, tokens[row] = _draw(drawn, draws, row, noise, ahead.get(row), settled.get(row))
        if params.logprobs is not None:
            logprobs[row] = told(left if raw is None else raw, tokens[row], params.logprobs)
    return Sampled(tokens, logprobs if any(logprobs) else (), stuck)


def _greedy(logits: torch.Tensor, draws: Draws, but_for: Sequence[int]) -> list[int]:
    """The highest logit of each row on the device; what is found for the rows that come to the host does not count."""
    if len(but_for) == len(draws.params):
        return [0] * len(but_for)
    logits = _without_early_stops(logits, draws, frozenset(but_for))
    tokens: list[int] = logits.argmax(dim=1).tolist()
    return tokens


def _one(draws: Draws, row: int) -> Draws:
    return Draws([draws.params[row]], [draws.choices[row]], [draws.positions[row]], [draws.prompt_lens[row]])


def _draw(drawn: Floats, draws: Draws, row: int, noise: Noise, ahead: Floats | None, settled: int | None) -> tuple[Floats, int]:
    """One row (`sampler.scaled`): what of it may be drawn, the rest at -inf, and the token. ``ahead``: its noise, if that was
    drawn already; ``settled``: its token, if that was found already."""
    params = draws.params[row]
    if params.temperature == 0:
        return drawn, int(drawn.argmax())
    lanes, left = _survivors(drawn, params)
    if settled is not None:
        uniforms = np.full(len(lanes), 0.5)
    elif ahead is not None:
        uniforms = ahead.take(lanes)
    elif len(lanes) <= _FEW * len(drawn):
        uniforms = noise.uniform_at(params.seed, draws.choices[row], draws.positions[row], Purpose.SAMPLE, lanes)
    else:
        uniforms = _noise_of_rows(draws, [row], len(drawn), noise)[0].take(lanes)
    # With nothing left (all masked, or not a number) it ends as numpy's sampler does.
    token = int(lanes[(left - np.log(-np.log(uniforms))).argmax()] if len(lanes) else 0)
    token = token if settled is None else settled
    if params.logprobs is None or params.logprobs_mode is LogprobsMode.RAW:
        return drawn, token
    kept = np.full(len(drawn), -np.inf)
    kept[lanes] = left
    return kept, token


def _noise_of_rows(draws: Draws, rows: Sequence[int], num_lanes: int, noise: Noise) -> Floats:
    return noise.uniform(
        np.array([draws.params[row].seed for row in rows], dtype=np.uint64),
        np.array([draws.choices[row] for row in rows], dtype=np.uint32),
        np.array([draws.positions[row] for row in rows], dtype=np.uint32),
        Purpose.SAMPLE,
        num_lanes,
    )


def _without_early_stops(logits: torch.Tensor, draws: Draws, but_for: frozenset[int]) -> torch.Tensor:
    """The logits with the stop tokens of rows that have not emitted `min_tokens` tokens yet at -inf; a copy if there are."""
    vocab_size = logits.shape[1]
    masked = [
        (row, token)
        for row, (params, _choice, position, prompt_len) in enumerate(zip(*draws[:4], strict=True))
        if params.min_tokens > position - prompt_len and row not in but_for
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
