"""A setting is what a run really did, each token comes with the logits behind it, and a world survives a file."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch

from differential.float_settings import TRIALS, VOCAB, models, requests
from differential.judging import Judge, fingerprint_runner, first_plan_apart
from differential.reference import reference_logits
from differential.running import run
from differential.setting import ModelSpec, Setting, World, plain_world, weights_of, world_of, world_to
from differential.trials import Trial
from engine_under_test.config import EngineConfig
from engine_under_test.errors import BadInput
from engine_under_test.types import Request, SamplingParams
from properties.suite import Profile

MODEL = next(models(Profile.QUICK, 5))
TOLD = [make(MODEL) for make in TRIALS]
POOL = EngineConfig(num_blocks=64, block_size=4, vocab_size=VOCAB)


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(MODEL, asks_second_oracle=False)


@pytest.mark.parametrize("trial", TOLD, ids=[trial.name for trial in TOLD])
def test_every_setting_is_reached_and_changes_nothing(trial: Trial, judge: Judge) -> None:
    judged = judge.judge(trial.world, requests(5))
    assert judged.violation is None
    assert {
        name: judged.ran.reached.get(name, 0) for name, floor in trial.floors.items() if judged.ran.reached.get(name, 0) < floor
    } == {}
    assert {"SE-1", "SE-2", "SE-3", "SC-12"} <= set(judged.evaluations)
    assert ("SE-4" in judged.evaluations) == trial.world.setting.is_batch_invariant


def test_each_token_comes_with_the_logits_of_the_plan_that_emitted_it() -> None:
    world = World(MODEL, POOL, Setting("preempted", preempts_at=(1, 2)))
    for each in run(world, requests(5)).emitted:
        truth = reference_logits(weights_of(MODEL), each.forced, begin=len(each.request.prompt) - 1)
        assert torch.allclose(each.logits.double(), truth, atol=1e-3)


def test_every_choice_of_a_fork_is_gathered() -> None:
    emitted = run(World(MODEL, POOL, Setting("forked", choices=3)), requests(5)[:2]).emitted
    assert [(each.request.request_id, each.choice) for each in emitted] == [(f"r{i}", c) for i in range(2) for c in range(3)]


def test_a_request_that_the_engine_refuses_is_one_sentence() -> None:
    with pytest.raises(BadInput, match="must be accepted, found a: "):
        run(World(MODEL, POOL, Setting("")), [Request("a", (VOCAB,), SamplingParams())])


def test_only_the_named_request_is_preempted() -> None:
    ran = run(World(MODEL, POOL, Setting("", preempts_at=(1,), preempts="r5")), requests(5))
    assert ran.reached["preempted"] == 1


def test_plans_that_differ_in_a_column_are_told_apart() -> None:
    world = World(MODEL, POOL, Setting(""))
    plans = run(world, requests(5), fingerprint_runner).plans
    assert first_plan_apart(plans, plans) is None
    fewer = first_plan_apart(plans, plans[:-1])
    assert fewer is not None
    assert (fewer.invariant, fewer.expected) == ("DET", "no plan, as with fingerprints")
    other = run(World(MODEL, POOL, Setting("", gap=1)), requests(5), fingerprint_runner).plans
    found = first_plan_apart(plans, other)
    assert found is not None
    assert found.subject == "plan 1, requests"


@pytest.mark.parametrize("trial", TOLD, ids=[trial.name for trial in TOLD])
def test_a_world_is_the_same_after_a_file(trial: Trial) -> None:
    for world in (trial.world, plain_world(trial.world)):
        assert world_of(json.loads(json.dumps(world_to(world)))) == world


def broken(change: Callable[[dict[str, object]], object]) -> dict[str, object]:
    spec = world_to(World(MODEL, POOL, Setting("a")))
    change(spec)
    return spec


@pytest.mark.parametrize(
    "spec",
    [
        broken(lambda spec: spec.pop("model")),
        broken(lambda spec: spec.update(model={"dtype": "float8"})),
        broken(lambda spec: spec.update(model={"name": "tiny", "shape": {"vocab_size": 3}})),
        broken(lambda spec: spec.update(setting={"name": "a", "haste": 3})),
        broken(lambda spec: spec.update(setting={"name": "a", "gap": "3"})),
        broken(lambda spec: spec.update(weather="fine")),
        broken(lambda spec: spec.update(config={"num_blocks": 0})),
    ],
    ids=[
        "no model",
        "an unknown type",
        "half a shape",
        "an unknown setting",
        "a word for a number",
        "a stray field",
        "no pool",
    ],
)
def test_what_is_no_world_is_answered_by_one_sentence(spec: dict[str, object]) -> None:
    with pytest.raises(BadInput) as caught:
        world_of(spec)
    assert "\n" not in str(caught.value)


def test_a_model_that_was_not_fetched_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    with pytest.raises(BadInput, match="say assay model fetch"):
        weights_of(ModelSpec("smollm2", seed=99))
