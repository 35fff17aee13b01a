"""What a row with drafts must come to, given its logits, the law that its drafts were drawn from, and the noise: token by
token, and what is told of each.

Owns the account of one row, in plain numbers: the processed law of each place by `models.law_of_adjustments` and
`models.law_of_filters`, the rule and its addresses (docs/fingerprint.md; Leviathan et al. 2023, algorithm 1), and what counts
as undecided: numbers so near to each other that rounding decides. It never looks at an engine's verification, sampler or noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from differential.adjusted_cases import PROCESSORS
from engine_under_test.types import History, Logprobs, LogprobsMode, Request, SamplingParams
from models.law_of_adjustments import adjusted, steps_of, wrong_telling
from models.law_of_filters import Kept, kept, masked, told_of
from models.words import uniforms

Floats = npt.NDArray[np.float64]
SAMPLE, ACCEPT, RECOVER, DRAFT = 0, 1, 2, 3
_OF_CHANCES = 1e-9  # by which two numbers may be off, of their size, where p and q come from a softmax
_OF_PARTS = 1e-12  # by which a weight p - q may be off


class Place(NamedTuple):
    """Where a token of a choice stands; ``position``: its index in prompt + output."""

    request: Request
    choice: int
    position: int


@dataclass(frozen=True, slots=True, eq=False)
class Chances:
    """The processed law of one place. ``left``: its logits behind adjustments and mask. ``p`` [vocabulary]; None where rounding
    decides what the filters keep."""

    left: Floats
    row: Kept
    p: Floats | None


@dataclass(frozen=True, slots=True)
class Account:
    """``tokens``: what must come, as far as it is decided; ``is_whole``: to the end. ``num_kept``: drafts among them."""

    tokens: tuple[int, ...]
    num_kept: int
    is_whole: bool


def chances_of(logits: Floats, sampling: SamplingParams, history: History) -> Chances:
    """The law of the token behind a history."""
    values = adjusted(logits, steps_of(sampling, history), PROCESSORS) if sampling.is_adjusted else logits
    left = masked(values, sampling, len(history.output))
    row = kept(left, sampling)
    if not row.is_sure.all():
        return Chances(left, row, None)
    found = np.zeros(len(left))
    if row.temperature == 0:
        found[row.tokens[0]] = 1.0
    else:
        shares = np.exp(row.values)
        found[row.tokens] = shares / shares.sum()
    return Chances(left, row, found)


def noise(at: Place, purpose: int, lanes: int) -> Floats:
    """The numbers of one draw."""
    found: Floats = uniforms(at.request.sampling.seed, at.choice, np.array([at.position]), purpose, lanes)[0]
    return found


def first_of(weights: Floats, numbers: Floats, slack: float = 0.0) -> int | None:
    """Who arrives first, each after -log(U) / weight; None if another may, each weight being off by ``slack``."""
    speeds = -1 / np.log(numbers)
    likely = np.where(weights > slack, (weights - slack) * speeds, -1.0)
    best = int(likely.argmax())
    others = np.where(weights > 0, (weights + slack) * speeds * (1 + _OF_CHANCES), -1.0)
    others[best] = -1.0
    return best if likely[best] > 0 and likely[best] > others.max() else None


def account_of(first: Place, laws: Sequence[Chances], drafts: Sequence[int], proposed: Sequence[Floats]) -> Account:
    """The tokens of a row whose first draft stands at ``first``; ``laws``: one place more than drafts, each behind the drafts
    before it."""
    tokens: list[int] = []
    for number, draft in enumerate(drafts):
        at, law = first._replace(position=first.position + number), laws[number]
        if law.p is None:
            return Account(tuple(tokens), number, False)
        is_kept = _is_kept(at, law, draft, float(proposed[number][draft]))
        if is_kept is None:
            return Account(tuple(tokens), number, False)
        if not is_kept:
            return _ended(tokens, number, _behind_a_fall(at, law, law.p, proposed[number]))
        tokens.append(draft)
    at, law = first._replace(position=first.position + len(drafts)), laws[-1]
    if law.p is None:
        return Account(tuple(tokens), len(drafts), False)
    return _ended(tokens, len(drafts), _drawn(at, law, law.p))


def _ended(tokens: Sequence[int], num_kept: int, last: int | None) -> Account:
    return Account((*tokens, *(() if last is None else (last,))), num_kept, last is not None)


def _is_kept(at: Place, law: Chances, draft: int, given: float) -> bool | None:
    """None: rounding decides."""
    assert law.p is not None
    if law.row.temperature == 0:
        return bool(law.p[draft] == 1)
    number, own = float(noise(at, ACCEPT, 1)[0]) * given, float(law.p[draft])
    if abs(number - own) <= _OF_CHANCES * own:
        return None
    return number < own


def _behind_a_fall(at: Place, law: Chances, own: Floats, given: Floats) -> int | None:
    if law.row.temperature == 0:
        return int(own.argmax())
    left = np.maximum(own - given, 0.0)
    if left.max() <= 1e3 * _OF_PARTS:  # p and q are equal but for rounding
        return None
    return first_of(left, noise(at, RECOVER, len(left)), _OF_PARTS)


def _drawn(at: Place, law: Chances, own: Floats) -> int | None:
    return int(own.argmax()) if law.row.temperature == 0 else first_of(own, noise(at, SAMPLE, len(own)))


def wrong_of_told(told: Logprobs | None, sampling: SamplingParams, logits: Floats, law: Chances, token: int) -> str | None:
    """What is wrong with what was told of a token; None too where rounding decides what it is told of."""
    values: Floats | None = logits
    if sampling.logprobs is not None and sampling.logprobs_mode is LogprobsMode.PROCESSED:
        values = told_of(law.left, law.row)
    if values is None:
        return None
    return wrong_telling(told, values, token, sampling.logprobs)
