"""One token from a row of weights and noise: a race over lanes, or a walk along the sum.

Owns: the two ways, each with how many numbers it draws for a token. Never: an address, or where weights come from.

A weight of 0 is never picked while another is above 0; a row without any weight above 0, or of NaN, leads to token 0, as a row
of logits of which everything is masked does (docs/fingerprint.md).
"""

from __future__ import annotations

from typing import Protocol

import torch


class Pick(Protocol):
    """A way to draw one token a row in proportion to weights, which need not sum to 1."""

    def num_lanes(self, vocab_size: int) -> int:
        """How many uniforms one draw takes."""

    def __call__(self, weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """int64 [rows], from weights [rows, vocab] >= 0 and uniforms [rows, lanes], float64 in (0, 1)."""


class Race:
    """Token w arrives at time E_w / weight_w, E_w = -log(U_w), and the first one wins: the Gumbel-max draw of `sampler.py`
    without its logarithms (an exponential race; Gumbel 1954). So with equal noise both choose the same token."""

    def num_lanes(self, vocab_size: int) -> int:
        """See `Pick`."""
        return vocab_size

    def __call__(self, weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """See `Pick`."""
        return fastest(weights, speeds(uniforms).to(weights.dtype))


class Walk:
    """The first token whose sum of weights from token 0 on exceeds U times the whole: one number for a token."""

    def num_lanes(self, vocab_size: int) -> int:
        """See `Pick`."""
        del vocab_size  # the same for every one
        return 1

    def __call__(self, weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """See `Pick`."""
        sums = weights.cumsum(1, dtype=torch.float64)
        token = torch.searchsorted(sums, uniforms[:, :1] * sums[:, -1:], right=True)[:, 0]
        beyond = torch.nonzero(token == weights.shape[1])[:, 0]
        if len(beyond):  # U times the whole rounded up to it, or it is 0: the last token that can be picked, or token 0
            token[beyond] = ((weights[beyond] > 0) * torch.arange(weights.shape[1], device=token.device)).argmax(1)
        return token


RACE, WALK = Race(), Walk()


def speeds(uniforms: torch.Tensor) -> torch.Tensor:
    """1 / E of the exponential variable E = -log(U); times a weight, the reciprocal of the time of arrival."""
    return uniforms.log().neg_().reciprocal_()


def fastest(weights: torch.Tensor, of_lanes: torch.Tensor) -> torch.Tensor:
    """The token of the greatest weight times speed, among equals the lowest; int64 [rows]. One product and one comparison a
    token, both exactly rounded, so that every back end comes to the same."""
    best: torch.Tensor = torch.where(weights > 0, weights * of_lanes, -1.0).argmax(1)
    return best
