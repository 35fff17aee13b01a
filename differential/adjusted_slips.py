"""What a sampler would draw and tell that gets one of the steps in front of the temperature wrong, or tells of other values.

Owns the list of such slips, as `sampler_slips` does for the steps behind. Never a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from differential.adjusted_cases import PROCESSORS
from differential.sampler_cases import Case
from differential.sampler_slips import Slip
from engine_under_test.types import Logprobs, LogprobsMode, SamplingParams
from models.law_of_adjustments import ORDER, Floats, Steps, adjusted, first, logprobs, steps_of
from models.law_of_filters import Kept, UniformsAt, drawn, kept, masked, told_of

_CAP, _WINDOW = 16, 128  # a count or a memory that ends there
_MOST_WORDS, _LENGTH, _MOST_BIASES, _LARGEST, _MOST_TOLD = 8, 4, 16, 50.0, 20  # of who takes so many at most
_NEAR, _OFF = 0.97, 1e-4  # from where on a share is near 1; by which share of itself a filter is off
_COLD = 1e-3  # up to which a temperature makes infinities of logits
_BIAS_LAST = (*(name for name in ORDER if name != "bias"), "bias")


def adjusted_slips(case: Case, _row: Kept, noise: UniformsAt) -> Iterator[tuple[str, Slip]]:
    """Each slip that is possible in this row, and how to learn which token it leads to."""
    assert case.history is not None  # every case of this part has one
    steps = steps_of(case.sampling, case.history)
    for name, slipped in _steps(steps, case.sampling):
        yield name, partial(_token, case, slipped, noise, ORDER)
    for name, slipped in _capped(steps):
        yield name, partial(_token, case, slipped, noise, ORDER)
    if steps.bias and (steps.repetition != 1):
        yield "bias behind the penalties", partial(_token, case, steps, noise, _BIAS_LAST)


def _token(case: Case, steps: Steps, noise: UniformsAt, order: Sequence[str]) -> int:
    left = masked(adjusted(case.logits.astype(np.float64), steps, PROCESSORS, order), case.sampling, case.address.index)
    return drawn(kept(left, case.sampling), case.address, noise).token


def _steps(steps: Steps, sampling: SamplingParams) -> Iterator[tuple[str, Steps]]:
    prompt, output = steps.history
    whole = prompt + output
    if steps.allowed:
        yield "allowed tokens left out", replace(steps, allowed=())
    if steps.bad_words:
        yield "bad words left out", replace(steps, bad_words=())
        yield "bad words of single tokens only", replace(steps, bad_words=tuple(w for w in steps.bad_words if len(w) == 1))
        yield "bad words a token late", replace(steps, ahead=output[:-1])
        yield "bad words that begin in the prompt", replace(steps, ahead=whole)
    if steps.processors:
        yield "processors left out", replace(steps, processors=())
    if steps.bias:
        yield "bias left out", replace(steps, bias=())
    if steps.repetition != 1:
        yield "repetition left out", replace(steps, repetition=1.0)
        yield "repetition of the output alone", replace(steps, seen=output)
        yield "repetition of the prompt alone", replace(steps, seen=prompt)
        yield "repetition divides whatever the sign", replace(steps, divides=True)
        if set(prompt + output[-_WINDOW:]) != set(whole):
            yield f"repetition forgets after {_WINDOW} tokens", replace(steps, seen=prompt + output[-_WINDOW:])
    if steps.frequency:
        yield "frequency left out", replace(steps, frequency=0.0)
        yield "frequency counts once", replace(steps, counted=tuple(set(output)))
        yield "frequency counts the prompt", replace(steps, counted=whole)
        if len(capped := _at_most(output, _CAP)) < len(output):
            yield f"frequency counts at most {_CAP} times", replace(steps, counted=capped)
    if steps.presence:
        yield "presence left out", replace(steps, presence=0.0)
        yield "presence in the prompt", replace(steps, present=whole)
    if output and (steps.repetition != 1 or steps.frequency or steps.presence):
        before = output[:-1]
        yield "penalties without the last token", replace(steps, seen=prompt + before, counted=before, present=before)
    if sampling.temperature not in (0.0, 1.0) and (steps.frequency or steps.presence):
        by = sampling.temperature
        yield "penalties behind the temperature", replace(steps, frequency=steps.frequency * by, presence=steps.presence * by)


def _capped(steps: Steps) -> Iterator[tuple[str, Steps]]:
    """Who takes so many at most, or so large ones."""
    words, bias = steps.bad_words, steps.bias
    if len(words) > _MOST_WORDS:
        yield "bad words behind the eighth left out", replace(steps, bad_words=words[:_MOST_WORDS])
    if len(short := tuple(word for word in words if len(word) <= _LENGTH)) < len(words):
        yield "bad words of more than four tokens left out", replace(steps, bad_words=short)
    if len(bias) > _MOST_BIASES:
        yield "bias behind the sixteenth left out", replace(steps, bias=bias[:_MOST_BIASES])
    if max((abs(amount) for _, amount in bias), default=0) > _LARGEST:
        clipped = tuple((token, max(min(amount, _LARGEST), -_LARGEST)) for token, amount in bias)
        yield "bias of at most 50", replace(steps, bias=clipped)


def _at_most(output: Sequence[int], most: int) -> tuple[int, ...]:
    """Each token of the output, no more often than so many times."""
    counts = Counter(output)
    return tuple(token for token, count in counts.items() for _ in range(min(count, most)))


# What is told


def telling(values: Floats, token: int, count: int) -> Logprobs:
    """What is to be told of these values."""
    tokens = [token, *first(values, count)]
    return Logprobs(tuple(tokens), tuple(logprobs(values)[tokens].tolist()))


def told_values(case: Case, left: Floats, row: Kept) -> Floats | None:
    """Of which values a row's log-probabilities are told; None where rounding decides. ``left``: the row behind the mask."""
    if case.sampling.logprobs_mode is LogprobsMode.RAW:
        return case.logits.astype(np.float64)
    return told_of(left, row)


def _near(sampling: SamplingParams) -> Iterator[tuple[str, SamplingParams]]:
    """Filters a little off."""
    if _NEAR <= sampling.top_p < 1:
        yield "top-p near 1 left out", replace(sampling, top_p=1.0)
    if sampling.top_k:
        yield "top-k off by one", replace(sampling, top_k=sampling.top_k + 1)
    if 0 < sampling.min_p < 1:
        yield "min-p a little off", replace(sampling, min_p=min(1.0, sampling.min_p * (1 + _OFF)))
        yield "min-p a little off", replace(sampling, min_p=sampling.min_p * (1 - _OFF))


def told_others(left: Floats, sampling: SamplingParams) -> Floats:
    """What would be told of with other filters, rounding apart."""
    row = kept(left, sampling)
    values = np.full(len(left), -np.inf)
    values[row.tokens] = row.values
    return values


def telling_slips(case: Case, left: Floats, row: Kept, token: int) -> Iterator[tuple[str, Logprobs]]:
    """What would be told by who gets one thing wrong."""
    sampling, count = case.sampling, case.sampling.logprobs
    values = told_values(case, left, row)
    assert count is not None  # only such rows are asked
    assert values is not None
    raw, temperature = case.logits.astype(np.float64), sampling.temperature or 1.0
    with np.errstate(over="ignore", invalid="ignore"):
        warm = (left - left.max()) / temperature
    if sampling.logprobs_mode is LogprobsMode.RAW:
        yield "raw ones behind the steps", telling(left, token, count)
        if temperature > _COLD:
            yield "raw ones behind the temperature", telling(raw / temperature, token, count)
    else:
        yield "processed ones of the raw logits", telling(raw, token, count)
        if row.temperature:
            yield "processed ones in front of the filters", telling(warm, token, count)
            yield "processed ones without the temperature", telling(np.where(values > -np.inf, left, -np.inf), token, count)
        for name, other in _near(sampling):
            yield name, telling(told_others(left, other), token, count)
    told = telling(values, token, count)
    if count:
        yield "the token left out", Logprobs(told.tokens[1:], told.values[1:])
        yield "one too few", Logprobs(told.tokens[:-1], told.values[:-1])
        places = np.lexsort((-np.arange(len(values)), -values))[:count].tolist()
        tokens = [token, *places]
        if count > _MOST_TOLD and len(told.tokens) > _MOST_TOLD + 1:
            yield "at most 20 told", Logprobs(told.tokens[: _MOST_TOLD + 1], told.values[: _MOST_TOLD + 1])
        yield "equals by falling number", Logprobs(tuple(tokens), tuple(logprobs(values)[tokens].tolist()))
