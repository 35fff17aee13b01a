"""Suite `adapters`: language models with adapters, in mixed batches, against merged weights.

Owns which workloads there are and what each must reach. Judged by `adapted_world.py`, shrunk by `models.shrink`. In front of
them: folders whose settings change what is multiplied (`strange_adapters.py`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from differential.adapted_world import TARGET, VOCAB, AdapterOracles, judge
from differential.compare import tolerance_of
from differential.strange_adapters import FLOORS, check_strange
from differential.threads import one_thread
from engine_under_test.types import Adapter, Request, SamplingParams
from models.shrink import shrink_world
from properties.op import Op, OpKind
from properties.suite import CheckResult, Failure, Figure, Label, Profile, SuiteContext
from properties.verdict import Violation, verdict_of

SUITE_ID = "adapters"
_ROUNDS = {Profile.QUICK: 1, Profile.PR: 3, Profile.NIGHTLY: 60}
_ALWAYS = {"steps with several adapters": 1, "steps with and without an adapter": 1, "loads": 3, "new versions": 1}
_BATCH = {"num_blocks": 96, "block_size": 4, "max_tokens_per_step": 64, "max_num_seqs": 8, "vocab_size": VOCAB}


@dataclass(frozen=True, slots=True)
class Way:
    """How a workload is run, and what that must reach over all rounds, at least so often a round."""

    name: str
    config: Mapping[str, Any]
    setting: Mapping[str, Any]
    floors: Mapping[str, int]


WAYS = (
    Way(
        "cached, in chunks",
        {"max_tokens_per_step": 12, "max_active_adapters": 2},
        {},
        {"tokens from the cache": 4, "chunks": 2},
    ),
    Way("one slot, depth 2", {"max_active_adapters": 1, "max_plans_in_flight": 3}, {}, {"slots taken again": 1}),
    Way(
        "preempted, buckets, depth 1",
        {"max_active_adapters": 2, "max_plans_in_flight": 2, "num_blocks": 40},
        {"preempts_at": (2,), "buckets": (2, 4, 8)},
        {"preempted": 3, "tokens in flight": 4},
    ),
    Way("batch-invariant", {"max_active_adapters": 3, "max_tokens_per_step": 20}, {"is_batch_invariant": True}, {}),
    Way(
        "streams, depth 2", {"max_active_adapters": 2, "max_plans_in_flight": 3}, {"streams": "chance"}, {"tokens in flight": 4}
    ),
)
_SINGLE = frozenset({"one slot, depth 2"})  # never two adapters in a step


def workload(seed: int) -> tuple[tuple[Adapter, ...], tuple[Op, ...]]:
    """Adapters loaded at the beginning, and a story: two families of prompts under all of them; a new version under a name that
    is in use, asked the same; an adapter unloaded; one that comes late."""
    chance = random.Random(seed)
    listed = [Adapter("a", 1), Adapter("b", 1), Adapter("c", 1)]
    first = tuple(listed)
    families = [tuple(chance.randrange(VOCAB) for _ in range(13)) for _ in range(2)]
    ops: list[Op] = []
    for number in range(12):
        if number == 4:
            listed[0] = Adapter("a", 2)
            ops.append(Op(OpKind.LOAD_ADAPTER, request_id="a", k=2))
        if number == 7:
            gone = listed.pop(1)
            ops += [
                Op(OpKind.UNLOAD_ADAPTER, request_id=gone.name, k=gone.version),
                Op(OpKind.LOAD_ADAPTER, request_id="d", k=1),
            ]
            listed.append(Adapter("d", 1))
        adapter = None if number % 4 == 3 else listed[number % 4] if number < 7 else chance.choice(listed)
        prompt = families[number % 2][: 13 if number in (0, 4) else chance.choice((5, 9, 13))]
        prompt += tuple(chance.randrange(VOCAB) for _ in range(chance.randint(0, 3)))
        sampling = SamplingParams(max_tokens=14 if number == 0 else chance.randint(3, 6))
        if number % 5 == 2:
            sampling = SamplingParams(max_tokens=4, temperature=0.7, seed=seed % 2**32 + number)
        ops.append(Op(OpKind.ADD, request=Request(f"r{number}", prompt, sampling, adapter=adapter)))
        ops += [Op(OpKind.STEP)] * chance.randint(0, 2)
    return first, tuple(ops)


def cases(seed: int, rounds: int) -> Iterator[tuple[Way, dict[str, Any], tuple[Op, ...]]]:
    for number in range(rounds):
        for place, way in enumerate(WAYS):
            adapters, ops = workload(seed + 101 * number + place)
            config = {**_BATCH, **way.config, "adapters": [[each.name, each.version] for each in adapters]}
            yield way, {"target": TARGET, "config": config, "seed": (seed + number) % 2**31, "setting": dict(way.setting)}, ops


def check_adapters(context: SuiteContext) -> CheckResult:
    """Every way of running, with workloads of its own in each round."""
    rounds = _ROUNDS[context.profile]
    reached: Counter[str] = Counter()
    evaluations: Counter[str] = Counter()
    worst, num_ops, done = 0.0, 0, 0
    failures: tuple[Failure, ...] = ()
    oracles: dict[int, AdapterOracles] = {}
    strange: Counter[str] = Counter()
    if (found := check_strange(context.seed, strange)) is not None:
        again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
        return CheckResult(
            SUITE_ID,
            verdict_of(found, ()),
            examples=strange.total() + 1,
            failures=(Failure(found, f"{SUITE_ID}#{context.seed:#x}", again),),
        )
    with one_thread():
        for way, spec, ops in cases(context.seed, rounds):
            known = oracles.setdefault(spec["seed"], AdapterOracles(spec["seed"]))
            judged = judge(spec, ops, known)
            num_ops, done, worst = num_ops + len(ops), done + 1, max((worst, *judged.shares))
            evaluations.update(judged.evaluations)
            reached.update({f"{way.name}: {name}": count for name, count in judged.ran.reached.items()})
            context.progress(done, rounds * len(WAYS))
            if judged.violation is not None:
                failures = (_failure(spec, ops, judged.violation, context),)
                break
    missed = () if failures else (*_missed(reached, rounds), *_missed_of_folders(strange))
    return CheckResult(
        SUITE_ID,
        verdict_of(failures, missed),
        examples=done,
        ops=num_ops,
        reached={**{name: reached[name] for way in WAYS for name in _floors_of(way)}, **strange},
        missed=missed,
        invariants={**evaluations, "RS-1": strange.total()},
        failures=failures,
        figures=(
            Figure(f"{SUITE_ID}.worst_error", worst, "1", Label.OBSERVED, f"share of the spread; {_ALLOWED:g} is allowed"),
        ),
        note=f"{done} workloads, {reached.total():,} things reached; every logit against the merged weights",
    )


_ALLOWED = tolerance_of(torch.float32)


def _floors_of(way: Way) -> dict[str, int]:
    always = {} if way.name in _SINGLE else {"steps with several adapters": _ALWAYS["steps with several adapters"]}
    rest = {name: count for name, count in _ALWAYS.items() if name != "steps with several adapters"}
    return {f"{way.name}: {name}": count for name, count in {**always, **rest, **way.floors}.items()}


def _missed(reached: Mapping[str, int], rounds: int) -> Iterator[str]:
    for way in WAYS:
        for name, floor in _floors_of(way).items():
            if reached.get(name, 0) < floor * rounds:
                yield f"{name} at least {floor * rounds} times, found {reached.get(name, 0)}"


def _missed_of_folders(strange: Counter[str]) -> Iterator[str]:
    for name, floor in FLOORS.items():
        if strange[name] < floor:
            yield f"{name} at least {floor} times, found {strange[name]}"


def _failure(spec: Mapping[str, Any], ops: Sequence[Op], violation: Violation, context: SuiteContext) -> Failure:
    def again(found: Mapping[str, Any], shorter: Sequence[Op]) -> Violation | None:
        return judge(found, shorter).violation if shorter else None

    shrunk = shrink_world(spec, ops, violation, run=again, may_change_world=False, max_seconds=context.shrink_s)
    return Failure(shrunk.violation, f"{SUITE_ID}#{context.seed:#x}", dict(shrunk.spec), tuple(shrunk.ops), len(ops))
