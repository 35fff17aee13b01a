"""The suite `float-kernels`: tiny random models whose attention is the Triton kernels, on a CPU run by Triton's interpreter.

Owns which model, requests and settings, few of each, since the interpreter is slow. Judged as `float_settings.py` judges: both
oracles, the plain run of the same requests (whose attention is that in torch), and the plans of the other runner. Never: what
the compiled kernels do on a device (`pytest -m gpu`).
"""

from __future__ import annotations

import importlib
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from differential.float_runner import shapes
from differential.float_settings import VOCAB
from differential.running import MakeRunner, transformer_runner
from differential.setting import ModelSpec, Setting, World
from differential.threads import one_thread
from differential.tiny_tasks import NAN, model_of, prompts, trial
from differential.trials import Tally, Task, Trial
from engine_under_test.config import EngineConfig
from engine_under_test.model.weights import LlamaConfig
from engine_under_test.types import Request, SamplingParams
from properties.suite import CheckResult, Profile, SuiteContext

SUITE_ID = "float-kernels"
ATTENTION = "paged-triton"
_POOL: Mapping[str, Any] = {
    "num_blocks": 40,
    "block_size": 16,
    "max_tokens_per_step": 128,
    "max_num_seqs": 8,
    "vocab_size": VOCAB,
}
_LENGTHS = (1, 15, 16, 17, 33)  # around the edges of blocks
_MODELS = {Profile.QUICK: 1, Profile.PR: 1, Profile.NIGHTLY: 12}
_LONG = 600  # positions: one program of the kernel for decodes reads 512, and what the second one reads must tell
_SHAPES = ((4, 2), (3, 1), (2, 2))  # heads, KV heads


def trials(model: ModelSpec) -> tuple[Trial, ...]:
    """Decodes alone, decodes beside chunks, blocks out of the cache, blocks copied by a fork."""

    def on_kernels(setting: Setting, floors: Mapping[str, int], **config: Any) -> Trial:
        return Trial(
            World(model, EngineConfig(**{**_POOL, **config}), replace(setting, attention=ATTENTION)),
            floors,
        )

    return (
        on_kernels(Setting("kernels"), {"most rows": 5}),
        on_kernels(
            Setting("kernels, in chunks of 11", gap=1), {"chunks": 3, "prefills beside decodes": 3}, max_tokens_per_step=11
        ),
        on_kernels(
            Setting("kernels, cached, depth 1", is_warm=True, gap=1), {"tokens from the cache": 16}, max_plans_in_flight=2
        ),
        on_kernels(Setting("kernels, forked in 2", choices=2), {"forked": 4, "blocks copied": 1}, max_num_seqs=12),
    )


def models(profile: Profile, seed: int) -> Iterator[ModelSpec]:
    """Groups of 2, 3 and 1 query heads on a KV head."""
    for number in range(_MODELS[profile]):
        heads, kv_heads = _SHAPES[number % len(_SHAPES)]
        shape = LlamaConfig(VOCAB, 48, 2, heads, kv_heads, 64, 48)
        yield ModelSpec("tiny", "float32", (seed + number) % 2**31, shape)


def requests(seed: int) -> tuple[Request, ...]:
    """Prompts around the edges of blocks, every other one the beginning of the same text; outputs of two to four tokens."""
    text = [(seed + place * place * 7) % VOCAB for place in range(max(_LENGTHS))]
    return tuple(
        Request(
            f"r{length}",
            tuple(text[:length] if place % 2 else [(token + length) % VOCAB for token in text[:length]]),
            SamplingParams(max_tokens=2 + place % 3),
        )
        for place, length in enumerate(_LENGTHS)
    )


def tasks(profile: Profile, seed: int) -> Iterator[Task]:
    """Both head sizes and sizes of blocks, every group: a prompt in two chunks, a short one, decodes of both. A context of more
    than 512 positions beside a short one. A row that is not a number."""
    for number, (heads, kv_heads, head_size, block_size) in enumerate(shapes(profile, most=20)):
        model = model_of(heads, kv_heads, head_size, seed + number)
        told = trial(
            model,
            Setting(f"kernels, heads {heads} on {kv_heads} of {head_size}, blocks of {block_size}", attention=ATTENTION),
            {"chunks": 1, "steps of decodes alone": 1},
            block_size=block_size,
            max_tokens_per_step=block_size + 9,
            max_num_seqs=4,
        )
        lengths = (block_size + 7, 3)
        yield Task(model, prompts(random.Random(seed + number), lengths, lambda at: 2 + at), (told,), asks_plain_run=False)
    # One layer: the interpreter takes seconds for the prompt, and what the decodes read is seen in their own logits.
    model = model_of(1, 1, 64, seed, layers=1)
    told = trial(
        model,
        Setting("kernels, a long context", attention=ATTENTION),
        {"steps of decodes alone": 7, "most rows": 2},
        block_size=32,
        slots=704,
        max_tokens_per_step=640,
    )
    yield Task(model, prompts(random.Random(seed), (_LONG, 3), lambda _: 8), (told,), asks_plain_run=False)
    yield of_nan_in_kernels(seed)


def of_nan_in_kernels(seed: int) -> Task:
    """The second of three requests ends, and nobody else."""
    model = model_of(2, 1, 64, seed)
    requests = list(prompts(random.Random(seed), (5, 17, 3), lambda _: 3))
    requests[1] = replace(requests[1], prompt=(*requests[1].prompt, NAN))
    setting = Setting("kernels, a NaN in the batch", attention=ATTENTION, nan_tokens=(NAN,))
    told = trial(model, setting, {"most rows": 3, "steps of decodes alone": 1}, block_size=16)
    return Task(model, tuple(requests), (told,), asks_plain_run=False)


def check_float_kernels(
    context: SuiteContext,
    make_runner: MakeRunner = transformer_runner,
    told: Callable[[ModelSpec], Sequence[Trial]] = trials,
    further: Callable[[Profile, int], Iterable[Task]] = tasks,
) -> CheckResult:
    """The suite: every trial on every model, up to the first divergence, which is shrunk."""
    importlib.import_module("triton")  # if that is missing, whoever runs the suite says so
    tally = Tally(SUITE_ID, context.seed, context.shrink_s)
    chosen = [
        Task(model, requests(context.seed + number), tuple(told(model)))
        for number, model in enumerate(models(context.profile, context.seed))
    ]
    others = tuple(further(context.profile, context.seed))
    total = sum(len(task.trials) for task in (*others, *chosen))
    asks_second_oracle = context.profile is not Profile.QUICK

    def done() -> None:
        context.progress(tally.examples, total)

    with one_thread(), warnings.catch_warnings():
        # The interpreter computes in numpy, which warns of rows that are not numbers.
        warnings.filterwarnings("ignore", "All-NaN slice|invalid value", RuntimeWarning)
        tally.go_through_tasks(others, make_runner, asks_second_oracle=False, done=done)
        tally.go_through_tasks(chosen, make_runner, asks_second_oracle=asks_second_oracle, done=done)
    words = f"{len(chosen) + len(others)} models, attention by the Triton kernels under the interpreter"
    return tally.result(words)
