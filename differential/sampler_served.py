"""Requests whose tokens are drawn from a vocabulary of 50,000 by an engine: addresses, masks and filters come from plans.

Owns which model, requests and settings. The stop tokens of a request are those that it would begin with if it had none, so
that `min_tokens` decides from the first token on. Judged as every workload of a language model (`judging.py`), and shrunk
and replayed as such. Never a law, or the verdict of a suite.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from differential.judging import Judge
from differential.running import Ran, run
from differential.sampler_cases import Case
from differential.setting import DTYPES, ModelSpec, Setting, World, plain_world
from engine_under_test.config import EngineConfig
from engine_under_test.model.weights import LlamaConfig
from engine_under_test.types import Request, SamplingParams
from properties.suite import Profile

VOCABULARY = 50_257
_TOKENS = 5  # of each choice
_LENGTHS = (1, 5, 16, 17, 33, 8, 130, 3)
_SHAPE = LlamaConfig(VOCABULARY, 24, 1, 2, 1, 12, 32)
_SETTINGS = (Setting("sampled together, depth 1", gap=1), Setting("sampled, preempted", preempts_at=(1, 3)))


def worlds(profile: Profile, seed: int) -> Iterator[World]:
    """Overlapped, in chunks; then with choices that leave their rows and come back. One layer is enough where only the head
    matters; in bfloat16 many logits are equal."""
    is_quick = profile is Profile.QUICK
    for number, dtype in enumerate(DTYPES if not is_quick else ("float32",)):
        for setting in _SETTINGS[: 1 if is_quick else None]:
            config = EngineConfig(
                num_blocks=160, block_size=4, max_tokens_per_step=48, max_num_seqs=16, vocab_size=VOCABULARY,
                max_plans_in_flight=1 if setting.preempts_at else 2,
            )  # fmt: skip
            yield World(ModelSpec("tiny", dtype, (seed + number) % 2**31, _SHAPE), config, setting)


def requests(seed: int) -> tuple[Request, ...]:
    """Greedy beside seeded, several choices, every filter alone and with the others; seeds of all sizes."""
    chance = random.Random(f"sampled requests {seed}")
    warm = SamplingParams(max_tokens=_TOKENS, temperature=2.0)
    asked = (
        replace(warm, temperature=0.0, min_tokens=3),
        replace(warm, min_tokens=2, n=2, seed=2**32 + chance.getrandbits(20)),
        replace(warm, top_k=40, n=3, seed=2**60 + 2 * chance.getrandbits(40) + 1),
        replace(warm, top_p=0.9, seed=2**64 - 1 - chance.getrandbits(8)),
        replace(warm, min_tokens=3, min_p=0.05, top_k=50, top_p=0.95, seed=2**53 + 1 + 2 * chance.getrandbits(30)),
        replace(warm, min_tokens=_TOKENS, n=2, seed=2**63 + 2 * chance.getrandbits(50) + 1),
        replace(warm, min_p=0.2, seed=chance.getrandbits(32)),
        replace(warm, temperature=5.0, seed=chance.getrandbits(64)),
    )
    return tuple(
        Request(f"s{number}", tuple(chance.randrange(VOCABULARY) for _ in range(length)), sampling)
        for number, (length, sampling) in enumerate(zip(_LENGTHS, asked, strict=True))
    )


def with_likely_stops(judge: Judge, world: World, asked: Sequence[Request]) -> tuple[Request, ...]:
    """The requests with `min_tokens`, ended by what they would begin with: what each choice says first if nothing stops it."""
    free = [replace(each, sampling=replace(each.sampling, max_tokens=1, min_tokens=0)) for each in asked]
    first: dict[str, list[int]] = {}
    for each in run(plain_world(world), free, judge.make_runner).emitted:
        first.setdefault(each.request.request_id, []).extend(each.tokens)
    return tuple(
        replace(each, sampling=replace(each.sampling, stop_token_ids=tuple(sorted(set(first[each.request_id])))))
        if each.sampling.min_tokens
        else each
        for each in asked
    )


def cases_of(ran: Ran) -> Iterator[Case]:
    """Every token that was emitted, as a row of its own."""
    for each in ran.emitted:
        length = len(each.request.prompt)
        for index in range(len(each.tokens)):
            logits = each.logits[index].numpy().astype(np.float32)
            yield Case("served", logits, each.request.sampling, each.choice, length + index, length)
