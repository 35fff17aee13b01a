"""The suite `float-runner`: what the runner of a language model does with its store, its memory and rows that are not numbers;
every number of rows that a product can have; every shape of heads and blocks.

Owns which models, requests and faults, how many in which profile, and what each trial must have reached. Judged as
`float_settings.py` judges. Never: Triton kernels (`float_kernels.py`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from differential.float_depth import of_depth
from differential.reference import reference_logits
from differential.running import MakeRunner, transformer_runner
from differential.setting import Setting, weights_of
from differential.tiny_tasks import LAYERS, NAN, model_of, prompts, trial
from differential.trials import Task, tally_of
from engine_under_test.types import Request
from properties.suite import CheckResult, Profile, SuiteContext

SUITE_ID = "float-runner"
MOST_ROWS = 34  # packed products have another way for one row, for several, and for more than 32
WIDE = (48, 64, 65, 96, 128, 129)  # rows that a kernel may take for a tile of its own, and beside them
_ALLOCATIONS = 2 + 1 + 2 * LAYERS + 1 + 1  # of a step: its batch on both sides, hidden states, two a layer, logits, tokens


# Memory


def of_memory(seed: int) -> Task:
    """Refused at each allocation of a step in turn, whole batches and joined ones; refused again in the second try, so that its
    half ends and the rest does not; refused for good."""
    model = model_of(4, 2, 16, seed)
    requests = prompts(random.Random(seed), (3, 9, 5, 14, 1, 6, 2, 8), lambda number: 9 + number % 3)
    in_turn = tuple(k for number in range(1, _ALLOCATIONS + 1) for k in (number, 0))
    each_once = {f"allocation {number} refused": 1 for number in range(1, _ALLOCATIONS + 1)}
    twice = (0, 3, 1, 0, _ALLOCATIONS, _ALLOCATIONS)
    return Task(
        model,
        requests,
        (
            trial(model, Setting("memory refused in turn", refuses=in_turn), {**each_once, "most rows": 8}),
            trial(
                model,
                Setting("memory refused in turn, joined one by one", refuses=in_turn, gap=1),
                {**each_once, "prefills beside decodes": 3},
            ),
            trial(model, Setting("memory refused twice", refuses=twice), {"allocation 1 refused": 1, "most rows": 8}),
            trial(
                model, Setting("memory refused twice to one", refuses=(2, 0, 5, 1), is_alone=True), {"allocation 1 refused": 1}
            ),
            trial(model, Setting("memory refused in turn, invariant", refuses=in_turn, is_batch_invariant=True), each_once),
            trial(model, Setting("no memory", refuses=(1,) * 60), {"allocation 1 refused": 8}),
        ),
    )


# Rows that are not numbers


def of_nan(seed: int) -> Task:
    """One request has a token without a number: only that one ends, at once, whether its row is a prompt, a chunk, a single
    token or the token that it sampled itself."""
    model = model_of(4, 2, 16, seed)
    chance = random.Random(seed)
    made = list(prompts(chance, (5, 9, 13, 4, 7, 16), lambda number: 4 + number % 3))
    # Its first row does not sample, so that the second sampling row is not the second row.
    made[0] = replace(made[0], sampling=replace(made[0].sampling, n=2))
    made[2] = Request("r2", (*made[2].prompt, NAN), made[2].sampling)
    sampled = int(reference_logits(weights_of(model), made[4].prompt)[-1].argmax())
    bad = (NAN,)
    return Task(
        model,
        tuple(made),
        (
            trial(model, Setting("a NaN in the batch", nan_tokens=bad), {"most rows": 6}),
            trial(
                model,
                Setting("a NaN beside decodes, in chunks of 5", nan_tokens=bad, gap=1),
                {"chunks": 3, "prefills beside decodes": 2},
                max_tokens_per_step=5,
                max_num_seqs=5,
            ),
            trial(model, Setting("a NaN behind cached blocks", nan_tokens=bad, is_warm=True), {"tokens from the cache": 20}),
            trial(model, Setting("a NaN that was sampled", nan_tokens=(sampled,)), {"most rows": 5}),
            trial(model, Setting("a NaN, forked in 2", nan_tokens=bad, choices=2), {"forked": 4}),
            trial(model, Setting("a NaN, eager", nan_tokens=bad, attention="eager"), {"most rows": 6}),
            trial(model, Setting("a NaN, packed weights", nan_tokens=bad, packs_weights=True), {"most rows": 6}),
            trial(model, Setting("a NaN, invariant", nan_tokens=bad, is_batch_invariant=True), {"most rows": 6}),
            trial(
                model,
                Setting("a NaN, invariant, in chunks of 5", nan_tokens=bad, is_batch_invariant=True, gap=1),
                {"chunks": 3},
                max_tokens_per_step=5,
                max_num_seqs=5,
            ),
        ),
    )


# Numbers of rows


def of_rows(seed: int) -> Iterator[Task]:
    """Decodes of 34 rows down to one, each with its logits; prompts of 1 to 34 tokens and of some more, each alone."""
    model = model_of(4, 2, 16, seed, ties_head=False)
    chance = random.Random(seed)
    steps = {f"steps of {number} rows": 1 for number in range(1, MOST_ROWS + 1)}
    products = {f"packed products of {number} rows": 1 for number in range(1, MOST_ROWS + 1)}
    ramp = prompts(chance, [1 + number % 3 for number in range(MOST_ROWS)], lambda number: number + 1)
    yield Task(
        model,
        ramp,
        (
            trial(model, Setting("34 rows down to one"), steps, slots=1600),
            trial(model, Setting("34 rows down to one, packed weights", packs_weights=True), {**steps, **products}, slots=1600),
        ),
        asks_plain_run=False,
    )
    alone = prompts(chance, (*range(1, MOST_ROWS + 1), *WIDE), lambda number: 1 + number % 2)
    told = Setting("prompts of 1 to 34 and up to 129 tokens, packed weights", packs_weights=True, is_alone=True)
    wide = {f"packed products of {number} rows": 1 for number in WIDE}
    yield Task(model, alone, (trial(model, told, {**products, **wide}, prefix_cache=False),), asks_plain_run=False)
    few = ramp[: 2 * 8 + 2]
    yield Task(
        model, few, (trial(model, Setting("18 rows down to one, invariant", is_batch_invariant=True), {"steps of 9 rows": 1}),)
    )


# Shapes

_GROUPS = ((2, 2), (4, 2), (3, 1), (4, 1), (8, 1))  # heads and KV heads: groups of 1, 2, 3, 4, 8
_SHAPES = tuple(
    (heads, kv_heads, head_size, block_size)
    for head_size in (128, 64)
    for block_size in (32, 16)
    for heads, kv_heads in _GROUPS
)
_NUM_SHAPES = {Profile.QUICK: 10, Profile.PR: 20, Profile.NIGHTLY: 40}


def shapes(profile: Profile, most: int = 20) -> Iterator[tuple[int, int, int, int]]:
    """Heads, KV heads, head size, block size; at night more often than once, unless that is too often.

    Fewer than all: every group with each head size, both sizes of blocks with each of them.
    """
    for number in range(min(_NUM_SHAPES[profile], most)):
        place = number // 5 * 10 + number % 5 + number % 2 * 5 if profile is Profile.QUICK else number
        yield _SHAPES[place % len(_SHAPES)]


def of_shapes(profile: Profile, seed: int) -> Iterator[Task]:
    """Prompts at the edges of blocks of 16 and 32, in chunks beside decodes, with head sizes 64 and 128."""
    for number, (heads, kv_heads, head_size, block_size) in enumerate(shapes(profile, most=40)):
        dtype = "bfloat16" if number % 4 == 3 else "float32"
        model = model_of(heads, kv_heads, head_size, seed + number, dtype)
        lengths = (1, block_size - 1, block_size, 2 * block_size + 1, 3)
        requests = prompts(random.Random(seed + number), lengths, lambda at: 2 + at % 3)
        words = f"heads {heads} on {kv_heads} of {head_size}, blocks of {block_size}"
        told = trial(
            model,
            Setting(words, gap=1),
            {"chunks": 2, "prefills beside decodes": 2},
            block_size=block_size,
            max_tokens_per_step=19,
            max_num_seqs=5,
        )
        yield Task(model, requests, (told,), asks_plain_run=False)


def tasks(profile: Profile, seed: int) -> tuple[Task, ...]:
    """All of a profile."""
    return (of_memory(seed), of_nan(seed), *of_depth(seed), *of_rows(seed), *of_shapes(profile, seed))


def check_float_runner(
    context: SuiteContext,
    make_runner: MakeRunner = transformer_runner,
    told: Callable[[Profile, int], Sequence[Task]] = tasks,
) -> CheckResult:
    """The suite: every task, up to the first divergence, which is shrunk."""
    chosen = told(context.profile, context.seed)
    tally = tally_of(SUITE_ID, context, chosen, make_runner, asks_second_oracle=False)
    return tally.result(f"{sum(len(task.trials) for task in chosen)} trials of store, memory, NaN, rows and shapes")
