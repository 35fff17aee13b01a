"""The statistical tests of the processed softmax pass the torch sampler and fail samplers that are a little wrong."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from differential import processed_stats
from differential.error_budget import Ledger
from differential.processed_stats import (
    EFFECT,
    LEAST_CELL,
    SETTINGS,
    Setting,
    TorchSample,
    ask,
    cells_of,
    check_processed,
    processed_law,
    real_logits,
)
from differential.sampling_stats import POWER, judge
from engine_under_test.sampling.sampler import Draws
from engine_under_test.sampling.torch_sampler import sample as torch_sample
from engine_under_test.seams import Noise
from engine_under_test.types import SamplingParams
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

BY_ID = {setting.entry_id: setting for setting in SETTINGS}
LOGITS = real_logits()


def with_params(**changed: Any) -> TorchSample:
    """A sampler that reads these parameters in place of the row's own."""

    def sample(logits: torch.Tensor, draws: Draws, noise: Noise) -> list[int]:
        params = [replace(one, **changed) for one in draws.params]
        return torch_sample(logits, draws._replace(params=params), noise)

    return sample


def found_wrong(entry_id: str, sample: TorchSample) -> tuple[bool, bool]:
    """Whether the law was rejected, and whether something was drawn that can not be."""
    setting = BY_ID[entry_id]
    logits = setting.rounded(LOGITS)
    law = processed_law(logits.double().tolist(), setting.params)
    question, forbidden = ask(setting, logits, law, EFFECT[Profile.QUICK], 99 << 32, sample)
    return judge(question, Ledger()).verdict is Verdict.INVALID, forbidden is not None


def test_the_torch_sampler_is_valid_and_says_how_finely_that_was_seen() -> None:
    result = check_processed(SuiteContext(Profile.QUICK, 7))
    assert (result.verdict, result.failures) == (Verdict.VALID, ())
    assert [one.id for one in result.statistics] == list(BY_ID)
    for one in result.statistics:
        assert one.p > 1e-4
        assert one.tv_min <= EFFECT[Profile.QUICK]
        assert one.power >= POWER - 1e-9


@pytest.mark.parametrize(
    ("entry_id", "changed", "wrong"),
    [
        pytest.param("processed-plain", {"temperature": 1.7}, (True, False), id="a temperature that is a little too high"),
        pytest.param("processed-min-p", {"min_p": 0.0}, (True, True), id="min-p ignored"),
        pytest.param("processed-top-k", {"top_k": 13}, (None, True), id="top-k of one more"),
        pytest.param("processed-top-k", {"top_k": 10}, (True, False), id="top-k of two less"),
        pytest.param("processed-ties", {"top_k": 13}, (None, True), id="top-k of one more among equals"),
        pytest.param("processed-top-p", {"top_p": 0.82}, (None, True), id="top-p a little too wide"),
        pytest.param("processed-top-p", {"top_p": 0.72}, (True, False), id="top-p too narrow"),
        pytest.param("processed-together", {"top_p": 1.0}, (True, True), id="top-p ignored beside the others"),
    ],
)
def test_it_finds(entry_id: str, changed: dict[str, object], wrong: tuple[bool | None, bool]) -> None:
    is_rejected, is_forbidden = found_wrong(entry_id, with_params(**changed))
    assert (is_rejected if wrong[0] is not None else None, is_forbidden) == wrong  # None: one way or the other


def test_the_suite_names_what_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processed_stats, "SETTINGS", (BY_ID["processed-top-k"],))
    result = check_processed(SuiteContext(Profile.QUICK, 7), with_params(top_k=0))
    assert result.verdict is Verdict.INVALID
    assert {failure.violation.invariant for failure in result.failures} == {"ST-2"}
    assert any("top-k" in failure.violation.subject for failure in result.failures)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_law_and_its_cells_hold_what_can_be_drawn(setting: Setting) -> None:
    law = processed_law(setting.rounded(LOGITS).double().tolist(), setting.params)
    cells = cells_of(law)
    assert math.fsum(law) == pytest.approx(1)
    assert sorted(token for cell in cells for token in cell) == [token for token, share in enumerate(law) if share > 0]
    assert min(math.fsum(law[token] for token in cell) for cell in cells) >= LEAST_CELL
    assert len(cells) >= 10


def test_the_last_token_that_top_k_keeps_is_one_of_several_equal_ones() -> None:
    setting = BY_ID["processed-ties"]
    ordered = setting.rounded(LOGITS).sort(descending=True).values
    assert ordered[setting.params.top_k - 1] == ordered[setting.params.top_k]


def test_the_law_of_a_few_tokens_is_the_one_by_hand() -> None:
    logits = np.log([0.4, 0.3, 0.15, 0.1, 0.05]).tolist()
    warm = SamplingParams(temperature=1.0)
    assert processed_law(logits, warm) == pytest.approx([0.4, 0.3, 0.15, 0.1, 0.05])
    assert processed_law(logits, replace(warm, min_p=0.3)) == pytest.approx([8 / 17, 6 / 17, 3 / 17, 0, 0])
    assert processed_law(logits, replace(warm, top_k=2, top_p=0.9)) == pytest.approx([4 / 7, 3 / 7, 0, 0, 0])
    assert processed_law(logits, replace(warm, top_k=2, top_p=0.5)) == pytest.approx([1, 0, 0, 0, 0])
