"""Rejection sampling of drafts by the law of docs/fingerprint.md, one number after the other, in plain Python.

Owns what a row whose drafts were drawn from a law must yield. Written from Leviathan et al. 2023, algorithm 1, and the noise
addresses of docs/fingerprint.md; it never looks at an engine's verification.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import numpy as np

from models.law import Law, Track
from models.words import uniforms

_SAMPLE, _ACCEPT, _RECOVER = 0, 1, 2


def verdict(law: Law, track: Track, first: int, drafts: Sequence[int], proposed: Any) -> list[int]:
    """The tokens of a row: the track holds its text, up to `first`, and the drafts. ``proposed[i][t]``: the chance with which
    draft i was token t."""
    kept: list[int] = []
    for place, draft in enumerate(drafts):
        own, theirs = law.chances(track, first + place), [float(chance) for chance in proposed[place]]
        (number,) = _noise(track, first + place, _ACCEPT, 1)
        if number * theirs[draft] < own[draft]:
            kept.append(draft)
            continue
        left = [max(one - other, 0.0) for one, other in zip(own, theirs, strict=True)]
        return [*kept, _first(left if any(left) else own, track, first + place, _RECOVER)]
    end = first + len(drafts)
    return [*kept, _first(law.chances(track, end), track, end, _SAMPLE)]


def _first(weights: Sequence[float], track: Track, position: int, purpose: int) -> int:
    """Whoever arrives first, each after -log(U) / weight."""
    times = {
        token: -log(number) / weight
        for token, (weight, number) in enumerate(zip(weights, _noise(track, position, purpose, len(weights)), strict=True))
        if weight > 0
    }
    return min(times, key=times.__getitem__, default=0)


def _noise(track: Track, position: int, purpose: int, lanes: int) -> list[float]:
    sampling = track.request.sampling
    found: list[float] = uniforms(sampling.seed, track.choice, np.array([position]), purpose, lanes)[0].tolist()
    return found
