"""The suite `float-numerics`: tiny models on which a wrong formula, constant or type shows, though a usual one would hide it.

Owns which models, requests and settings: contexts over many tiles and past 1,024 positions, every field of a shape varied, a
small residual stream (eps matters), large scores (a softmax must subtract its maximum), bfloat16 over long contexts. Judged as
`float_settings.py` judges. Every length stands at or beside an edge of a tile of 64 or 128, or of a chunk.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from differential.float_settings import VOCAB
from differential.running import MakeRunner, transformer_runner
from differential.setting import ModelSpec, Setting, World
from differential.trials import Task, Trial, tally_of
from engine_under_test.config import EngineConfig
from engine_under_test.model.weights import LlamaConfig
from engine_under_test.types import Request, SamplingParams
from properties.suite import CheckResult, Profile, SuiteContext

SUITE_ID = "float-numerics"
_POOL: Mapping[str, Any] = {"max_tokens_per_step": 2048, "max_num_seqs": 16, "vocab_size": VOCAB}
_LONG = (63, 65, 128, 129, 257, 280)  # tokens of a prompt, each the beginning of the same text
_SHORT = (17, 40)
_VERY_LONG = {Profile.QUICK: 1100, Profile.PR: 1100, Profile.NIGHTLY: 1500}
_LONGEST = 2060
_MODELS_A_FIELD = {Profile.QUICK: 1, Profile.PR: 1, Profile.NIGHTLY: 8}


def tasks(profile: Profile, seed: int) -> Iterator[Task]:
    """All of a profile, quick ones first."""
    for number in range(_MODELS_A_FIELD[profile]):
        yield from _of_fields((seed + number) % 2**31)
        yield _of_sharp((seed + number) % 2**31)
        yield from _of_long((seed + number) % 2**31)
    yield from _of_very_long(seed % 2**31, _VERY_LONG[profile], 2 if profile is Profile.NIGHTLY else 1)
    if profile is not Profile.QUICK:
        yield _of_longest(seed % 2**31)


def _of_fields(seed: int) -> Iterator[Task]:
    """Every field of a shape that can change a logit, varied so that a default or a usual quotient is wrong somewhere."""
    table = (  # heads, KV heads, head size, hidden, inner, layers, eps, theta, tied, stream
        (6, 2, 16, 48, 64, 2, 1e-6, 100.0, True, 2**-7),
        (10, 2, 8, 40, 24, 1, 1e-2, 1e6, False, 2**-4),
        (3, 3, 32, 48, 80, 3, 1e-3, 5e5, True, 2**-5),
        (5, 1, 16, 60, 56, 2, 1e-5, 3e3, False, 2**-7),
    )
    for number, (heads, kv_heads, head, hidden, inner, layers, eps, theta, ties_head, stream) in enumerate(table):
        shape = LlamaConfig(
            VOCAB, hidden, layers, heads, kv_heads, head, inner, rope_theta=theta, rms_eps=eps, ties_head=ties_head
        )
        model = ModelSpec("tiny", "float32", seed + number, shape, stream=stream)
        trials = (
            _trial(model, Setting("fields, in chunks of 9", gap=1), {"chunks": 4}, max_tokens_per_step=9),
            _trial(model, Setting("fields, invariant", is_batch_invariant=True), {"most rows": 2}),
        )
        yield Task(model, _requests(seed + number, _SHORT, 5), trials)


def _of_sharp(seed: int) -> Task:
    """Scores of over a hundred: their exponentials alone overflow."""
    model = ModelSpec("tiny", "float32", seed, LlamaConfig(VOCAB, 48, 2, 6, 2, 16, 64), sharpness=8.0)
    trials = (
        _trial(model, Setting("sharp"), {"most rows": 2}),
        _trial(model, Setting("sharp, eager", attention="eager"), {"most rows": 2}),
        _trial(model, Setting("sharp, invariant", is_batch_invariant=True), {"most rows": 2}),
    )
    return Task(model, _requests(seed, (40, 65), 5), trials)


def _of_long(seed: int) -> Iterator[Task]:
    """Contexts of many tiles: whole, in chunks that end at the edges of tiles and beside them, from the cache."""
    for number, dtype in enumerate(("float32", "bfloat16")):
        model = ModelSpec("tiny", dtype, seed + number, LlamaConfig(VOCAB, 48, 2, 6, 2, 16, 64, rope_theta=1e5))
        trials = [
            _trial(model, Setting("long, in chunks of 64"), {"chunks": 10}, max_tokens_per_step=64, prefix_cache=False),
            _trial(
                model,
                Setting("long, cached, in chunks of 37", is_warm=True),
                {"tokens from the cache": 800},
                max_tokens_per_step=37,
            ),
            _trial(model, Setting("long, eager, in chunks of 128", attention="eager"), {"chunks": 1}, max_tokens_per_step=128),
            _trial(
                model,
                Setting("long, invariant, in chunks of 128", is_batch_invariant=True, is_warm=True),
                {"tokens from the cache": 800},
                max_tokens_per_step=128,
            ),
        ]
        yield Task(model, _requests(seed + number, _LONG, 4), tuple(trials))


def _of_very_long(seed: int, length: int, layers: int) -> Iterator[Task]:
    """Contexts past 1,024 positions."""
    for number, dtype in enumerate(("float32", "bfloat16")):
        model = ModelSpec("tiny", dtype, seed + number, LlamaConfig(VOCAB, 36, layers, 3, 1, 16, 48, rope_theta=1e4))
        trials = (
            _trial(model, Setting("very long, in chunks of 512"), {"chunks": 2}, max_tokens_per_step=512),
            _trial(model, Setting("very long, invariant", is_batch_invariant=True), {"steps": 4}),
        )
        yield Task(model, _requests(seed + number, (length,), 4 if dtype == "float32" else 16), trials)


def _of_longest(seed: int) -> Task:
    """Past 2,048 positions, which is what a table of rotations, or a configuration, usually ends at."""
    model = ModelSpec("tiny", "float32", seed, LlamaConfig(VOCAB, 32, 1, 2, 1, 16, 32))
    told = _trial(model, Setting("longest, in chunks of 1,024"), {"chunks": 2}, slots=4096, max_tokens_per_step=1024)
    return Task(model, _requests(seed, (_LONGEST,), 8), (told,), asks_plain_run=False)


def _trial(
    model: ModelSpec, setting: Setting, floors: Mapping[str, int], *, block_size: int = 16, slots: int = 2048, **config: Any
) -> Trial:
    budget = config.get("max_tokens_per_step", 2048)
    pool = {**_POOL, "num_blocks": slots // block_size, "block_size": block_size, **config}
    return Trial(World(model, EngineConfig(**{**pool, "max_num_seqs": min(budget, 16)}), setting), floors)


def _requests(seed: int, lengths: Sequence[int], num_new: int) -> tuple[Request, ...]:
    """Greedy ones, each prompt the beginning of one text."""
    chance = random.Random(seed)
    text = tuple(chance.randrange(VOCAB) for _ in range(max(lengths)))
    return tuple(Request(f"r{length}", text[:length], SamplingParams(max_tokens=num_new)) for length in lengths)


def check_float_numerics(context: SuiteContext, make_runner: MakeRunner = transformer_runner) -> CheckResult:
    """The suite: every task in all of its trials, up to the first divergence, which is shrunk."""
    chosen = tuple(tasks(context.profile, context.seed))
    tally = tally_of(SUITE_ID, context, chosen, make_runner, asks_second_oracle=context.profile is not Profile.QUICK)
    total = sum(len(task.trials) for task in chosen)
    longest = max(len(request.prompt) for task in chosen for request in task.requests)
    return tally.result(f"{len(chosen)} models under {total} settings, the longest prompt of {longest} tokens")
