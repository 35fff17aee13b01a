"""The suite of numerics is valid on the engine; a constant, a length or a type that is wrong is found where a usual model hides
it; the bounds of rounding lie between a sound engine and a fault, in every attention."""

from __future__ import annotations

import random

import pytest
import torch

from differential import float_numerics
from differential.float_numerics import check_float_numerics, tasks
from differential.float_settings import VOCAB, requests
from differential.judging import Judge, oracles_of
from differential.reference import Rounding
from differential.rounding import LONG, Passes, bound_of, figure_of, rounding_of, rounds_otherwise
from differential.running import run
from differential.setting import ModelSpec, Setting, World, world_of, world_to
from differential.suites import FLOAT_NUMERICS, SUITES
from differential.trials import Trial
from engine_under_test.config import EngineConfig
from engine_under_test.model import llama
from engine_under_test.model.weights import LlamaConfig
from engine_under_test.types import Request, SamplingParams
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

CASES = tuple(tasks(Profile.QUICK, 7))
TRIALS = [(case, trial) for case in CASES for trial in case.trials]
ATTENTIONS = {
    "paged-torch": Setting("x"),
    "eager": Setting("x", attention="eager"),
    "fixed tiles": Setting("x", is_batch_invariant=True),
}
MODEL = ModelSpec("tiny", "bfloat16", 3, LlamaConfig(VOCAB, 48, 2, 4, 2, 16, 64))


def test_the_engine_is_valid() -> None:
    result = check_float_numerics(SuiteContext(Profile.QUICK, 7))
    assert (result.verdict, result.missed, result.failures) == (Verdict.VALID, (), ())
    assert result.examples == len(TRIALS)
    assert "the longest prompt of 1100 tokens" in result.note


def test_the_suite_bears_the_name_that_it_reports() -> None:
    assert FLOAT_NUMERICS in SUITES
    assert FLOAT_NUMERICS.id == float_numerics.SUITE_ID


def test_no_field_of_a_shape_is_the_same_in_all_models() -> None:
    shapes = [case.model.shape for case in CASES]
    for name in ("hidden_size", "num_layers", "num_heads", "num_kv_heads", "head_size", "intermediate_size", "rope_theta",
                 "rms_eps", "ties_head"):  # fmt: skip
        assert len({getattr(shape, name) for shape in shapes}) > 1, name
    assert all(shape is not None and shape.head_size != shape.hidden_size // shape.num_heads for shape in shapes)


def test_at_night_contexts_are_longer_and_models_more() -> None:
    nightly = tuple(tasks(Profile.NIGHTLY, 7))
    assert max(len(request.prompt) for case in nightly for request in case.requests) >= 1500
    assert len(nightly) > 4 * len(CASES)


@pytest.mark.parametrize("trial", [trial for _, trial in TRIALS], ids=[f"{case.model.words}: {t.name}" for case, t in TRIALS])
def test_a_world_with_its_scales_survives_a_file(trial: Trial) -> None:
    assert world_of(world_to(trial.world)) == trial.world


@pytest.mark.parametrize("eps", [1e-6, 1e-5, 1e-3, 1e-2])
def test_any_constant_in_place_of_eps_is_found_by_some_model(eps: float, monkeypatch: pytest.MonkeyPatch) -> None:
    right = llama.rms_norm
    monkeypatch.setattr(llama, "rms_norm", lambda hidden, weight, _eps: right(hidden, weight, eps))
    of_fields = CASES[:4]
    judged = [
        Judge(c.model, asks_second_oracle=False, asks_plans=False).judge(c.trials[0].world, c.requests) for c in of_fields
    ]
    assert [each.violation is None for each in judged] == [
        c.model.shape is not None and c.model.shape.rms_eps == eps for c in of_fields
    ]


def norm_in_bfloat16(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return hidden * torch.rsqrt(hidden.square().mean(dim=-1, keepdim=True) + eps) * weight


@pytest.mark.parametrize("lengths", [(33, 40), (63, 200)], ids=["one tile", "several tiles"])
@pytest.mark.parametrize("setting", ATTENTIONS.values(), ids=list(ATTENTIONS))
def test_the_bound_of_rounding_fails_a_norm_in_bfloat16_and_no_sound_engine(
    setting: Setting, lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(5)
    asked = [Request(f"r{n}", tuple(chance.choices(range(VOCAB), k=n)), SamplingParams(max_tokens=12)) for n in lengths]
    world = World(MODEL, EngineConfig(num_blocks=128, block_size=4, vocab_size=VOCAB), setting)
    own, rounding = oracles_of(MODEL).own, rounding_of(setting)
    sound = run(world, asked).emitted
    monkeypatch.setattr(llama, "rms_norm", norm_in_bfloat16)
    faulty = run(world, asked).emitted
    for rounded in Passes(MODEL).of(rounding, asks_second_oracle=True):
        allowed = bound_of(rounding, sound)
        assert rounds_otherwise(sound, own, rounded, allowed) is None
        found = rounds_otherwise(faulty, own, rounded, allowed)
        assert found is not None
        assert (found[0].invariant, found[0].seen[1].by) == ("SE-3", rounded.name)
        assert found[0].error == pytest.approx(figure_of(faulty, own, rounded))


def test_only_the_fallback_is_compared_with_the_published_model_in_bfloat16() -> None:
    named = {each: [o.name for o in Passes(MODEL).of(each, asks_second_oracle=True)] for each in Rounding}
    assert [len(names) for names in named.values()] == [2, 1, 1]
    assert "transformers in bfloat16" in named[Rounding.EAGER]


def test_a_short_context_in_tiles_has_the_narrow_bound() -> None:
    world = World(MODEL, EngineConfig(num_blocks=96, block_size=4, vocab_size=VOCAB), ATTENTIONS["fixed tiles"])
    short = run(world, requests(1)).emitted
    assert max(len(each.forced) for each in short) <= LONG
    assert bound_of(Rounding.TILED, short) < bound_of(Rounding.TILED, run(world, CASES[5].requests[-1:]).emitted)
