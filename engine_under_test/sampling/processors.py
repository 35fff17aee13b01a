"""Which tokens of one row may be drawn: min-p, top-k, top-p, each a function of its own, as docs/fingerprint.md lays down.

Owns: the three steps between temperature and draw, in float64. Never: the order of all steps (`sampler.py`), noise, or torch.

A row is *scaled*: (logit - highest logit) / temperature, so that the most probable token stands at 0 and the others below.
A token that a step drops gets -inf, in place. Tokens are ordered by falling value, among equals by rising number, as greedy
decoding orders them; so k = 1 is greedy, and a step never keeps more tokens than it says.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from engine_under_test.types import SamplingParams

Scaled = npt.NDArray[np.float64]  # [vocabulary]


def has_processors(params: SamplingParams) -> bool:
    """Whether any of the three steps is on."""
    return params.min_p > 0 or params.top_k > 0 or params.top_p < 1


def apply_min_p(scaled: Scaled, min_p: float) -> None:
    """Keeps the tokens at least `min_p` times as probable as the most probable one (Nguyen et al., arXiv 2407.01082)."""
    if min_p > 0:
        np.copyto(scaled, -np.inf, where=scaled < math.log(min_p))


def apply_top_k(scaled: Scaled, top_k: int) -> None:
    """Keeps the `top_k` most probable tokens (Fan, Lewis, Dauphin, ACL 2018)."""
    if 0 < top_k < len(scaled):
        _keep_first(scaled, np.partition(scaled, -top_k)[-top_k], top_k)


def apply_top_p(scaled: Scaled, top_p: float) -> None:
    """Keeps the most probable tokens until their sum is `top_p` of what earlier steps left (Holtzman et al., ICLR 2020)."""
    if top_p < 1:
        ordered = np.sort(scaled[scaled > -np.inf])[::-1]
        if len(ordered):
            sums = np.exp(ordered).cumsum()
            count = int(np.searchsorted(sums, top_p * sums[-1])) + 1
            _keep_first(scaled, ordered[count - 1], count)


def _keep_first(scaled: Scaled, last: float, count: int) -> None:
    """Drops everything behind the first `count` tokens of the order, whose last value is `last`."""
    surplus = int(np.count_nonzero(scaled >= last)) - count
    np.copyto(scaled, -np.inf, where=scaled < last)
    if surplus > 0:
        scaled[np.flatnonzero(scaled == last)[-surplus:]] = -np.inf


def process(scaled: Scaled, params: SamplingParams) -> None:
    """All three steps on one row, in their order, in place."""
    apply_min_p(scaled, params.min_p)
    apply_top_k(scaled, params.top_k)
    apply_top_p(scaled, params.top_p)


def truncate(logits: Scaled, params: SamplingParams) -> None:
    """Gives the tokens of one row of logits that its parameters drop probability 0, in place. `temperature` > 0."""
    with np.errstate(over="ignore", invalid="ignore"):  # as in `sampler.gumbel_max`
        scaled = (logits - logits.max()) / params.temperature
    process(scaled, params)
    logits[scaled == -np.inf] = -np.inf
