"""Tasks of the suite `float-runner` at depth: plans lost while older ones run, streams in any order, logits that overflow, stop
tokens behind a preemption.

Owns which requests and settings, and what each must have reached. Judged as `float_settings.py` judges. Heads are not tied to
the embedding: a tied model says the same token again and again, behind which a token of another position hides.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from differential.reference import reference_logits
from differential.setting import ModelSpec, Setting, weights_of
from differential.tiny_tasks import NAN, model_of, prompts, trial
from differential.trials import Task, Trial
from engine_under_test.types import SamplingParams

_AT_ONCE = (0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0, 5)  # allocations of launches
_MIDDLE = 48  # a column of the vocabulary that stands neither first nor last
_DEEP: tuple[dict[str, Any], ...] = ({}, {"max_plans_in_flight": 2}, {"max_plans_in_flight": 3})  # by depth


def of_overflow(seed: int) -> Task:
    """One logit of one row is infinite, though every weight is a number: at the 12th place of the batch, behind a row that does
    not sample; after a token that the model sampled; upwards and downwards; with plans in flight."""
    model = replace(model_of(4, 2, 16, seed, ties_head=False), has_spare=True)
    made = list(prompts(random.Random(seed), (5, 9, 1, 4, 7, 2, 3, 6, 1, 2, 8, 5, 3), lambda number: 3 + number % 3))
    made[0] = replace(made[0], sampling=replace(made[0].sampling, n=2))
    made[11] = replace(made[11], prompt=(*made[11].prompt, NAN))
    sampled = next(_greedy(model, made[8].prompt, 1))
    for number, each in enumerate(made):  # in the middle of a prompt it would change logits, but end nobody
        if number != 8:
            prompt = tuple((token + 1) % NAN if token == sampled != NAN else token for token in each.prompt)
            made[number] = replace(each, prompt=prompt)
    up = Setting("a logit overflows", overflow_tokens=(NAN,), overflow_column=_MIDDLE)
    chunks = {"max_tokens_per_step": 11, "max_num_seqs": 11}
    return Task(
        model,
        tuple(made),
        (
            trial(model, up, {"most rows": 13}),
            trial(model, replace(up, name="a logit overflows downwards", overflows_down=True), {"most rows": 13}),
            trial(model, replace(up, name="a logit overflows, invariant", is_batch_invariant=True), {"most rows": 13}),
            trial(model, replace(up, name="a logit is NaN, one alone", overflows_to_nan=True), {"most rows": 13}),
            trial(
                model,
                replace(up, name="a logit is NaN, one alone, depth 1", overflows_to_nan=True, gap=1, overflow_column=0),
                {"tokens in flight": 5},
                **_DEEP[1],
            ),
            trial(
                model,
                replace(up, name="a logit overflows after a sampled token, depth 1", overflow_tokens=(sampled,), gap=1),
                {"tokens in flight": 5},
                **_DEEP[1],
            ),
            trial(
                model,
                replace(up, name="a logit overflows, depth 2, in chunks of 11", nan_tokens=(), gap=1),
                {"tokens in flight": 5, "chunks": 1},
                **chunks,
                **_DEEP[2],
            ),
            trial(
                model,
                Setting("a NaN at the 12th place, depth 2", nan_tokens=(NAN,)),
                {"tokens in flight": 5, "most rows": 13},
                **_DEEP[2],
            ),
        ),
    )


def of_lost(seed: int) -> Task:
    """The newest plan alone is given up after it has run, and launched again behind the older one, whose tokens it still wants;
    a launch that fails takes along those that were launched behind it."""
    model = model_of(4, 2, 16, seed, ties_head=False)
    requests = prompts(random.Random(seed + 1), (3, 9, 5, 14, 1, 6), lambda number: 8 + number % 4)
    given_up = {"plans given up behind one in flight": 4, "tokens in flight": 20}
    refuses = (0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 5, 0, 0, 0, 3)
    return Task(
        model,
        requests,
        (
            *(trial(model, Setting(f"given up, depth {deep}", loses=3), given_up, **_DEEP[deep]) for deep in (1, 2)),
            *(
                trial(
                    model,
                    Setting(f"memory refused, depth {deep}", refuses=refuses, gap=1),
                    {"plans lost behind another": 2},
                    **_DEEP[deep],
                )
                for deep in (1, 2)
            ),
        ),
    )


def of_streams(seed: int) -> Task:
    """The device runs what it was handed late and in any order that streams and waits allow, while the host plans ahead; pages
    that an operation has not declared are hidden from it."""
    model = model_of(4, 2, 16, seed, ties_head=False)
    made = list(prompts(random.Random(seed + 2), (3, 9, 5, 17, 1, 6), lambda number: 5 + number % 4))
    made[1] = replace(made[1], sampling=replace(made[1].sampling, n=2))
    made[4] = replace(made[4], sampling=replace(made[4].sampling, temperature=0.8, seed=seed))
    told: list[Trial] = []
    for deep, by in ((0, "chance"), (1, "priorities"), (2, "chance"), (2, "priorities")):
        setting = Setting(f"streams by {by}, depth {deep}", streams=by, streams_seed=seed % 1000 + len(told), gap=1)
        if deep == 2:
            setting = replace(setting, preempts_at=(2,))
        small = {"slots": 72} if by == "chance" else {}
        floors = {"operations on streams": 40, "chunks": 2, **({"tokens in flight": 10} if deep else {})}
        told.append(trial(model, setting, floors, max_tokens_per_step=9, max_num_seqs=8, **small, **_DEEP[deep]))
    lost = Setting("streams by chance, depth 2, given up", streams="chance", streams_seed=seed % 1000, loses=4)
    told.append(trial(model, lost, {"plans given up behind one in flight": 2}, **_DEEP[2]))
    # What a launch asks for before anything is on the device: it fails at once, behind plans that run.
    name = "streams by chance, depth 1, memory refused"
    refused = Setting(name, streams="chance", streams_seed=seed % 1000, refuses=_AT_ONCE)
    told.append(trial(model, refused, {f"allocation {number} refused": 1 for number in range(1, 6)}, **_DEEP[1]))
    return Task(model, tuple(made), tuple(told))


def of_stops(seed: int) -> Task:
    """A stop token at, before and behind `min_tokens`, each request preempted after every one of its first tokens."""
    model = model_of(4, 2, 16, seed, ties_head=False)
    chance = random.Random(seed + 3)
    made = []
    for number, request in enumerate(prompts(chance, (5, 9, 3, 6, 11, 4), lambda _: 6)):
        stops_at = 2 + number // 3
        greedy = tuple(_greedy(model, request.prompt, stops_at + 1))
        sampling = SamplingParams(max_tokens=6, min_tokens=stops_at - 1 + number % 3, stop_token_ids=(greedy[stops_at],))
        made.append(replace(request, sampling=sampling))
    preempted = {"preempted": 12}
    return Task(
        model,
        tuple(made),
        (
            trial(model, Setting("stops, preempted 3 times", preempts_at=(1, 2, 3)), preempted, prefix_cache=False),
            trial(model, Setting("stops, preempted 3 times, cached", preempts_at=(1, 2, 3)), preempted),
            trial(
                model,
                Setting("stops, preempted twice, depth 2, in chunks of 7", preempts_at=(2, 3)),
                {"preempted": 5, "tokens in flight": 5},
                max_tokens_per_step=7,
                max_num_seqs=6,
                prefix_cache=False,
                **_DEEP[2],
            ),
        ),
    )


def _greedy(model: ModelSpec, prompt: tuple[int, ...], count: int) -> Iterator[int]:
    """What the reference says follows."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(reference_logits(weights_of(model), tokens)[-1].argmax()))
        yield tokens[-1]


def of_depth(seed: int) -> tuple[Task, ...]:
    """All of them."""
    return of_overflow(seed), of_lost(seed), of_streams(seed), of_stops(seed)
