"""The suite `float-settings`: tiny random models under every setting that must not change an output.

Owns which models, requests and settings, how many in which profile, and what each setting must have reached. Every run is
judged against both oracles, against the plain run of the same requests, and its plans against those of the fingerprint runner;
in batch-invariant mode bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from differential.running import MakeRunner, transformer_runner
from differential.setting import DTYPES, ModelSpec, Setting, World
from differential.trials import Task, Trial, tally_of
from engine_under_test.config import EngineConfig
from engine_under_test.model.weights import LlamaConfig
from engine_under_test.types import LogprobsMode, Request, SamplingParams
from properties.suite import CheckResult, Profile, SuiteContext

SUITE_ID = "float-settings"
VOCAB = 97
_POOL: Mapping[str, Any] = {
    "num_blocks": 96,
    "block_size": 4,
    "max_tokens_per_step": 256,
    "max_num_seqs": 24,
    "vocab_size": VOCAB,
}


def trial(setting: Setting, config: Mapping[str, Any], floors: Mapping[str, int]) -> Callable[[ModelSpec], Trial]:
    """A trial of any model: ``config`` over the pool that all share."""
    return lambda model: Trial(World(model, EngineConfig(**{**_POOL, **config}), setting), floors)


def _chunked(budget: int) -> Mapping[str, Any]:
    return {"max_tokens_per_step": budget, "max_num_seqs": min(budget, 8)}


_FORKED = {"forked": 14, "blocks copied": 1}
TRIALS = (
    trial(Setting("alone", is_alone=True), {"prefix_cache": False}, {"steps": 8}),
    trial(Setting("batch of 8"), {}, {"most rows": 8}),
    trial(Setting("joined one by one", gap=1), {}, {"prefills beside decodes": 3}),
    trial(Setting("cached", is_warm=True), {}, {"tokens from the cache": 50}),
    trial(Setting("in chunks of 1", is_alone=True), _chunked(1), {"chunks": 50}),
    trial(Setting("in chunks of 3"), _chunked(3), {"chunks": 20}),
    trial(Setting("in chunks of 5, cached", is_warm=True), _chunked(5), {"chunks": 1, "tokens from the cache": 50}),
    trial(Setting("in chunks of 13"), _chunked(13), {"chunks": 3, "prefills beside decodes": 3}),
    trial(Setting("preempted once", preempts_at=(1,)), {}, {"preempted": 6}),
    trial(Setting("preempted 3 times", preempts_at=(0, 1, 2)), {"prefix_cache": False}, {"preempted": 18}),
    trial(Setting("pool too small"), {"num_blocks": 15}, {"preempted": 1, "blocks evicted": 1}),
    trial(Setting("forked in 3", choices=3), {}, _FORKED),
    trial(Setting("depth 1", gap=1), {"max_plans_in_flight": 2}, {"tokens in flight": 10}),
    trial(
        Setting("depth 2, in chunks of 11, preempted 3 times", preempts_at=(0, 1, 2)),
        {"max_plans_in_flight": 3, **_chunked(11)},
        {"tokens in flight": 10, "chunks": 3, "preempted": 18},
    ),
    trial(Setting("no batching"), {"batching": False}, {"steps": 30}),
    trial(Setting("no chunking"), {"chunking": False, "max_tokens_per_step": 40}, {"prefills beside decodes": 1}),
    trial(Setting("no prefix cache", is_warm=True), {"prefix_cache": False}, {"most rows": 8}),
    trial(Setting("eager attention", attention="eager", gap=1), {}, {"prefills beside decodes": 3}),
    trial(Setting("eager attention, in chunks of 7", attention="eager"), _chunked(7), {"chunks": 8}),
    trial(Setting("packed weights, alone", packs_weights=True, is_alone=True), {"prefix_cache": False}, {"steps": 8}),
    trial(Setting("packed weights, 5 at most", packs_weights=True), {"max_num_seqs": 5}, {"most rows": 5}),
    trial(Setting("packed weights, batch of 8", packs_weights=True), {}, {"most rows": 8}),
    trial(Setting("invariant, batch of 8", is_batch_invariant=True), {}, {"most rows": 8}),
    trial(Setting("invariant, in chunks of 5", is_batch_invariant=True, gap=1), _chunked(5), {"chunks": 10}),
    trial(Setting("invariant, cached", is_batch_invariant=True, is_warm=True), {}, {"tokens from the cache": 50}),
    trial(Setting("invariant, forked in 3", is_batch_invariant=True, choices=3), {}, _FORKED),
    trial(
        Setting("invariant, depth 2, preempted twice", is_batch_invariant=True, preempts_at=(1, 2), gap=1),
        {"max_plans_in_flight": 3},
        {"tokens in flight": 10, "preempted": 10},
    ),
)

_SHAPES = (  # heads, KV heads, tied, layers
    (4, 2, True, 2),
    (3, 1, False, 2),
    (4, 4, False, 3),
)
_MODELS = {Profile.QUICK: 2, Profile.PR: 6, Profile.NIGHTLY: 36}


def models(profile: Profile, seed: int) -> Iterator[ModelSpec]:
    """Groups of 1, 2 and 3 query heads on a KV head, tied and untied, in float32 and bfloat16 by turns."""
    for number in range(_MODELS[profile]):
        heads, kv_heads, ties_head, layers = _SHAPES[number % len(_SHAPES)]
        shape = LlamaConfig(VOCAB, 48, layers, heads, kv_heads, 16, 64, ties_head=ties_head)
        yield ModelSpec("tiny", list(DTYPES)[number % 2], (seed + number) % 2**31, shape)


def requests(seed: int) -> tuple[Request, ...]:
    """Eight: prompts around the edges of blocks, every other one the beginning of the same text; greedy, seeded, filtered."""
    chance = random.Random(seed)
    text = tuple(chance.randrange(VOCAB) for _ in range(40))
    found = []
    for number, length in enumerate((1, 4, 5, 9, 16, 17, 30, 33)):
        prompt = text[:length] if number % 2 else tuple(chance.randrange(VOCAB) for _ in range(length))
        sampling = SamplingParams(
            max_tokens=3 + 3 * number % 8, temperature=0.8 if number in (2, 5, 6) else 0.0, seed=seed + number
        )
        if number == 2:  # of two filtered rows in one batch, each has its own filter
            sampling = replace(sampling, top_k=3)
        if number == 6:
            sampling = replace(sampling, top_k=20, top_p=0.9, min_p=0.02)
        sampling = replace(sampling, **_ASKING.get(number, {}))
        found.append(Request(f"r{number}", prompt, sampling))
    return tuple(found)


_EVEN = tuple(range(0, VOCAB, 2))
# What some of the requests ask for in front of the temperature, or to be told.
_ASKING: Mapping[int, Mapping[str, Any]] = {
    0: {"logprobs": 2, "prompt_logprobs": 1, "repetition_penalty": 1.3},
    1: {"repetition_penalty": 1.5, "presence_penalty": 1.0, "frequency_penalty": 0.5, "max_tokens": 9},
    3: {"prompt_logprobs": 3, "logprobs": 0, "max_tokens": 1},  # its first token is its last
    5: {
        "bad_words": tuple((token,) for token in range(1, VOCAB, 3)),
        "logit_bias": ((2, 4.0), (8, 3.5)),
        "logprobs": VOCAB,
        "logprobs_mode": LogprobsMode.PROCESSED,
        "presence_penalty": -0.5,
    },
    7: {"prompt_logprobs": 0},  # its prompt is preempted in the middle
    6: {"frequency_penalty": 2.0, "allowed_token_ids": _EVEN, "bad_words": tuple((token, token) for token in _EVEN)},
}


def check_float_settings(
    context: SuiteContext, make_runner: MakeRunner = transformer_runner, trials: Sequence[Callable[[ModelSpec], Trial]] = TRIALS
) -> CheckResult:
    """The suite: every trial on every model, up to the first divergence, which is shrunk."""
    chosen = [
        Task(model, requests((context.seed + number) % 2**32), tuple(make(model) for make in trials))
        for number, model in enumerate(models(context.profile, context.seed))
    ]
    tally = tally_of(SUITE_ID, context, chosen, make_runner, asks_second_oracle=context.profile is not Profile.QUICK)
    return tally.result(f"{len(chosen)} models under {len(trials)} settings")
