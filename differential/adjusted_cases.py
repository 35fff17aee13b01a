"""Rows with a history for the sampler, asking for whatever changes logits in front of the temperature, and to be told.

Owns which options are asked together, made for the places where they go wrong: bad words of which the output holds a part, the
whole or one token less, and that begin in the prompt; penalties of tokens that are likely, repeated, of either sign, in the
output up to 300 times, or not in the last 300; a single allowed token; biases that decide; filters near an edge. Never a law
or a verdict.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from differential.sampler_cases import KINDS, Batch, Case, Row32, as_bfloat16, draw_sampling
from engine_under_test.types import History, LogprobsMode, SamplingParams
from models.law_of_adjustments import Floats, Processors

VOCABULARIES = (50_257, 97, 4_097, 97, 32_000, 97)
_MOST_ROWS = {97: 40}
_ROWS = 6
_LONG = 0.2  # of the rows have a long history
_EDGES = 0.08  # of the rows tell what a filter has kept near one of its edges
_COUNTS = (0, 1, 2, 5, 20, 21, 60, 10**9)
_MANY = 0.5  # of the rows that name bad words or biases name many of them


def _last_is_dropped(row: Floats, history: History) -> None:
    row[(history.prompt + history.output)[-1]] = -np.inf


def _length_is_raised(row: Floats, history: History) -> None:
    row[len(history.output) % len(row)] += 5.0


PROCESSORS: Processors = {"last is dropped": _last_is_dropped, "length is raised": _length_is_raised}


def adjusted_batches(seed: int) -> Iterator[Batch]:
    """For ever; each one depends on the seed and its own number alone. Some rows ask for nothing."""
    number = 0
    while True:
        chance = random.Random(f"adjusted rows {seed} {number}")
        rng = np.random.default_rng(chance.getrandbits(64))
        vocab_size = VOCABULARIES[number % len(VOCABULARIES)]
        is_bfloat16 = chance.random() < 0.2
        num_rows = _MOST_ROWS.get(vocab_size, _ROWS)
        yield Batch(tuple(_case(chance, rng, vocab_size, is_bfloat16) for _ in range(num_rows)), is_bfloat16)
        number += 1


def _case(chance: random.Random, rng: np.random.Generator, vocab_size: int, is_bfloat16: bool) -> Case:
    kind = chance.choice(tuple(KINDS))
    logits = KINDS[kind](chance, rng, vocab_size)
    if is_bfloat16:
        logits = as_bfloat16(logits)
    likely = np.argsort(-logits, kind="stable")[:12].tolist()
    is_long = chance.random() < _LONG
    history = _long_history(chance, likely) if is_long else _history(chance, likely, vocab_size)
    sampling = draw_sampling(chance, logits)
    if sampling.temperature and chance.random() < 0.5:
        sampling = replace(sampling, temperature=chance.choice((0.5, 1.0, 2.0)))
    if chance.random() < 0.3:
        sampling = replace(sampling, stop_token_ids=(likely[0], likely[-1]), max_tokens=90, min_tokens=chance.choice((0, 90)))
    if chance.random() < _EDGES:
        sampling = _at_an_edge(chance, sampling, logits)
    elif is_long:
        sampling = _penalising(chance, sampling, is_very_long=len(history.output) > 128)
    elif chance.random() < 0.9:
        sampling = _asking(chance, sampling, history, likely, vocab_size)
    prompt_len = len(history.prompt)
    return Case(kind, logits, sampling, chance.choice((0, 0, 1, 7)), prompt_len + len(history.output), prompt_len, history)


def _history(chance: random.Random, likely: list[int], vocab_size: int) -> History:
    """Likely tokens, some of them again and again, and others."""

    def text(length: int) -> tuple[int, ...]:
        few = [*likely[:3], *likely, chance.randrange(vocab_size)]
        return tuple(chance.choice(few) for _ in range(length))

    return History(text(chance.choice((1, 2, 5, 30))), text(chance.choice((0, 1, 2, 3, 8, 25))))


def _long_history(chance: random.Random, likely: list[int]) -> History:
    """Likely tokens that were said long ago and never since, and behind them one or two others, again and again."""
    few = chance.choice((1, 1, 2))
    begin = chance.choice((0, 1, 3))
    again = likely[begin : begin + few]
    old = [token for token in likely if token not in again]
    length = chance.choice((20, 40, 40, 150, 300))
    return History(
        (likely[-1],), (*chance.sample(old, chance.choice((1, 4, 9))), *(chance.choice(again) for _ in range(length)))
    )


def _penalising(chance: random.Random, sampling: SamplingParams, *, is_very_long: bool) -> SamplingParams:
    """One penalty, small enough that it matters how often a token came, or mostly that it came at all, long ago."""
    told = replace(sampling, logprobs=5, logprobs_mode=LogprobsMode.PROCESSED)
    if chance.random() < (0.25 if is_very_long else 0.6):
        return replace(told, frequency_penalty=chance.choice((0.02, 0.05, 0.1, 0.4, -0.1)))
    return replace(told, repetition_penalty=chance.choice((1.5, 3.0, 0.5) if is_very_long else (1.1, 1.5, 3.0, 0.5)))


def _at_an_edge(chance: random.Random, sampling: SamplingParams, logits: Row32) -> SamplingParams:
    """One filter, close to one that lets more or less through: what is told adds up over all that is kept."""
    temperature = chance.choice((0.5, 1.0, 2.0))
    falling = np.sort(logits[logits > -np.inf])[::-1][:100].astype(np.float64)
    with np.errstate(over="ignore"):
        shares = np.exp((falling - falling[0]) / temperature)
    share = float(chance.choice(shares.tolist()))
    told = replace(
        sampling, temperature=temperature, top_p=1.0, top_k=0, min_p=0.0, logprobs=5, logprobs_mode=LogprobsMode.PROCESSED
    )
    match chance.choice(("top-p", "top-p", "top-k", "min-p")):
        case "top-p":
            return replace(told, top_p=chance.choice((0.98, 0.985, 0.99, 0.995, 0.999, 0.9999)))
        case "top-k":
            return replace(told, top_k=chance.choice((1, 2, 3, 39, len(logits) - 1)))
        case _:
            return replace(told, min_p=min(1.0, max(1e-9, share * chance.choice((0.99999, 1.00001)))))


def _asking(
    chance: random.Random, sampling: SamplingParams, history: History, likely: list[int], vocab_size: int
) -> SamplingParams:
    """One or several options."""
    penalty = chance.choice((0.4, 0.7, 1.0, 2.0, -1.0, -2.0))
    changes: list[Mapping[str, object]] = [
        {"allowed_token_ids": tuple(chance.sample(likely, chance.choice((1, 2, 5, 11))))},
        {"bad_words": _bad_words(chance, history, likely, vocab_size)},
        {"bad_words": _bad_words(chance, history, likely, vocab_size)},
        {"logit_bias": _biases(chance, likely, vocab_size)},
        {"logit_bias": _biases(chance, likely, vocab_size), "repetition_penalty": chance.choice((3.0, 0.2))},
        {"processors": chance.choice((("last is dropped",), ("length is raised", "last is dropped")))},
        {"processors": chance.choice((("last is dropped",), ("length is raised", "last is dropped")))},
        {"repetition_penalty": chance.choice((1.1, 1.5, 3.0, 0.5))},
        {"repetition_penalty": chance.choice((1.1, 1.5, 3.0, 0.5))},
        {"frequency_penalty": penalty, "presence_penalty": chance.choice((0.0, 1.0, -2.0))},
        {"frequency_penalty": penalty, "presence_penalty": 0.0},
        {"frequency_penalty": chance.choice((0.0, 1.0)), "presence_penalty": penalty},
    ]
    chosen: dict[str, Any] = {}
    for change in chance.sample(changes, chance.choice((0, 1, 1, 2, 3))):
        chosen.update(change)
    if chance.random() < 0.5 or not chosen:
        count = chance.choice(_COUNTS if vocab_size < 1000 else _COUNTS[:-1])
        chosen.update(logprobs=count, logprobs_mode=chance.choice(tuple(LogprobsMode)))
    return replace(sampling, **chosen)


def _biases(chance: random.Random, likely: list[int], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """Of likely tokens; sometimes of many others in front of them, up to the 300 that an OpenAI client may send."""
    found = [(token, chance.choice((-100.0, -60.0, -3.0, -0.5, 0.75, 4.0, 100.0))) for token in chance.sample(likely, 4)]
    if chance.random() >= _MANY:
        return tuple(found)
    others = chance.sample(range(vocab_size), min(chance.choice((17, 40, 300)), vocab_size // 2))
    named = {token for token, _ in found}
    return (*((token, chance.choice((-0.5, 0.25))) for token in others if token not in named), *found)


def _bad_words(chance: random.Random, history: History, likely: list[int], vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """Words that the output is about to complete, or would be if it were looked at a token too early or in the prompt; in front
    of them sometimes many others."""
    output, text = history.output, history.prompt + history.output
    words: list[tuple[int, ...]] = [tuple(chance.choices(likely, k=chance.randint(2, 4)))]
    for token in chance.sample(likely[:6], 3):
        length = chance.choice((0, 1, 2, 3, 3, 5, 7))
        words += [
            (*output[max(len(output) - length, 0) :], token),
            (*output[:-1][max(len(output) - 1 - length, 0) :], token),
            (*text[max(len(text) - len(output) - 1 - length, 0) :], token),
        ]
    others = chance.randint(8, 40) if chance.random() < _MANY else 0
    rare = [tuple(chance.choices(range(vocab_size), k=chance.choice((1, 2, 3)))) for _ in range(others)]
    return tuple(dict.fromkeys((*rare, *chance.sample(words, 4))))


def highest_token(case: Case) -> int:
    """The highest number that a case names, -1 if it names none."""
    sampling, history = case.sampling, case.history
    named = [*sampling.allowed_token_ids, *(token for token, _ in sampling.logit_bias)]
    named += [token for word in sampling.bad_words for token in word]
    if history is not None:
        named += [*history.prompt, *history.output, len(history.output)]
    return max(named, default=-1)
