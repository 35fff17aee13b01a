"""The sampler for real logits, on the device where they are: the steps and the noise of `sampler.py`, token for token.

Owns: how it is made quick for a vocabulary of 50,000, by ordering only what may be kept and drawing noise only for what is
left. Never: another law. Scaled values, sums and scores are float64; greedy rows read the logits as they are and draw nothing.

Sums and exponentials may differ from numpy's in the last place: a choice can hang on that only where top-p's sum agrees with
p, or two scores with each other, to about 1e-13.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch

from engine_under_test.sampling.processors import has_processors, num_reaching
from engine_under_test.sampling.sampler import Draws
from engine_under_test.seams import Noise, Purpose
from engine_under_test.types import SamplingParams

_FIRST_LOOK = 256  # tokens ordered at first to find where top-p ends; four times as many each time that they do not suffice

Lanes = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]


def sample(logits: torch.Tensor, draws: Draws, noise: Noise) -> list[int]:
    """One token for each row of `logits` [rows, vocabulary], float32 or bfloat16, which stay as they are."""
    logits = _without_early_stops(logits, draws)
    tokens: list[int] = logits.argmax(dim=1).tolist()
    for row, params in enumerate(draws.params):
        if params.temperature > 0:
            tokens[row] = _draw(logits[row], tokens[row], params, draws.choices[row], draws.positions[row], noise)
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


def _draw(logits: torch.Tensor, best: int, params: SamplingParams, choice: int, position: int, noise: Noise) -> int:
    """One sample from a row whose highest logit is that of `best`."""
    top = float(logits[best])
    if not math.isfinite(top):
        return best if top > -math.inf or math.isnan(top) else 0  # as numpy's NaN scores end
    scaled = (logits.double() - top) / params.temperature
    lanes, left = survivors(scaled, params)
    if lanes is None:
        address = np.array([params.seed], np.uint64), np.array([choice], np.uint32), np.array([position], np.uint32)
        return _highest(left, noise.uniform(*address, Purpose.SAMPLE, len(left))[0])
    uniforms = noise.uniform_at(params.seed, choice, position, Purpose.SAMPLE, lanes)
    return int(lanes[_highest(left, uniforms)])


def _highest(scaled: Values, uniforms: Values) -> int:
    """Where scaled value plus Gumbel noise is highest; among equals the first."""
    return int((scaled - np.log(-np.log(uniforms))).argmax())


def survivors(scaled: torch.Tensor, params: SamplingParams) -> tuple[Lanes | None, Values]:
    """The tokens of one scaled row that may be drawn, rising, with their values; None in place of "all of them".

    Each step keeps a beginning of the one order (falling value, among equals rising token), so it is enough to know how many
    tokens are kept and the last one's value.
    """
    if not has_processors(params):
        return None, scaled.cpu().numpy()
    kept = scaled[scaled >= math.log(params.min_p)] if params.min_p > 0 else scaled
    if 0 < params.top_k < len(kept):
        kept = kept.topk(params.top_k).values
    if params.top_p < 1:
        kept = _until(kept, params.top_p)
    is_left = scaled >= kept.min()
    lanes = is_left.nonzero().flatten()
    values = scaled[lanes]
    if (surplus := len(lanes) - len(kept)) > 0:
        equals = (values == values.min()).nonzero().flatten()
        is_first = torch.ones(len(lanes), dtype=torch.bool, device=lanes.device)
        is_first[equals[-surplus:]] = False
        lanes, values = lanes[is_first], values[is_first]
    return lanes.cpu().numpy(), values.cpu().numpy()


def _until(kept: torch.Tensor, top_p: float) -> torch.Tensor:
    """The highest values until the sum of their probabilities reaches `top_p` of that of all."""
    target = top_p * float(kept.exp().sum())
    look = min(_FIRST_LOOK, len(kept))
    while True:
        ordered = kept.topk(look).values
        sums = ordered.exp().cumsum(dim=0)
        if look == len(kept) or float(sums[-1]) >= target:
            return ordered[: num_reaching(sums.cpu().numpy(), target)]
        look = min(4 * look, len(kept))
