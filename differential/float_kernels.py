"""The suite `float-kernels`: tiny random models whose attention is the Triton kernels, on a CPU run by Triton's interpreter.

Owns which model, requests and settings, few of each, since the interpreter is slow. Judged as `float_settings.py` judges: both
oracles, the plain run of the same requests (whose attention is that in torch), and the plans of the other runner. Never: what
the compiled kernels do on a device (`pytest -m gpu`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from differential.float_settings import VOCAB
from differential.judging import Judge
from differential.running import MakeRunner, transformer_runner
from differential.setting import ModelSpec, Setting, World
from differential.threads import one_thread
from differential.trials import Tally, Trial
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
_MODELS = {Profile.QUICK: 1, Profile.PR: 2, Profile.NIGHTLY: 12}
_SHAPES = ((4, 2), (3, 1), (2, 2))  # heads, KV heads


def trials(model: ModelSpec) -> tuple[Trial, ...]:
    """Decodes alone, decodes beside chunks, blocks out of the cache, blocks copied by a fork."""

    def trial(setting: Setting, floors: Mapping[str, int], **config: Any) -> Trial:
        return Trial(
            World(model, EngineConfig(**{**_POOL, **config}), replace(setting, attention=ATTENTION)),
            floors,
        )

    return (
        trial(Setting("kernels"), {"most rows": 5}),
        trial(Setting("kernels, in chunks of 11", gap=1), {"chunks": 3, "prefills beside decodes": 3}, max_tokens_per_step=11),
        trial(Setting("kernels, cached, depth 1", is_warm=True, gap=1), {"tokens from the cache": 16}, max_plans_in_flight=2),
        trial(Setting("kernels, forked in 2", choices=2), {"forked": 4, "blocks copied": 1}, max_num_seqs=12),
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


def check_float_kernels(
    context: SuiteContext,
    make_runner: MakeRunner = transformer_runner,
    told: Callable[[ModelSpec], Sequence[Trial]] = trials,
) -> CheckResult:
    """The suite: every trial on every model, up to the first divergence, which is shrunk."""
    importlib.import_module("triton")  # if that is missing, whoever runs the suite says so
    tally = Tally(SUITE_ID, context.seed, context.shrink_s)
    chosen = tuple(models(context.profile, context.seed))
    total = sum(len(told(model)) for model in chosen)
    with one_thread():
        for number, model in enumerate(chosen):
            judge = Judge(model, make_runner, asks_second_oracle=context.profile is not Profile.QUICK)
            asked = requests(context.seed + number)
            tally.go_through(judge, told(model), asked, lambda: context.progress(tally.examples, total))
            if tally.failures:
                break
    return tally.result(f"{len(chosen)} models, attention by the Triton kernels under the interpreter")
