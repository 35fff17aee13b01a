"""The suites of language models: valid on the engine; a fault is found, shrunk and explained by both oracles; what can not be
run is unknown and says why."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from differential import float_settings, smollm2
from differential.doubles import angles_late_from
from differential.float_settings import TRIALS, check_float_settings, models
from differential.prompts import PROMPTS
from differential.setting import ModelSpec
from differential.suites import FLOAT_SETTINGS, SMOLLM2, SUITES
from differential.trials import Trial
from engine_under_test.execution import products
from engine_under_test.model import llama
from engine_under_test.model.weights import LlamaWeights
from properties.suite import CheckResult, Label, Profile, SuiteContext
from properties.verdict import Verdict

CONTEXT = SuiteContext(Profile.QUICK, 11)
MODEL = next(models(Profile.QUICK, 11))
SHORT = tuple(TRIALS[place] for place in (3, 10, 13))  # cached; a pool too small; chunks, overlap and preemption


def test_the_engine_is_valid() -> None:
    result = check_float_settings(CONTEXT, trials=SHORT)
    assert (result.verdict, result.missed, result.failures) == (Verdict.VALID, (), ())
    assert result.examples == 2 * len(SHORT)
    assert result.ops == 8 * result.examples
    assert {figure.label for figure in result.figures} == {Label.OBSERVED}
    assert "plans as with fingerprints" in result.note


@pytest.fixture(scope="module")
def late() -> CheckResult:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(llama, "angles", angles_late_from(8))
        return check_float_settings(CONTEXT, trials=SHORT)


def test_a_rope_that_is_a_position_late_is_found(late: CheckResult) -> None:
    assert late.verdict is Verdict.INVALID
    assert late.failures[0].violation.invariant in ("SE-1", "SE-3")


def test_it_is_shrunk_to_one_request_that_just_reaches_the_first_late_position(late: CheckResult) -> None:
    failure = late.failures[0]
    assert (failure.ops_found, len(failure.ops)) == (8, 1)
    request = failure.ops[0].request
    assert request is not None
    assert len(request.prompt) + request.sampling.max_tokens - 1 == 9
    setting = failure.world["setting"]
    assert set(setting) == {"name"}


def test_it_is_explained_by_both_oracles(late: CheckResult) -> None:
    told = {fact.split()[0]: [float(word) for word in fact.split()[3::3]] for fact in late.failures[0].violation.facts[:3]}
    assert list(told) == ["engine", "reference", "transformers"]
    assert told["reference"] == pytest.approx(told["transformers"], abs=1e-3)
    assert told["engine"] != pytest.approx(told["reference"], abs=1e-3)


@pytest.mark.parametrize(
    ("layout", "name"),
    [pytest.param("_transposed", "packed weights, alone", id="for one row"),
     pytest.param("_blocked", "packed weights, 5 at most", id="for several")],
)  # fmt: skip
def test_a_packed_copy_of_another_matrix_is_found(monkeypatch: pytest.MonkeyPatch, layout: str, name: str) -> None:
    make = products.PackedProduct.__init__

    def with_gate_for_up(packed: products.PackedProduct, weights: LlamaWeights) -> None:
        make(packed, weights)
        copies, layer = getattr(packed, layout), weights.layers[0]
        copies[id(layer.up)] = copies[id(layer.gate)]

    monkeypatch.setattr(products.PackedProduct, "__init__", with_gate_for_up)
    chosen = [each for each in TRIALS if each(MODEL).name == name]
    result = check_float_settings(CONTEXT, trials=chosen)
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].world["setting"]["packs_weights"] is True


def test_no_token_at_all_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request that failed leaves no error of a logit behind: the suite tells of the failure, and does not crash."""

    def broken(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("a device that computes nothing")

    monkeypatch.setattr(llama, "logits", broken)
    result = check_float_settings(replace(CONTEXT, shrink_s=0.5), trials=TRIALS[:1])
    assert result.verdict is Verdict.INVALID
    assert [figure.value for figure in result.figures] == [0.0]


def test_a_floor_that_is_missed_is_unknown() -> None:
    def never(model: ModelSpec) -> Trial:
        return replace(TRIALS[0](model), floors={"steps": 10_000})

    result = check_float_settings(CONTEXT, trials=(never,))
    assert result.verdict is Verdict.UNKNOWN
    assert result.missed[0].startswith("alone: steps at least 10000 times, found")


def test_a_model_that_was_not_fetched_is_unknown_and_says_how_to_have_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ASSAY_CACHE", str(tmp_path))
    result = SMOLLM2.run(SuiteContext(Profile.PR, 1))
    assert (result.verdict, result.examples) == (Verdict.UNKNOWN, 0)
    assert "say assay model fetch" in result.note


def test_a_missing_extra_is_unknown_and_says_how_to_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "differential.float_settings")
    monkeypatch.setitem(sys.modules, "torch", None)
    for name in [name for name in sys.modules if name.startswith("differential.") and name != "differential.suites"]:
        monkeypatch.delitem(sys.modules, name)
    result = FLOAT_SETTINGS.run(CONTEXT)
    assert result.verdict is Verdict.UNKNOWN
    assert "needs the extra 'model', found that torch is not installed; say pip install" in result.note


def test_whoever_lists_the_suites_does_not_load_torch() -> None:
    code = "import sys, differential.suites; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_suites_bear_the_names_that_they_report() -> None:
    assert {FLOAT_SETTINGS.id, SMOLLM2.id} <= {suite.id for suite in SUITES}
    assert FLOAT_SETTINGS.id == float_settings.SUITE_ID
    assert SMOLLM2.id == smollm2.SUITE_ID


def test_the_prompts_are_at_least_eight_with_a_chat_code_and_a_long_one() -> None:
    assert len(PROMPTS) >= 8
    assert any(prompt.is_chat for prompt in PROMPTS)
    assert {"code", "long"} <= {prompt.name for prompt in PROMPTS}
    assert any(ord(letter) > 0x3000 for prompt in PROMPTS for letter in prompt.text)
