"""What the logits of a row become in front of `min_tokens`, and which log-probabilities are told of them, as
docs/fingerprint.md ("Next token") lays down.

Owns the checker's own arithmetic of these steps, token by token, and the judgement of what an engine tells. What each step
looks at is a value (`Steps`), so that one of them can be shown something else. It never looks at an engine's sampler.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from engine_under_test.types import History, Logprobs, SamplingParams
from properties.grammar_cases import LANGUAGES, TEXTS
from properties.languages import allowed

Floats = npt.NDArray[np.float64]
Processors = Mapping[str, Callable[[Floats, History], None]]

OF_LOGPROBS = 1e-9  # by which two log-probabilities of the same logits may be off, for all that sums may do


@dataclass(frozen=True, slots=True)
class Steps:
    """What each step looks at. ``grammatical``: the tokens that a grammar allows, None without one. ``ahead``: the tokens
    behind which a bad word may end; ``seen``: those whose repetition is penalised, ``counted`` and ``present`` those of the
    other penalties. ``divides``: repetition divides whatever the sign."""

    allowed: tuple[int, ...]
    grammatical: frozenset[int] | None
    bad_words: tuple[tuple[int, ...], ...]
    ahead: tuple[int, ...]
    processors: tuple[str, ...]
    history: History
    bias: tuple[tuple[int, float], ...]
    repetition: float
    seen: tuple[int, ...]
    frequency: float
    counted: tuple[int, ...]
    presence: float
    present: tuple[int, ...]
    divides: bool = False


def steps_of(sampling: SamplingParams, history: History) -> Steps:
    """What a row with this history asks for."""
    prompt, output = tuple(history.prompt), tuple(history.output)
    return Steps(
        sampling.allowed_token_ids,
        grammatical(sampling, output),
        sampling.bad_words,
        output,
        sampling.processors,
        history,
        sampling.logit_bias,
        sampling.repetition_penalty,
        prompt + output,
        sampling.frequency_penalty,
        output,
        sampling.presence_penalty,
        output,
    )


def grammatical(sampling: SamplingParams, output: Sequence[int]) -> frozenset[int] | None:
    """The tokens that a grammar allows; None without one. Only the grammars of `properties.grammar_cases` have a law."""
    if sampling.grammar is None:
        return None
    return allowed(LANGUAGES[sampling.grammar], TEXTS, output, sampling.stop_token_ids)


ORDER = ("allowed", "grammar", "bad words", "processors", "bias", "repetition", "frequency", "presence")


def adjusted(logits: Floats, steps: Steps, processors: Processors | None = None, order: Sequence[str] = ORDER) -> Floats:
    """A copy of a row behind all steps."""
    row = logits.copy()
    for name in order:
        _STEPS[name](row, steps, processors or {})
    return row


def _allowed(row: Floats, steps: Steps, _processors: Processors) -> None:
    if steps.allowed:
        kept = set(steps.allowed)
        row[[token for token in range(len(row)) if token not in kept]] = -inf


def _grammar(row: Floats, steps: Steps, _processors: Processors) -> None:
    if steps.grammatical is not None:
        row[[token for token in range(len(row)) if token not in steps.grammatical]] = -inf


def _bad_words(row: Floats, steps: Steps, _processors: Processors) -> None:
    for *first, last in steps.bad_words:
        if not first or list(steps.ahead[-len(first) :]) == first:
            row[last] = -inf


def _processors(row: Floats, steps: Steps, processors: Processors) -> None:
    for name in steps.processors:
        processors[name](row, steps.history)


def _bias(row: Floats, steps: Steps, _processors: Processors) -> None:
    for token, amount in steps.bias:
        row[token] = float(row[token]) + amount


def _repetition(row: Floats, steps: Steps, _processors: Processors) -> None:
    if steps.repetition == 1:
        return
    for token in set(steps.seen):
        value = float(row[token])
        row[token] = value / steps.repetition if value > 0 or steps.divides else value * steps.repetition


def _frequency(row: Floats, steps: Steps, _processors: Processors) -> None:
    for token, count in Counter(steps.counted).items():
        row[token] = float(row[token]) - steps.frequency * count


def _presence(row: Floats, steps: Steps, _processors: Processors) -> None:
    for token in set(steps.present):
        row[token] = float(row[token]) - steps.presence


_STEPS: Mapping[str, Callable[[Floats, Steps, Processors], None]] = dict(
    zip(ORDER, (_allowed, _grammar, _bad_words, _processors, _bias, _repetition, _frequency, _presence), strict=True)
)


def slack_behind(sampling: SamplingParams, slack: float) -> float:
    """By how much an adjusted logit may be off if each logit is off by at most ``slack``: a repetition penalty is the only step
    that makes more of it (its two branches meet at 0, so that a change of sign makes no jump)."""
    penalty = sampling.repetition_penalty
    return slack * max(penalty, 1 / penalty)


# Log-probabilities


def logprobs(values: Floats) -> Floats:
    """The log-softmax of a row; -inf everywhere if nothing has a chance."""
    top = values.max()
    if top == -inf:
        return values.copy()
    wide = values.astype(np.longdouble) - np.longdouble(top)
    found: Floats = (wide - np.log(np.exp(wide).sum())).astype(np.float64)
    return found


def first(values: Floats, count: int) -> list[int]:
    """The highest so many, by falling value, among equals by rising number."""
    order: list[int] = np.lexsort((np.arange(len(values)), -values))[:count].tolist()
    return order


def wrong_telling(found: Logprobs | None, values: Floats, token: int, count: int | None, slack: float = 0.0) -> str | None:
    """What is wrong with what was told of a row from which ``token`` came, ``count`` being asked for; None if nothing is. Each
    of the values may be off by at most ``slack``."""
    if found is None or count is None:
        is_right = found is None and count is None
        return None if is_right else f"{'nothing' if found is None else 'something'} is told"
    size = 1 + min(count, len(values))
    if len(found.tokens) != size or len(found.values) != size:
        return f"{len(found.tokens)} tokens with {len(found.values)} values are told, not {size}"
    if found.tokens[0] != token:
        return f"token {found.tokens[0]} stands first, not token {token}"
    others = list(found.tokens[1:])
    if len(set(others)) != len(others) or not all(0 <= each < len(values) for each in others):
        return "a token is told twice, or is none of the vocabulary"
    if slack == 0 and others != (due := first(values, count)):
        place = next(place for place, (one, other) in enumerate(zip(others, due, strict=True)) if one != other)
        return f"token {others[place]} is told in place {place + 1}, not token {due[place]}"
    return _wrong_values(found, values, slack)


def _wrong_values(found: Logprobs, values: Floats, slack: float) -> str | None:
    truth, allowed = logprobs(values), 2 * slack + OF_LOGPROBS
    for token, value in zip(found.tokens, found.values, strict=True):
        due = float(truth[token])
        if not (value == due or abs(value - due) <= allowed):
            return f"token {token} has {value!r}, not {due!r}"
    told = found.tokens[1:]
    if told and len(told) < len(values):
        rest = np.delete(truth, list(told)).max()
        if min(truth[list(told)]) < rest - 2 * allowed:
            return "a token that is more probable is left out"
    if any(later > earlier + OF_LOGPROBS for earlier, later in zip(found.values[1:], found.values[2:], strict=False)):
        return "the tokens are not told in falling order"
    return None
