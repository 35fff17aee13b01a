"""The suite `float-buckets`: decodes padded to buckets and replayed, as captured graphs need them, against eager runs.

Owns which models, requests and buckets, and what each trial must have reached: every bucket, fewer rows and then more again, a
batch above the largest, recordings on several widths of tables. What a recording left is spoilt before each step
(`bucket_watch.py`). Judged as every workload of a language model (`judging.py`): by the oracle, by the plain run, whose
decodes are not padded, and by the store, of which a padding row must change nothing.

On this side the recordings are reruns of the same code; `torch.cuda.CUDAGraph` needs a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from differential.running import MakeRunner, transformer_runner
from differential.setting import Setting
from differential.tiny_tasks import model_of, prompts, trial
from differential.trials import Task, tally_of
from engine_under_test.types import Request
from properties.suite import CheckResult, Profile, SuiteContext

SUITE_ID = "float-buckets"
_MODELS = {Profile.QUICK: 1, Profile.PR: 2, Profile.NIGHTLY: 24}
_TRIALS_QUICK = 4


def waves(seed: int) -> tuple[Request, ...]:
    """Short ones and long ones, so that some end while others come; lengths on both sides of a table's next width."""
    chance = random.Random(seed)
    outputs = (14, 5, 22, 4, 12, 16, 4, 14, 9, 6, 12, 5)
    lengths = (3, 7, 2, 15, 1, 4, 5, 13, 6, 2, 9, 30)
    made = prompts(chance, lengths, lambda number: outputs[number])
    return tuple(
        replace(each, sampling=replace(each.sampling, temperature=0.7, seed=seed + number))
        if number % 3 == 1
        else replace(each, sampling=replace(each.sampling, logprobs=1, repetition_penalty=1.2))
        if number == 6
        else each
        for number, each in enumerate(made)
    )


_EACH = {"replays of bucket 2": 1, "replays of bucket 4": 1, "replays of bucket 8": 2}
_UP_AND_DOWN = {"fewer rows in the same bucket": 1, "more rows in the same bucket": 1, "replays with padding": 6}


def of_buckets(seed: int, number: int) -> Task:
    """One model."""
    heads, kv_heads = ((4, 2), (3, 1), (4, 4))[number % 3]
    model = model_of(heads, kv_heads, 16, seed, ("float32", "bfloat16")[number % 2])
    few = (2, 4, 8)
    return Task(
        model,
        waves(seed),
        (
            trial(
                model,
                Setting("12 rows down to one: buckets of 2, 4, 8", buckets=few),
                {**_EACH, "decodes above the largest bucket": 1, "fewer rows in the same bucket": 3, "recordings": 3},
            ),
            trial(
                model,
                Setting("joined one by one: buckets of 2, 4, 8", buckets=few, gap=2),
                {**_EACH, **_UP_AND_DOWN, "to a smaller bucket": 1, "to a larger bucket": 1, "recordings": 4},
            ),
            trial(
                model,
                Setting("joined one by one, one bucket of 8", buckets=(8,), gap=2),
                {"replays of bucket 8": 9, **_UP_AND_DOWN, "static inputs spoilt": 10, "recordings": 2},
                max_num_seqs=8,
            ),
            trial(
                model,
                Setting("buckets of 2, 4, 8 at depth 2, preempted twice", buckets=few, preempts_at=(1, 2), gap=1),
                {"tokens in flight": 10, "preempted": 8, "replays with padding": 3},
                max_plans_in_flight=3,
                max_num_seqs=8,
            ),
            trial(
                model,
                Setting(
                    "buckets of 2, 4, 8, packed weights, of every 4 plans one given up",
                    buckets=few,
                    packs_weights=True,
                    loses=4,
                ),
                {"plans given up behind one in flight": 2, "replays of bucket 4": 1},
                max_plans_in_flight=3,
                max_num_seqs=8,
            ),
            trial(
                model,
                Setting("buckets of 2, 4, 8, cached, forked in 2", buckets=few, is_warm=True, choices=2),
                {"forked": 6, "decodes above the largest bucket": 1, "tokens from the cache": 20},
            ),
        ),
    )


def tasks(profile: Profile, seed: int) -> tuple[Task, ...]:
    """All of a profile."""
    found = tuple(of_buckets(seed + number, number) for number in range(_MODELS[profile]))
    if profile is not Profile.QUICK:
        return found
    return tuple(replace(task, trials=task.trials[:_TRIALS_QUICK]) for task in found)


def check_float_buckets(
    context: SuiteContext, make_runner: MakeRunner = transformer_runner, told: Sequence[Task] | None = None
) -> CheckResult:
    """The suite: every trial of every model, up to the first divergence, which is shrunk."""
    chosen = tasks(context.profile, context.seed) if told is None else told
    tally = tally_of(SUITE_ID, context, chosen, make_runner, asks_second_oracle=False)
    total = sum(len(task.trials) for task in chosen)
    return tally.result(
        f"{len(chosen)} models, {total} trials of decodes in buckets; recordings rerun on the CPU, not captured"
    )
