"""Which token a row of logits leads to, and which others could stand in its place, as docs/fingerprint.md ("Next token",
"Noise") lays down: mask, greedy, temperature, min-p, top-k, top-p, draw, over a vocabulary of any size; behind the steps of
`law_of_adjustments`, if a history is given.

Owns the checker's sampler of real logits, and what counts as a tie there. Two things make ties, and nothing else does:

- Rounding. A score is certain to `_OF_SCORES`, since two logarithms and a sum are off by a few units of the last place of
  at most 23; a sum of n shares to (n + 8) * 2^-52, whatever the order of adding (exactly, where every share is 0 or
  1); log(min_p) to four units. Comparing two logits, or a logit over the temperature with another, is exact: ties at the k-th
  place and at the maximum go to the lower tokens, always.
- Slack. Where the logits are an oracle's, each may be off by `slack`. A token is *sure* if it is kept however they are off,
  and *possible* if it is kept in some way; the one that comes is possible, and no sure one beats it by more than twice
  `slack`, over the temperature.

It never looks at an engine's sampler or noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import numpy as np
import numpy.typing as npt

from engine_under_test.types import History, SamplingParams
from models.law_of_adjustments import Processors, adjusted, slack_behind, steps_of
from models.words import SAMPLE, philox, uniforms

Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
UniformsAt = Callable[["Address", Tokens], Floats]

_OF_SCORES = 3e-14  # by which two scores may be off
_OF_LOG = 4 * 2.0**-52  # of log(min_p), of its size
_ALL = 300.0  # from this slack over the temperature on, nothing is certain (and nothing overflows below it)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a token is drawn: ``position`` is its index in prompt + output, ``index`` that in the output."""

    seed: int
    choice: int
    position: int
    index: int


def uniforms_at(address: Address, lanes: Tokens) -> Floats:
    """The noise at some lanes of one draw."""
    if len(lanes) and 4 * len(lanes) > lanes[-1]:  # most of the beginning: four lanes come at once
        of_all: Floats = uniforms(address.seed, address.choice, np.array([address.position]), SAMPLE, int(lanes.max()) + 1)[0]
        return of_all[lanes]
    counters = np.empty((len(lanes), 4), np.uint64)
    counters[:, 0], counters[:, 1], counters[:, 2] = address.choice, address.position, SAMPLE
    counters[:, 3] = lanes >> 2
    words = philox(counters, address.seed)[np.arange(len(lanes)), lanes & 3]
    found: Floats = (words.astype(np.float64) + 0.5) * 2.0**-32
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The tokens of a row that may come, in rising order.

    ``values``: (logit - highest logit) / temperature; greedy: the logits. ``is_sure``: kept in any case. ``spread``: by how
    much two values may be off against each other. ``temperature`` 0: greedy.
    """

    tokens: Tokens
    values: Floats
    is_sure: Flags
    spread: float
    temperature: float


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """What the law says of one draw. ``token`` is the law's; ``allowed``: those that can not be told from it, it among them.
    ``tokens``, ``scores``: all that were in the draw; in units of the logits."""

    token: int
    allowed: frozenset[int]
    tokens: Tokens
    scores: Floats

    def behind(self, token: int) -> float:
        """How far a token's score lies below that of the law's, in logits; infinite for one that was not in the draw."""
        place = np.flatnonzero(self.tokens == token)
        best = np.flatnonzero(self.tokens == self.token)
        return float(self.scores[best[0]] - self.scores[place[0]]) if len(place) and len(best) else np.inf


def masked(logits: Floats, sampling: SamplingParams, index: int) -> Floats:
    """The row without its stop tokens, while `min_tokens` are not out: output number ``index`` is to be chosen."""
    if index >= sampling.min_tokens:
        return logits
    left = logits.copy()
    for token in sampling.stop_token_ids:
        if 0 <= token < len(left):
            left[token] = -np.inf
    return left


def kept(logits: Floats, sampling: SamplingParams, slack: float = 0.0) -> Kept:
    """What of a masked row may come. No entry is NaN."""
    temperature, top = sampling.temperature, logits.max()
    if top == -np.inf:  # all masked: token 0, as the document says
        return Kept(np.zeros(1, np.int64), np.zeros(1), np.ones(1, bool), 0.0, 0.0)
    if temperature == 0:
        tokens = np.flatnonzero(logits >= top - 2 * slack)[: None if slack else 1]
        return Kept(tokens, logits[tokens], np.ones(len(tokens), bool), 2 * slack, 0.0)
    with np.errstate(over="ignore"):
        values = (logits - top) / temperature
    tokens = np.flatnonzero(values > -np.inf)
    values, error = values[tokens], slack / temperature
    if error > _ALL:
        return Kept(tokens, values, np.zeros(len(tokens), bool), np.inf, temperature)
    is_sure, is_possible = _filtered(values, sampling, error)
    return Kept(tokens[is_possible], values[is_possible], is_sure[is_possible], 2 * error, temperature)


def drawn(row: Kept, address: Address, noise: UniformsAt = uniforms_at) -> Drawn:
    """The draw among what was kept."""
    if row.temperature == 0:
        return Drawn(int(row.tokens[row.values.argmax()]), frozenset(row.tokens.tolist()), row.tokens, row.values)
    tokens, has_sure = row.tokens, bool(row.is_sure.any())
    found = noise(address, tokens)
    scores = row.values - np.log(-np.log(found))
    best = int((np.where(row.is_sure, scores, -np.inf) if has_sure else scores).argmax())
    near = scores >= scores[best] - row.spread - _OF_SCORES if has_sure else np.ones(len(tokens), bool)
    if row.spread == 0:  # equal logits with equal noise are equal everywhere: the lowest of them
        near &= (row.values != row.values[best]) | (found != found[best])
        near[best] = True
    return Drawn(int(tokens[best]), frozenset(tokens[near].tolist()), tokens, scores * row.temperature)


def next_token(
    logits: Floats,
    sampling: SamplingParams,
    address: Address,
    slack: float = 0.0,
    noise: UniformsAt = uniforms_at,
    history: History | None = None,
    processors: Processors | None = None,
) -> Drawn:
    """The law of one row: what its logits, each off by at most ``slack``, may lead to at an address behind a history, which is
    needed by who asks for more than a mask and filters."""
    if history is not None and sampling.is_adjusted:
        logits, slack = adjusted(logits, steps_of(sampling, history), processors), slack_behind(sampling, slack)
    return drawn(kept(masked(logits, sampling, address.index), sampling, slack), address, noise)


def told_of(left: Floats, row: Kept) -> Floats | None:
    """Of which values processed log-probabilities are told, given the masked row and what may come of it. None where rounding
    decides what that is."""
    if row.temperature == 0:
        return left  # greedy, or nothing left
    if not row.is_sure.all():
        return None
    values = np.full(len(left), -np.inf)
    values[row.tokens] = row.values
    return values


def _filtered(values: Floats, sampling: SamplingParams, error: float) -> tuple[Flags, Flags]:
    """Which of the values min-p, top-k and top-p keep: surely, and possibly."""
    is_sure, is_possible = np.ones(len(values), bool), np.ones(len(values), bool)
    if sampling.min_p > 0:
        least = log(sampling.min_p)
        margin = 2 * error + _OF_LOG * abs(least)
        is_sure, is_possible = values >= least + margin, values >= least - margin
    if sampling.top_k == 0 and sampling.top_p >= 1:
        return is_sure, is_possible
    order = _order(values, is_sure, is_possible, sampling.top_k, error)
    sure, possible = _among_the_first(values[order], is_sure[order], is_possible[order], sampling, error)
    is_sure, is_possible = np.zeros(len(values), bool), np.zeros(len(values), bool)
    is_sure[order], is_possible[order] = sure, possible
    return is_sure, is_possible


def _order(values: Floats, is_sure: Flags, is_possible: Flags, top_k: int, error: float) -> Tokens:
    """The places of what is possible, by falling value, among equals by rising number: all that top-k can look at."""
    places = np.flatnonzero(is_possible)
    enough = top_k + len(places) - int(np.count_nonzero(is_sure))
    if top_k > 0 and enough < len(places):
        places = places[values[places] >= np.partition(values[places], -enough)[-enough] - 2 * error]
    return places[np.argsort(-values[places], kind="stable")]


def _among_the_first(
    values: Floats, is_sure: Flags, is_possible: Flags, sampling: SamplingParams, error: float
) -> tuple[Flags, Flags]:
    """Top-k and top-p over values in falling order: a token stays while fewer than k, or less than p, stand ahead of it."""
    surely, possibly, counts_itself = _ahead(values, error)
    if sampling.top_k > 0:
        least_ahead = _before(is_sure)[surely]
        most_ahead = _before(is_possible)[possibly] - (is_possible & counts_itself)
        is_sure, is_possible = is_sure & (most_ahead < sampling.top_k), is_possible & (least_ahead < sampling.top_k)
    if sampling.top_p < 1:
        shares = np.exp(values)
        is_exact = error == 0 and bool(((shares == 0) | (shares == 1)).all())
        margin = 0.0 if is_exact else (len(values) + 8) * 2.0**-52
        least, most = _before(shares * is_sure), _before(shares * is_possible)
        least_ahead = least[surely] * exp(-error)
        most_ahead = (most[possibly] - shares * (is_possible & counts_itself)) * exp(error)
        is_sure = is_sure & (most_ahead < sampling.top_p * float(least[-1]) * exp(-error) * (1 - margin))
        is_possible = is_possible & (least_ahead < sampling.top_p * float(most[-1]) * exp(error) * (1 + margin))
    return is_sure, is_possible


def _ahead(values: Floats, error: float) -> tuple[Tokens, Tokens, bool]:
    """For each value: how many stand surely ahead of it, and how many may; and whether the latter count itself."""
    if error == 0:
        places = np.arange(len(values))
        return places, places, False
    rising = -values
    surely = np.searchsorted(rising, rising - 2 * error, side="left")
    return surely, np.searchsorted(rising, rising + 2 * error, side="right"), True


def _before(column: Flags | Floats) -> npt.NDArray[np.longdouble]:
    """Sums of the first 0, 1, 2, ... entries, in more digits than anybody's."""
    sums = np.zeros(len(column) + 1, np.longdouble)
    np.cumsum(column, out=sums[1:])
    return sums
