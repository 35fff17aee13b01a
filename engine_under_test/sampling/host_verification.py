"""Rejection sampling of one row's drafts on the host, without torch: the rule and the noise addresses of `verification.py`.

Owns: the law that a place is drawn from, by the steps of `sampler.py`, and the verdict on drafts whose law is known. Never: who
proposed them, or where logits come from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_under_test.sampling.processors import has_processors, truncate
from engine_under_test.sampling.sampler import Draws, Logits, mask_early_stops, scaled
from engine_under_test.seams import Noise, Purpose

Laws = npt.NDArray[np.float64]  # [places, vocabulary]


class Verdict(NamedTuple):
    """How many drafts are kept, and the token behind them."""

    num_accepted: int
    token: int


class Address(NamedTuple):
    """Where a row's noise is drawn. ``position``: of its first draft."""

    seed: int
    choice: int
    position: int


def laws_of(logits: Logits, draws: Draws) -> Laws:
    """The probabilities that each row of adjusted logits is drawn from, all with a temperature. Masks `logits` in place."""
    mask_early_stops(logits, draws)
    for row, params in enumerate(draws.params):
        if has_processors(params):
            truncate(logits[row], params)
        logits[row] = scaled(logits[row], params)
    found: Laws = np.exp(logits)
    sums = found.sum(axis=1, keepdims=True)
    stuck = sums[:, 0] == 0  # nothing has a chance: token 0, as everywhere
    found[stuck, 0] = sums[stuck] = 1.0
    found /= sums
    return found


def verify_row(address: Address, drafts: Sequence[int], proposed: Laws, target: Laws, noise: Noise) -> Verdict:
    """Drafts kept and the token added. ``proposed`` [drafts, vocabulary]; ``target`` one place more. Both stay as they are."""
    num = len(drafts)
    where = (np.full(num, address.seed, np.uint64), np.full(num, address.choice, np.uint32))
    positions = np.arange(address.position, address.position + num, dtype=np.uint32)
    uniforms = noise.uniform(*where, positions, Purpose.ACCEPT, 1)[:, 0]
    places = np.arange(num)
    falls = uniforms * proposed[places, list(drafts)] >= target[places, list(drafts)]
    kept = int(falls.argmax()) if falls.any() else num
    weights = target[kept]
    if kept < num:
        left = np.maximum(weights - proposed[kept], 0)
        weights = left if left.max() > 0 else weights
    return Verdict(kept, _race(address, kept, weights, Purpose.RECOVER if kept < num else Purpose.SAMPLE, noise))


def _race(address: Address, kept: int, weights: npt.NDArray[np.float64], purpose: int, noise: Noise) -> int:
    """The first to arrive: see `picking.Race`."""
    where = (np.array([address.seed], np.uint64), np.array([address.choice], np.uint32))
    uniforms = noise.uniform(*where, np.array([address.position + kept], np.uint32), purpose, len(weights))[0]
    return int(np.where(weights > 0, weights * (1 / -np.log(uniforms)), -1.0).argmax())
