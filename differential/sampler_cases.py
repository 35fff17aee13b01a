"""Rows of logits for the sampler, drawn at random and made for the places where samplers go wrong, in batches of mixed rows.

Owns which logits, parameters and addresses are asked: ties at the maximum, at the k-th place and where p is reached; stop
tokens that are the likely ones; seeds, positions and vocabularies beyond what smaller words hold. Never a law or a verdict.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine_under_test.types import History, SamplingParams
from models.law_of_filters import Address, uniforms_at

Row32 = npt.NDArray[np.float32]
# GPT-2, SmolLM2 and Llama 2, as published; then the sizes at which a sampler may change its ways, and small ones.
VOCABULARIES = (50_257, 50_257, 49_152, 49_152, 32_000, 4_097, 4_096, 97)
LARGE = 151_936  # Qwen's, beyond what 17 bits number
_LARGE_EVERY = 14  # of so many batches one is of it
_STEP = 65_536  # tokens so far apart are likely in it
MOST_ROWS = 8  # of a batch, but for one of a small vocabulary
_MANY_ROWS = 70
_WITH_TWINS = (0, 2)  # of the vocabularies: large ones, in which some pair is near enough
_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One row, finite or -inf, and what is asked of it. ``kind``: how its logits were made. ``prompt_len`` is in tokens.
    ``history``: what stands in front of the position, for who asks for more than a mask and filters."""

    kind: str
    logits: Row32
    sampling: SamplingParams
    choice: int
    position: int
    prompt_len: int
    history: History | None = None

    @property
    def address(self) -> Address:
        """Where its token is drawn."""
        return Address(self.sampling.seed, self.choice, self.position, self.position - self.prompt_len)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that are sampled at once, of one vocabulary. ``is_bfloat16``: their logits are exact in that type, and come so."""

    cases: tuple[Case, ...]
    is_bfloat16: bool = False


def batches(seed: int) -> Iterator[Batch]:
    """For ever; each one depends on the seed and its own number alone."""
    number = 0
    while True:
        chance = random.Random(f"sampler rows {seed} {number}")
        batch = draw_batch(chance, VOCABULARIES[number % len(VOCABULARIES)])
        if number % len(VOCABULARIES) in _WITH_TWINS:
            batch = replace(batch, cases=(*batch.cases, twins(batch.cases[0])))
        yield batch
        if len(batch.cases) >= _MANY_ROWS:
            yield Batch(neighbours(chance, batch.cases[0]))
        if number % _LARGE_EVERY == _LARGE_EVERY // 2:
            yield Batch(far_ones(chance, is_even=number < _LARGE_EVERY))
        number += 1


def draw_batch(chance: random.Random, vocab_size: int) -> Batch:
    """Greedy rows beside seeded ones, each with its own filters."""
    rng = np.random.default_rng(chance.getrandbits(64))
    is_bfloat16 = chance.random() < 0.2
    num_rows = _MANY_ROWS if vocab_size < 1000 else chance.randint(1, MOST_ROWS)
    return Batch(tuple(draw_case(chance, rng, vocab_size, is_bfloat16) for _ in range(num_rows)), is_bfloat16)


def draw_case(chance: random.Random, rng: np.random.Generator, vocab_size: int, is_bfloat16: bool = False) -> Case:
    """One row of any kind."""
    kind = chance.choice(tuple(KINDS))
    logits = KINDS[kind](chance, rng, vocab_size)
    if is_bfloat16:
        logits = as_bfloat16(logits)
    sampling = draw_sampling(chance, logits)
    prompt_len = chance.choice((1, 7, 100, 4_095, 70_000, 2**31))
    index = chance.choice((0, 1, 2, 5, 63, 300))
    sampling = _with_stops(chance, sampling, logits, index) if chance.random() < 0.4 else sampling
    return Case(kind, logits, sampling, chance.choice((0, 0, 1, 2, 7, 1_000)), prompt_len + index, prompt_len)


def as_bfloat16(logits: Row32) -> Row32:
    """The same, cut to the 16 bits that bfloat16 has: many become equal."""
    return (logits.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


# Logits


def _broad(chance: random.Random, rng: np.random.Generator, vocab_size: int) -> Row32:
    return rng.standard_normal(vocab_size, dtype=np.float32) * np.float32(chance.choice((0.5, 2, 6)))


def _peaked(chance: random.Random, rng: np.random.Generator, vocab_size: int) -> Row32:
    logits = rng.standard_normal(vocab_size, dtype=np.float32)
    few = rng.integers(vocab_size, size=chance.randint(2, 40))
    logits[few] += rng.uniform(4, 14, size=len(few)).astype(np.float32)
    return logits


def _coarse(chance: random.Random, rng: np.random.Generator, vocab_size: int) -> Row32:
    """Multiples of a half or a quarter: equals everywhere, zeros of both signs among them."""
    step = np.float32(chance.choice((0.25, 0.5, 1)))
    return np.round(_broad(chance, rng, vocab_size) / step) * step


def _plateaus(chance: random.Random, rng: np.random.Generator, vocab_size: int) -> Row32:
    """A few groups of equals, anywhere, above all others."""
    logits = rng.standard_normal(vocab_size, dtype=np.float32) - np.float32(30)
    places = rng.permutation(vocab_size)
    begin = 0
    for number in range(chance.randint(1, 5)):
        size = chance.randint(1, min(40, vocab_size // 8))
        logits[places[begin : begin + size]] = 10 - np.float32(0.75) * number
        begin += size
    return logits


def _even(chance: random.Random, rng: np.random.Generator, vocab_size: int) -> Row32:
    """Some tokens are equal, the others impossible: shares are whole numbers, and sums exact."""
    logits = np.full(vocab_size, -np.inf, np.float32)
    size = chance.choice((1, 2, 4, 12, 40, 88, vocab_size // 4 * 4))
    logits[rng.permutation(vocab_size)[:size]] = chance.choice((0.0, -1000.0, 3.5))
    return logits


def _extreme(chance: random.Random, rng: np.random.Generator, vocab_size: int) -> Row32:
    """Up to the largest number there is, on both sides."""
    logits = rng.standard_normal(vocab_size, dtype=np.float32) * np.float32(10.0 ** chance.choice((4, 20, 37)))
    logits[rng.integers(vocab_size, size=3)] = chance.choice((_LARGEST, 1.0))
    logits[rng.integers(vocab_size, size=3)] = -_LARGEST
    return logits


def _rare(chance: random.Random, rng: np.random.Generator, vocab_size: int) -> Row32:
    """All impossible but a few."""
    logits = np.full(vocab_size, -np.inf, np.float32)
    few = rng.integers(vocab_size, size=chance.choice((1, 3, 30, vocab_size // 3)))
    logits[few] = rng.standard_normal(len(few), dtype=np.float32)
    return logits


KINDS: dict[str, Callable[[random.Random, np.random.Generator, int], Row32]] = {
    "broad": _broad,
    "peaked": _peaked,
    "coarse": _coarse,
    "plateaus": _plateaus,
    "even": _even,
    "extreme": _extreme,
    "rare": _rare,
}


def twins(case: Case) -> Case:
    """At the address of a case: two equals, and no others, whose noise differs in its last digits only; the higher wins."""
    noise = uniforms_at(case.address, np.arange(len(case.logits)))
    rising = np.argsort(noise, kind="stable")
    gaps = np.diff(noise[rising])
    gaps[(gaps == 0) | (rising[1:] < rising[:-1])] = np.inf
    place = int(gaps.argmin())
    logits = np.full(len(case.logits), -np.inf, np.float32)
    logits[rising[place : place + 2]] = 1
    sampling = SamplingParams(max_tokens=1, temperature=case.sampling.temperature or 1.0, seed=case.sampling.seed)
    return replace(case, kind="twins", logits=logits, sampling=sampling)


def neighbours(chance: random.Random, case: Case) -> tuple[Case, ...]:
    """By turns at the address of a case and at one that differs in a single part: a bit of either word of the seed, the choice,
    the position. All tokens are equal, so that noise alone decides; so few rows of so few tokens may be drawn ahead."""
    params = SamplingParams(max_tokens=1, temperature=1.0, seed=case.sampling.seed)
    told = replace(case, kind="neighbours", logits=np.zeros(len(case.logits), np.float32), sampling=params)
    seeds = [params.seed ^ 1 << chance.randrange(first, first + 32) for first in (32, 32, 0)]
    others = [
        *(replace(told, sampling=replace(params, seed=seed)) for seed in seeds),
        replace(told, choice=told.choice + 1),
        *(replace(told, position=told.position + step) for step in (1, 2, 256)),
    ]
    return tuple(each for other in others for each in (other, told))


def far_ones(chance: random.Random, *, is_even: bool) -> tuple[Case, ...]:
    """Of a large vocabulary: tokens that are likely alike stand 65,536 apart, and no others may come; or all beyond are."""
    found = []
    for number in range(4):
        logits = np.full(LARGE, -np.inf, np.float32)
        for token in (chance.randrange(LARGE - 2 * _STEP) for _ in range(chance.randint(1, 3))):
            logits[token : token + 2 * _STEP + 1 : _STEP] = 1
        if number == 0 and is_even:
            logits[_STEP:] = 1
        sampling = SamplingParams(max_tokens=1, temperature=chance.choice((0.7, 1.0)), seed=_seed(chance))
        found.append(Case("far apart", logits, sampling, chance.choice((0, 1)), chance.choice((7, 5_000)), 7))
    return tuple(found)


# Parameters


def draw_sampling(chance: random.Random, logits: Row32) -> SamplingParams:
    """Greedy, or a temperature with any of the filters."""
    if chance.random() < 0.2:
        return SamplingParams(max_tokens=1, seed=_seed(chance))
    temperature = chance.choice((0.01, 0.3, 0.7, 0.7, 1.0, 1.0, 1.5, 5.0, 50.0))
    if chance.random() < 0.1:
        temperature = chance.choice((1e-300, 1e-4, 1e30))
    sampling = SamplingParams(max_tokens=1, temperature=temperature, seed=_seed(chance))
    filters = chance.choice((0, 1, 1, 2, 2, 3, 4, 4, 5, 6, 7))  # bits: min-p, top-k, top-p
    if filters & 1:
        sampling = replace(sampling, min_p=chance.choice((1e-9, 0.05, 0.5, 0.9, 1.0)))
    if filters & 2:
        sampling = replace(sampling, top_k=_top_k(chance, logits))
    if filters & 4:
        sampling = replace(sampling, top_p=_top_p(chance, logits, sampling))
    return sampling


def _seed(chance: random.Random) -> int:
    return chance.choice(
        (
            chance.randrange(10),
            chance.getrandbits(32),
            2**32 + chance.getrandbits(20),
            chance.getrandbits(60) | 1 << 59 | 1,  # no double
            chance.getrandbits(64) | 1 << 63 | 1,
            2**64 - 1,
        )
    )


def _top_k(chance: random.Random, logits: Row32) -> int:
    """Often between equals: from one group of them to the next, less one or some."""
    size = len(logits)
    if chance.random() < 0.4:
        return chance.choice((1, 2, 5, 40, 300, size - 1, size, size + 7, 10**9))
    falling = np.sort(logits[logits > -np.inf])[::-1][:400]
    inside = np.flatnonzero(falling[1:] == falling[:-1]) + 1  # the k-th and the next are equal
    return int(chance.choice(inside.tolist())) if len(inside) else chance.randint(1, 400)


def _top_p(chance: random.Random, logits: Row32, sampling: SamplingParams) -> float:
    """Often where it is reached between equals, or exactly by a whole number of them."""
    usual = chance.choice((1e-12, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.999))
    if chance.random() < 0.4:
        return usual
    falling = np.sort(logits[logits > -np.inf])[::-1].astype(np.float64)
    with np.errstate(over="ignore"):
        sums = np.exp((falling - falling[0]) / sampling.temperature).cumsum()
    inside = np.flatnonzero(falling[1:400] == falling[: min(399, len(falling) - 1)])
    if not len(inside):
        return usual
    place = chance.choice(inside.tolist())
    wanted = float(sums[place] / sums[-1]) - chance.choice((0.0, 0.5 / float(sums[-1])))
    return wanted if 0 < wanted < 1 else usual


def _with_stops(chance: random.Random, sampling: SamplingParams, logits: Row32, index: int) -> SamplingParams:
    """The most likely tokens are the ones that stop, some named twice or beside the vocabulary; masked or just no more."""
    likely = np.argsort(-logits, kind="stable")[: chance.randint(1, 4)].tolist()
    others = chance.choice(((), (likely[0],), (len(logits) + 3,), (0, len(logits) - 1)))
    least = chance.choice((index + 1, index + 1, index + 5, index))
    return replace(sampling, stop_token_ids=(*likely, *others), min_tokens=least, max_tokens=max(least, 1))
