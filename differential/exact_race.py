"""The race over lanes by itself: each token wins as often as its weight says. Integrated, not sampled. (ST-2)

For three weights w, token t wins in the box of the other lanes' numbers below thresholds that depend on its own number u: lane
s must be later, U_s < u^(w_s / w_t). The thresholds are measured by bisection through the way to pick that is under test,
the integral over u is Gauss-Legendre's after u = x^6, which makes it a polynomial for the weights used here.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from differential.well_formed import Malformed, answered, whole_numbers
from engine_under_test.sampling.picking import Pick
from properties.verdict import Violation

WEIGHTS = (1.0, 2.0, 3.0)
_TOLERANCE = 1e-9
_NODES = 24
_LATEST = 1e-300  # a uniform so small that its lane is last

Floats = npt.NDArray[np.float64]


def race_violation(pick: Pick) -> Violation | None:
    """What is wrong with the chances of three tokens, and with a fourth of weight 0."""
    right = np.array(WEIGHTS) / sum(WEIGHTS)
    subject = f"the race of tokens with weights {', '.join(f'{weight:g}' for weight in WEIGHTS)}"
    try:
        found = win_chances(pick)
    except Malformed as error:
        return Violation("ST-2", "sampler", subject, str(error), "one of these tokens for each row")
    if np.abs(found - right).max() <= _TOLERANCE:
        return None
    bias = float(np.abs(found - right).sum()) / 2
    return Violation("ST-2", "sampler", subject, f"chances {_told(found)}, a bias of {bias:.2%} total variation", _told(right))


def _told(chances: Floats) -> str:
    return ", ".join(f"{each:.9f}" for each in chances)


def win_chances(pick: Pick) -> Floats:
    """The probability of each token to win."""
    places, shares = np.polynomial.legendre.leggauss(_NODES)
    x = (places + 1) / 2
    own, measure = x**6, shares / 2 * 6 * x**5
    chances = []
    for token in range(len(WEIGHTS)):
        volume = np.ones(len(own))
        for other in range(len(WEIGHTS)):
            if other != token:
                volume *= _latest_loss(pick, token, other, own)
        chances.append(float((measure * volume).sum()))
    return np.array(chances)


def _latest_loss(pick: Pick, token: int, other: int, own: Floats) -> Floats:
    """The greatest uniform of lane `other` with which `token` still wins, for each uniform of its own lane."""
    low, high = np.zeros(len(own)), np.ones(len(own))
    weights = torch.tensor(WEIGHTS, dtype=torch.float64).expand(len(own), -1)
    for _turn in range(60):
        middle = np.clip((low + high) / 2, _LATEST, None)
        uniforms = np.full((len(own), len(WEIGHTS)), _LATEST)
        uniforms[:, token], uniforms[:, other] = own, middle
        won = answered("a race", partial(pick, weights, torch.from_numpy(uniforms)))
        wins = whole_numbers(won, "token", len(own), 0, len(WEIGHTS) - 1) == token
        low, high = np.where(wins, middle, low), np.where(wins, high, middle)
    return high
