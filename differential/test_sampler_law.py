"""The suite of the sampler's law passes the torch sampler, and fails samplers that get one thing wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from differential import sampler_law
from differential.sampler_cases import Batch, Case, batches
from differential.sampler_law import FLOORS, FLOORS_ADJUSTED, FLOORS_SERVED, check_sampler_law
from differential.sampler_rows import CoarseNoise, Rows, Sample, law_of
from differential.sampler_slips import slips
from engine_under_test.execution.batch import draws
from engine_under_test.sampling.adjustments import Processors
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.sampler import Draws, Sampled
from engine_under_test.sampling.torch_sampler import sample_and_tell as torch_sample
from engine_under_test.seams import Noise
from engine_under_test.types import History, LogprobsMode, SamplingParams
from models.law_of_filters import uniforms_at
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


def asks(change: Callable[[SamplingParams], SamplingParams]) -> Sample:
    """A sampler that reads other parameters than those of the rows."""

    def sample(logits: torch.Tensor, draws: Draws, noise: Noise, processors: Processors) -> Sampled:
        return torch_sample(logits, draws._replace(params=[change(each) for each in draws.params]), noise, processors)

    return sample


def with_draws(**columns: Callable[[int], int]) -> Sample:
    """A sampler that reads other addresses than those of the rows."""

    def sample(logits: torch.Tensor, draws: Draws, noise: Noise, processors: Processors) -> Sampled:
        changed: dict[str, Any] = {name: [change(each) for each in getattr(draws, name)] for name, change in columns.items()}
        return torch_sample(logits, draws._replace(**changed), noise, processors)

    return sample


def with_histories(change: Callable[[History], History]) -> Sample:
    """A sampler that sees other tokens in front of the place."""

    def sample(logits: torch.Tensor, draws: Draws, noise: Noise, processors: Processors) -> Sampled:
        histories = [None if each is None else change(each) for each in draws.histories]
        return torch_sample(logits, draws._replace(histories=histories), noise, processors)

    return sample


def backwards(logits: torch.Tensor, draws: Draws, noise: Noise, processors: Processors) -> Sampled:
    """Greedy rows take the highest of equals."""
    found = torch_sample(logits, draws, noise, processors)
    last = logits.shape[1] - 1
    ends = (last - logits.flip(1).argmax(dim=1)).tolist()
    is_plain = [one.temperature == 0 and not one.min_tokens for one in draws.params]
    tokens = [end if plain else token for token, end, plain in zip(found.tokens, ends, is_plain, strict=True)]
    return found._replace(tokens=tokens)


def masking_in_place(logits: torch.Tensor, draws: Draws, noise: Noise, processors: Processors) -> Sampled:
    found = torch_sample(logits, draws, noise, processors)
    logits[0, 0] = -torch.inf
    return found


def _without_choices(draws: Draws) -> Draws:
    return draws._replace(choices=[0] * len(draws.choices))


def _a_position_late(draws: Draws) -> Draws:
    return draws._replace(positions=[position + 1 for position in draws.positions])


WRONG = [
    pytest.param(asks(lambda one: replace(one, seed=one.seed % 2**32)), "SE-2", id="a seed cut to 32 bits"),
    pytest.param(asks(lambda one: replace(one, min_tokens=0)), "SC-12", id="min_tokens unheeded"),
    pytest.param(asks(lambda one: replace(one, top_k=one.top_k + bool(one.top_k))), "", id="top-k of one more"),
    pytest.param(asks(lambda one: replace(one, top_p=1.0)), "", id="top-p left out"),
    pytest.param(asks(lambda one: replace(one, min_p=0.0)), "", id="min-p left out"),
    pytest.param(with_draws(positions=lambda position: position % 2**16), "SE-2", id="a position cut to 16 bits"),
    pytest.param(with_draws(choices=lambda _choice: 0), "SE-2", id="a choice left out"),
    pytest.param(with_draws(prompt_lens=lambda length: length + 1), "", id="a prompt of one more"),
    pytest.param(backwards, "SE-1", id="the highest of equals"),
    pytest.param(masking_in_place, "SE-3", id="logits that are written to"),
    pytest.param(asks(lambda one: replace(one, bad_words=())), "", id="bad words left out"),
    pytest.param(with_histories(lambda one: History(one.prompt, one.output[:-1])), "", id="an output without its last token"),
    pytest.param(with_histories(lambda one: History((), one.prompt + one.output)), "", id="a prompt taken for output"),
    pytest.param(asks(lambda one: replace(one, logprobs_mode=LogprobsMode.PROCESSED)), "SE-3", id="processed for raw"),
    pytest.param(asks(lambda one: replace(one, logprobs=one.logprobs or None)), "SE-3", id="0 taken for none"),
]


def test_the_torch_sampler_is_valid_and_every_slip_was_decided_about() -> None:
    result = check_sampler_law(SuiteContext(Profile.QUICK, 11))
    assert (result.verdict, result.failures, result.missed) == (Verdict.VALID, (), ())
    assert set(result.reached) == {*FLOORS, *FLOORS_ADJUSTED, *(f"served: {name}" for name in FLOORS_SERVED)}


@pytest.mark.parametrize(("sample", "invariant"), WRONG)
def test_it_finds(sample: Sample, invariant: str) -> None:
    result = check_sampler_law(SuiteContext(Profile.QUICK, 11, shrink_s=0.5), sample)
    assert result.verdict is Verdict.INVALID
    (failure,) = result.failures
    assert failure.violation.invariant == invariant or not invariant


def test_a_wrong_token_is_told_with_the_slip_that_leads_to_it_in_a_batch_of_one_row() -> None:
    result = check_sampler_law(SuiteContext(Profile.QUICK, 11, shrink_s=6.0), with_draws(choices=lambda _choice: 0))
    violation = result.failures[0].violation
    assert violation.subject == "a batch of 1 row"
    assert any("choice left out" in fact for fact in violation.facts)
    assert any(fact.split()[:3] == ["address", "seed", "0,"] for fact in violation.facts)


def test_a_floor_that_was_missed_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler_law, "FLOORS", {"top-k left out": 1_000})
    monkeypatch.setattr(sampler_law, "FLOORS_SERVED", {})
    monkeypatch.setattr(sampler_law, "BATCHES", {Profile.QUICK: 4})
    result = check_sampler_law(SuiteContext(Profile.QUICK, 11))
    assert result.verdict is Verdict.UNKNOWN
    assert result.missed[0].startswith("top-k left out: decided at least 40 times, found ")


def test_batches_are_those_of_the_seed() -> None:
    one, other, third = (tuple(islice(batches(seed), 6)) for seed in (5, 5, 6))
    assert [told(each) for each in one] == [told(each) for each in other]
    assert [told(each) for each in one] != [told(each) for each in third]


def test_neighbours_stand_beside_their_case_and_differ_from_it_in_one_part() -> None:
    (near,) = (each.cases for each in islice(batches(5), 9) if each.cases[0].kind == "neighbours")
    addresses = [(one.address.seed, one.choice, one.position) for one in near]
    base = addresses[1]
    differing = [sum(a != b for a, b in zip(one, base, strict=True)) for one in addresses]
    assert differing == [1, 0] * (len(near) // 2)
    assert any(seed != base[0] and seed % 2**32 == base[0] % 2**32 for seed, _choice, _position in addresses)


def told(batch: Batch) -> list[tuple[str, bytes, SamplingParams, int, int]]:
    return [(case.kind, case.logits.tobytes(), case.sampling, case.choice, case.position) for case in batch.cases]


def test_coarse_noise_is_the_same_lane_by_lane() -> None:
    noise = CoarseNoise()
    whole = noise.uniform(np.array([9], np.uint64), np.array([1], np.uint32), np.array([4], np.uint32), 0, 500)[0]
    assert len(set(whole.tolist())) == 16
    lanes = np.array([3, 77, 499])
    assert noise.uniform_at(9, 1, 4, 0, lanes).tolist() == whole[lanes].tolist()
    fine = PhiloxNoise().uniform_at(9, 1, 4, 0, lanes)
    assert np.abs(fine - whole[lanes]).max() <= 1 / 32


def test_a_row_in_which_nothing_hangs_on_a_slip_decides_nothing_about_it() -> None:
    logits = np.array([9.0, 0.0, 0.0], np.float32)
    case = Case("by hand", logits, SamplingParams(temperature=0.01, seed=2**40), 0, 1, 1)
    row, draw = law_of(case)
    assert draw.token == 0
    assert [name for name, token in slips(case, row, uniforms_at) if token() not in draw.allowed] == []
    assert Rows(torch_sample).judge(Batch((case,)), is_coarse=False) is None


@pytest.mark.parametrize("fault", [_without_choices, _a_position_late], ids=["rows of a first choice", "a position late"])
def test_a_runner_that_asks_the_sampler_for_another_address_is_found_in_a_workload(
    fault: Callable[[Draws], Draws], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_law, "BATCHES", {Profile.QUICK: 0})
    monkeypatch.setattr("engine_under_test.execution.transformer.draws", lambda plan, in_flight: fault(draws(plan, in_flight)))
    result = check_sampler_law(SuiteContext(Profile.QUICK, 11, shrink_s=0.2))
    (failure,) = result.failures
    assert failure.violation.invariant == "SE-2"
    assert failure.world["target"] == "transformer"
    assert 0 < len(failure.ops) <= failure.ops_found == 8
