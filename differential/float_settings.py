"""The suite `float-settings`: tiny random models under every setting that must not change an output.

Owns which models, requests and settings, how many in which profile, and what each setting must have reached. Every run is
judged against both oracles, against the plain run of the same requests, and its plans against those of the fingerprint runner;
in batch-invariant mode bit by bit.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from differential.compare import tolerance_of
from differential.judging import PLANS, Judge, Judged
from differential.running import MakeRunner, transformer_runner
from differential.setting import DTYPES, ModelSpec, Setting, World
from differential.shrinking import failure_of
from differential.threads import one_thread
from engine_under_test.config import EngineConfig
from engine_under_test.model.weights import LlamaConfig
from engine_under_test.types import Request, SamplingParams
from properties.suite import CheckResult, Failure, Figure, Label, Profile, SuiteContext
from properties.verdict import Verdict

SUITE_ID = "float-settings"
VOCAB = 97
_SHRINK_SECONDS = 20.0
_POOL: Mapping[str, Any] = {
    "num_blocks": 96,
    "block_size": 4,
    "max_tokens_per_step": 256,
    "max_num_seqs": 24,
    "vocab_size": VOCAB,
}


@dataclass(frozen=True, slots=True)
class Trial:
    """A setting with its engine, and what it must reach on every model, at least so often."""

    setting: Setting
    config: Mapping[str, Any] = field(default_factory=dict)
    floors: Mapping[str, int] = field(default_factory=dict)

    def world(self, model: ModelSpec) -> World:
        return World(model, EngineConfig(**{**_POOL, **self.config}), self.setting)


def _chunked(budget: int) -> Mapping[str, Any]:
    return {"max_tokens_per_step": budget, "max_num_seqs": min(budget, 8)}


_FORKED = {"forked": 14, "blocks copied": 1}
TRIALS = (
    Trial(Setting("alone", is_alone=True), {"prefix_cache": False}, {"steps": 8}),
    Trial(Setting("batch of 8"), {}, {"most rows": 8}),
    Trial(Setting("joined one by one", gap=1), {}, {"prefills beside decodes": 3}),
    Trial(Setting("cached", is_warm=True), {}, {"tokens from the cache": 50}),
    Trial(Setting("in chunks of 1", is_alone=True), _chunked(1), {"chunks": 50}),
    Trial(Setting("in chunks of 3"), _chunked(3), {"chunks": 20}),
    Trial(Setting("in chunks of 5, cached", is_warm=True), _chunked(5), {"chunks": 5, "tokens from the cache": 50}),
    Trial(Setting("in chunks of 13"), _chunked(13), {"chunks": 3, "prefills beside decodes": 3}),
    Trial(Setting("preempted once", preempts_at=(1,)), {}, {"preempted": 6}),
    Trial(Setting("preempted 3 times", preempts_at=(0, 1, 2)), {"prefix_cache": False}, {"preempted": 18}),
    Trial(Setting("pool too small"), {"num_blocks": 15}, {"preempted": 1, "blocks evicted": 1}),
    Trial(Setting("forked in 3", choices=3), {}, _FORKED),
    Trial(Setting("depth 1", gap=1), {"max_plans_in_flight": 2}, {"tokens in flight": 10}),
    Trial(
        Setting("depth 2, in chunks of 11, preempted twice", preempts_at=(1, 2)),
        {"max_plans_in_flight": 3, **_chunked(11)},
        {"tokens in flight": 10, "chunks": 3, "preempted": 10},
    ),
    Trial(Setting("no batching"), {"batching": False}, {"steps": 30}),
    Trial(Setting("no chunking"), {"chunking": False, "max_tokens_per_step": 40}, {"prefills beside decodes": 1}),
    Trial(Setting("no prefix cache", is_warm=True), {"prefix_cache": False}, {"most rows": 8}),
    Trial(Setting("eager attention", attention="eager", gap=1), {}, {"prefills beside decodes": 3}),
    Trial(Setting("eager attention, in chunks of 7", attention="eager"), _chunked(7), {"chunks": 8}),
    Trial(Setting("invariant, batch of 8", is_batch_invariant=True), {}, {"most rows": 8}),
    Trial(Setting("invariant, in chunks of 5", is_batch_invariant=True, gap=1), _chunked(5), {"chunks": 10}),
    Trial(Setting("invariant, cached", is_batch_invariant=True, is_warm=True), {}, {"tokens from the cache": 50}),
    Trial(Setting("invariant, forked in 3", is_batch_invariant=True, choices=3), {}, _FORKED),
    Trial(
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
        if number == 6:
            sampling = replace(sampling, top_k=20, top_p=0.9, min_p=0.02)
        found.append(Request(f"r{number}", prompt, sampling))
    return tuple(found)


@dataclass(slots=True)
class Tally:
    """What the suite has seen so far."""

    examples: int = 0
    ops: int = 0
    evaluations: Counter[str] = field(default_factory=Counter)
    reached: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    worst: dict[str, float] = field(default_factory=dict)

    def count(self, trial: Trial, model: ModelSpec, judged: Judged) -> None:
        self.examples += 1
        self.ops += len({each.request.request_id for each in judged.ran.emitted})
        self.evaluations.update(judged.evaluations)
        self.worst[model.dtype] = max(self.worst.get(model.dtype, 0.0), *judged.shares)
        for name, floor in trial.floors.items():
            found = judged.ran.reached.get(name, 0)
            self.reached[f"{trial.setting.name}: {name}"] += found
            if found < floor:
                self.missed.append(f"{trial.setting.name}: {name} at least {floor} times, found {found}")


def check_float_settings(
    context: SuiteContext, make_runner: MakeRunner = transformer_runner, trials: tuple[Trial, ...] = TRIALS
) -> CheckResult:
    """The suite: every trial on every model, up to the first divergence, which is shrunk."""
    tally = Tally()
    chosen = tuple(models(context.profile, context.seed))
    failures: tuple[Failure, ...] = ()
    with one_thread():
        for number, model in enumerate(chosen):
            judge = Judge(model, make_runner, asks_second_oracle=context.profile is not Profile.QUICK)
            asked = requests((context.seed + number) % 2**32)
            for place, trial in enumerate(trials):
                judged = judge.judge(trial.world(model), asked)
                tally.count(trial, model, judged)
                context.progress(number * len(trials) + place + 1, len(chosen) * len(trials))
                if judged.violation is not None:
                    failures = (_shrunk(judge, trial.world(model), asked, judged, context),)
                    break
            if failures:
                break
    return _result(tally, failures, len(chosen), len(trials))


def _shrunk(judge: Judge, world: World, asked: tuple[Request, ...], judged: Judged, context: SuiteContext) -> Failure:
    assert judged.violation is not None  # asked only then
    seed = f"{SUITE_ID}#{context.seed:#x}"
    return failure_of(judge, world, asked, judged.violation, seed, max_seconds=_SHRINK_SECONDS)


def _result(tally: Tally, failures: tuple[Failure, ...], num_models: int, num_trials: int) -> CheckResult:
    missed = tuple(dict.fromkeys(tally.missed))
    return CheckResult(
        SUITE_ID,
        Verdict.INVALID if failures else Verdict.UNKNOWN if missed else Verdict.VALID,
        examples=tally.examples,
        ops=tally.ops,
        reached=dict(tally.reached),
        missed=() if failures else missed,
        invariants={name: count for name, count in tally.evaluations.items() if name != PLANS},
        failures=failures,
        figures=tuple(_figures(tally.worst, "tiny")),
        note=f"{num_models} models under {num_trials} settings; {tally.evaluations[PLANS]:,} plans as with fingerprints",
    )


def _figures(worst: Mapping[str, float], model: str) -> Iterator[Figure]:
    for dtype, share in sorted(worst.items()):
        stated = f"largest error of a logit over the spread of its row; {tolerance_of(DTYPES[dtype], model):g} is allowed"
        yield Figure(f"worst_error.{dtype}", share, "1", Label.OBSERVED, stated)
