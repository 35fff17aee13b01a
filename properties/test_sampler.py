"""The sampler against a plain float64 reference, row by row."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.sampler import Draws, greedy, gumbel_max, mask_early_stops, mask_tokens, sample
from engine_under_test.types import SamplingParams
from properties.doubles import RecordingNoise

VOCABULARY = 16


def some_logits(rows: int, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).uniform(0, 8, (rows, VOCABULARY))


def plain_choice(logits: list[float], temperature: float, uniforms: list[float]) -> int:
    """The definition, one token after the other, with the standard library."""
    scores = [
        logit if temperature == 0 else logit / temperature - math.log(-math.log(uniform))
        for logit, uniform in zip(logits, uniforms, strict=True)
    ]
    return scores.index(max(scores))


def plain_uniforms(params: SamplingParams, choice: int, position: int) -> list[float]:
    address = np.array([params.seed], np.uint64), np.array([choice], np.uint32), np.array([position], np.uint32)
    return PhiloxNoise().uniform(*address, 0, VOCABULARY)[0].tolist()  # type: ignore[no-any-return]  # numpy types `tolist` as Any


def test_greedy_takes_the_lowest_token_among_equals() -> None:
    assert greedy(np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0], [0.0, -1.0, 0.5]])).tolist() == [1, 0, 2]


def test_a_mixed_batch_is_what_the_definition_says_row_by_row() -> None:
    temperatures = [0.0, 1.0, 0.25, 3.0, 0.0, 1.0] * 20
    params = [SamplingParams(temperature=one, seed=row * 2**57 + row) for row, one in enumerate(temperatures)]
    choices, positions = [row % 3 for row in range(len(params))], [5 + row for row in range(len(params))]
    draws = Draws(params, choices, positions, [4] * len(params))
    logits = some_logits(len(params))
    expected = [
        plain_choice(row, one.temperature, plain_uniforms(one, choice, position))
        for row, one, choice, position in zip(logits.tolist(), params, choices, positions, strict=True)
    ]
    assert sample(logits.copy(), draws, PhiloxNoise()).tolist() == expected
    assert len({token for token, temperature in zip(expected, temperatures, strict=True) if temperature}) > 5


def test_greedy_rows_draw_no_noise() -> None:
    noise = RecordingNoise(PhiloxNoise())
    params = [SamplingParams(temperature=temperature, seed=9) for temperature in (0.0, 2.0, 0.0)]
    draws = Draws(params, (0, 1, 2), (7, 7, 7), (4, 4, 4))
    sample(some_logits(3), draws, noise)
    assert noise.take_addresses() == ((9, 1, 7, 0),)


def test_masked_tokens_are_never_sampled() -> None:
    logits = np.zeros((1, 3))
    mask_tokens(logits, 0, (0, 2, 3, -1))
    uniforms = np.random.default_rng(1).uniform(size=(500, 3))
    assert set(gumbel_max(logits.repeat(500, axis=0), np.full(500, 1.0), uniforms).tolist()) == {1}


@pytest.mark.parametrize(("num_out", "is_masked"), [(0, True), (1, True), (2, False), (3, False)])
def test_stop_tokens_are_masked_exactly_until_min_tokens_are_out(num_out: int, is_masked: bool) -> None:
    logits = some_logits(2)
    params = SamplingParams(min_tokens=2, stop_token_ids=(3, VOCABULARY))
    mask_early_stops(logits, Draws([SamplingParams(), params], (0, 0), (4, 4 + num_out), (4, 4)))
    assert (logits == -np.inf).any(axis=0).tolist() == [is_masked and token == 3 for token in range(VOCABULARY)]


@pytest.mark.parametrize("temperature", [1e-310, 1e-9])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    logits = some_logits(50)
    uniforms = np.random.default_rng(2).uniform(size=logits.shape)
    assert (gumbel_max(logits, np.full(50, temperature), uniforms) == greedy(logits)).all()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_everything_masked_the_choice_is_token_zero(temperature: float) -> None:
    params = SamplingParams(temperature=temperature, max_tokens=4, min_tokens=4, stop_token_ids=tuple(range(VOCABULARY)))
    assert sample(some_logits(1), Draws([params], [0], [4], [4]), PhiloxNoise()).tolist() == [0]


def test_rows_that_drop_tokens_leave_their_batch_mates_alone() -> None:
    plain = [SamplingParams(temperature=1.0, seed=row) for row in range(60)]
    dropping = [replace(one, top_k=1) if row % 3 == 0 else one for row, one in enumerate(plain)]
    logits, rows = some_logits(60), list(range(60))
    draws = Draws(plain, [0] * 60, [5] * 60, [4] * 60)
    before = sample(logits.copy(), draws, PhiloxNoise())
    after = sample(logits.copy(), draws._replace(params=dropping), PhiloxNoise())
    assert [after[row] for row in rows if row % 3] == [before[row] for row in rows if row % 3]
    assert [after[row] for row in rows if row % 3 == 0] == greedy(logits)[::3].tolist()
