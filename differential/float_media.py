"""The suite `float-media`: media as embeddings at their placeholders, under every setting that must not change an output.

Owns which models, requests and settings, and what each must have reached: items cut by chunks, hits that end inside an item,
equal tokens under other items. Judged as every workload of a language model (`judging.py`), by oracles that are told each
embedding by itself (`made_media.py`).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from differential.running import MakeRunner, transformer_runner
from differential.setting import ModelSpec, Setting
from differential.tiny_tasks import NAN, model_of, trial
from differential.trials import Task, Trial, tally_of
from engine_under_test.types import Media, Request, SamplingParams
from properties.suite import CheckResult, Profile, SuiteContext

SUITE_ID = "float-media"
_MODELS = {Profile.QUICK: 1, Profile.PR: 2, Profile.NIGHTLY: 24}
_TRIALS_QUICK = 4
_CUT = {"items cut by a chunk": 8}


def requests(seed: int) -> tuple[Request, ...]:
    """One text of 23 tokens under the same item twice, under another one, under the same one a position later, and under none;
    two items side by side; items of one token, at the beginning, and over a whole prompt."""
    chance = random.Random(f"media {seed}")
    text = tuple(chance.randrange(NAN) for _ in range(23))
    other = tuple(chance.randrange(NAN) for _ in range(14))

    def item(number: int, start: int, length: int) -> Media:
        return Media(f"{seed * 16 + number:x}", start, length)

    told = (
        (text, (item(1, 3, 13),)),
        (text, (item(2, 3, 13),)),
        (text, (item(1, 3, 13),)),
        (text, (item(1, 4, 13),)),
        (text, ()),
        (other, (item(3, 2, 5), item(4, 7, 6))),
        (other, (item(4, 2, 5), item(3, 7, 6))),
        (other[:9], (item(5, 0, 1), item(5, 8, 1))),
        (other[:10], (item(6, 0, 10),)),
    )
    return tuple(
        Request(f"m{number}", prompt, _sampling(number, seed), media=media) for number, (prompt, media) in enumerate(told)
    )


def _sampling(number: int, seed: int) -> SamplingParams:
    plain = SamplingParams(max_tokens=3 + number % 4)
    if number == 1:
        return replace(plain, prompt_logprobs=1, logprobs=1)
    return replace(plain, temperature=0.8, seed=seed + number) if number % 4 == 3 else plain


def of_media(seed: int, number: int) -> Task:
    """One model."""
    model = model_of(*((4, 2), (3, 1))[number % 2], 16, seed, ("float32", "bfloat16", "float32")[number % 3])
    return Task(model, requests(seed), _trials(model))


def _trials(model: ModelSpec) -> tuple[Trial, ...]:
    cached = {"tokens from the cache": 40, "hits that end inside an item": 2}
    chunks = {"max_tokens_per_step": 5, "max_num_seqs": 5}
    return (
        trial(model, Setting("media, in chunks of 5, one by one", gap=6), {**_CUT, "tokens from the cache": 8}, **chunks),
        trial(
            model, Setting("media, buckets of 2, 4, in chunks of 1", buckets=(2, 4)),
            {"items cut by a chunk": 40, "replays of buckets": 10}, max_tokens_per_step=1, max_num_seqs=1,
        ),
        trial(model, Setting("media, one after the other, cached", is_alone=True), {"tokens from the cache": 20}),
        trial(model, Setting("media, cached in blocks of 4", is_warm=True), cached),
        trial(model, Setting("media, batch of 9"), {"most rows": 9}, prefix_cache=False),
        trial(
            model, Setting("media, in chunks of 3, depth 2, preempted", preempts_at=(1,), gap=2),
            {**_CUT, "preempted": 6}, max_tokens_per_step=3, max_num_seqs=3, max_plans_in_flight=3,
        ),
        trial(model, Setting("media, forked in 2, chunks of 7", choices=2), _CUT, max_tokens_per_step=7, max_num_seqs=7),
        trial(
            model, Setting("media, invariant, in chunks of 5", is_batch_invariant=True, gap=2),
            _CUT, max_tokens_per_step=5, max_num_seqs=5,
        ),
    )  # fmt: skip


def tasks(profile: Profile, seed: int) -> tuple[Task, ...]:
    """All of a profile."""
    found = tuple(of_media((seed + number) % 2**24, number) for number in range(_MODELS[profile]))
    if profile is not Profile.QUICK:
        return found
    return tuple(replace(task, trials=task.trials[:_TRIALS_QUICK]) for task in found)


def check_float_media(
    context: SuiteContext, make_runner: MakeRunner = transformer_runner, told: Sequence[Task] | None = None
) -> CheckResult:
    """The suite: every trial of every model, up to the first divergence, which is shrunk."""
    chosen = tasks(context.profile, context.seed) if told is None else told
    tally = tally_of(SUITE_ID, context, chosen, make_runner, asks_second_oracle=context.profile is not Profile.QUICK)
    return tally.result(f"{len(chosen)} models, {sum(len(task.trials) for task in chosen)} trials of media")
