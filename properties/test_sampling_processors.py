"""Min-p, top-k and top-p against a plain reference, each alone and in their order; numpy and torch choose the same token."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.processors import apply_min_p, apply_top_k, apply_top_p, truncate
from engine_under_test.sampling.sampler import Draws
from engine_under_test.sampling.sampler import sample as numpy_sample
from engine_under_test.sampling.torch_sampler import sample as torch_sample
from engine_under_test.types import SamplingParams
from properties.doubles import RecordingNoise

Floats = npt.NDArray[np.float64]
# Few different values, so that ties at every edge are the rule; halves, so that sums of equals are exact.
rows = st.lists(st.sampled_from([0.0, -0.5, -0.5, -1.0, -2.0, -4.0, -math.inf]), min_size=1, max_size=12).map(
    lambda tail: [0.0, *tail]
)
ordered_rows = rows.flatmap(st.permutations)


def order(row: list[float]) -> list[int]:
    """Falling value, among equals rising token."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def plain_min_p(row: list[float], min_p: float) -> set[int]:
    return {token for token, value in enumerate(row) if math.exp(value) >= min_p * (1 - 1e-15)}


def plain_top_k(row: list[float], top_k: int) -> set[int]:
    return set(order(row)[:top_k])


def plain_top_p(row: list[float], top_p: float) -> set[int]:
    kept: set[int] = set()
    whole = math.fsum(math.exp(value) for value in row)
    for token in order(row):
        if math.fsum(math.exp(row[one]) for one in kept) >= top_p * whole:
            break
        kept.add(token)
    return kept


def left(row: Floats) -> set[int]:
    return set(np.flatnonzero(row > -np.inf).tolist())


def possible(row: list[float]) -> set[int]:
    return {token for token, value in enumerate(row) if value > -math.inf}


@settings(deadline=None)
@given(ordered_rows, st.sampled_from([0.01, 0.2, math.exp(-0.5), 0.61, 1.0]))
def test_min_p_keeps_what_is_at_least_so_probable_as_that_share_of_the_best(row: list[float], min_p: float) -> None:
    found = np.array(row)
    apply_min_p(found, min_p)
    assert left(found) == plain_min_p(row, min_p) & possible(row)


@settings(deadline=None)
@given(ordered_rows, st.integers(1, 14))
def test_top_k_keeps_the_first_k_of_the_order(row: list[float], top_k: int) -> None:
    found = np.array(row)
    apply_top_k(found, top_k)
    assert left(found) == plain_top_k(row, top_k) & possible(row)


@settings(deadline=None)
@given(ordered_rows, st.sampled_from([1e-9, 0.3, 0.5, 0.77, 0.9999]))
def test_top_p_keeps_the_shortest_beginning_of_the_order_that_reaches_p(row: list[float], top_p: float) -> None:
    found = np.array(row)
    apply_top_p(found, top_p)
    assert left(found) == plain_top_p(row, top_p) & possible(row)


@pytest.mark.parametrize(("top_p", "kept"), [(0.25, {1}), (0.5, {1, 2}), (0.51, {1, 2, 4}), (0.75, {1, 2, 4})])
def test_equals_at_the_edge_of_p_enter_by_rising_token(top_p: float, kept: set[int]) -> None:
    found = np.array([-np.inf, 0.0, 0.0, -np.inf, 0.0, 0.0])
    apply_top_p(found, top_p)
    assert left(found) == kept


@pytest.mark.parametrize("switch", [{"min_p": 0.0}, {"top_k": 0}, {"top_p": 1.0}, {"top_k": 99}], ids=str)
def test_a_step_that_is_off_keeps_everything(switch: dict[str, Any]) -> None:
    logits = np.random.default_rng(0).normal(size=50)
    found = logits.copy()
    truncate(found, replace(SamplingParams(temperature=0.5), **switch))
    assert (found == logits).all()


def test_min_p_comes_first_then_top_k_then_top_p_of_what_is_left() -> None:
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05]))
    params = SamplingParams(temperature=1.0, min_p=0.2, top_k=3, top_p=0.8)
    truncate(logits, params)
    assert left(logits) == {0, 1}  # of 0.4, 0.3, 0.15 the first two are 0.82; of everything they would be 0.7
    logits = np.log(np.array([0.4, 0.3, 0.15, 0.1, 0.05]))
    truncate(logits, replace(params, top_k=0))
    assert left(logits) == {0, 1, 2}  # of 0.4, 0.3, 0.15, 0.1


def test_the_steps_see_the_row_after_its_temperature() -> None:
    logits = np.log(np.array([0.5, 0.25, 0.25]))
    truncate(cold := logits.copy(), SamplingParams(temperature=0.5, min_p=0.3))
    truncate(warm := logits.copy(), SamplingParams(temperature=2.0, min_p=0.3))
    assert (left(cold), left(warm)) == ({0}, {0, 1, 2})


def some_params(count: int, seed: int) -> list[SamplingParams]:
    """Every combination of the three steps, cold and warm rows, rows with early stops."""
    rng = np.random.default_rng(seed)
    return [
        SamplingParams(
            max_tokens=8,
            min_tokens=int(rng.choice([0, 4])),
            temperature=float(rng.choice([0.0, 0.3, 1.0, 5.0])),
            seed=int(rng.integers(2**63)),
            stop_token_ids=tuple(rng.integers(0, 120, 3).tolist()),
            top_k=int(rng.choice([0, 1, 2, 20, 1000])),
            top_p=float(rng.choice([1.0, 0.95, 0.5, 1e-6])),
            min_p=float(rng.choice([0.0, 0.05, 0.5, 1.0])),
        )
        for _ in range(count)
    ]


def some_draws(params: list[SamplingParams]) -> Draws:
    return Draws(
        params, [row % 3 for row in range(len(params))], [5 + row % 4 for row in range(len(params))], [4] * len(params)
    )


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.sampled_from([torch.float32, torch.bfloat16]), st.sampled_from([3, 100, 5000]))
def test_torch_and_numpy_choose_the_same_tokens(seed: int, dtype: torch.dtype, vocab_size: int) -> None:
    params = some_params(16, seed)
    generator = torch.Generator().manual_seed(seed)
    logits = (3 * torch.randn(16, vocab_size, generator=generator)).to(dtype)  # in bfloat16 many are equal
    before = logits.clone()
    expected = numpy_sample(logits.double().numpy().copy(), some_draws(params), PhiloxNoise()).tolist()
    assert torch_sample(logits, some_draws(params), PhiloxNoise()) == expected
    assert torch.equal(logits, before)


def test_with_one_token_left_the_choice_is_the_greedy_one() -> None:
    logits = torch.zeros(3, 50)
    logits[:, 7] = logits[:, 30] = 1.0
    warm = SamplingParams(temperature=9.0)
    params = [replace(warm, top_k=1), replace(warm, top_p=1e-9), SamplingParams()]
    assert torch_sample(logits, some_draws(params), PhiloxNoise()) == [7, 7, 7]


def test_greedy_rows_draw_no_noise_and_others_once() -> None:
    noise = RecordingNoise(PhiloxNoise())
    params = [SamplingParams(temperature=warm, seed=9, top_k=k) for warm, k in ((0.0, 0), (1.0, 0), (1.0, 5), (0.0, 5))]
    torch_sample(torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), some_draws(params), noise)
    assert noise.take_addresses() == ((9, 1, 6, 0), (9, 2, 7, 0))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("fill", [-math.inf, math.nan], ids=["all masked", "not a number"])
def test_a_row_without_a_choice_gives_a_token_and_leaves_the_others_alone(temperature: float, fill: float) -> None:
    logits = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(temperature=temperature, top_p=0.9)] * 2
    alone = torch_sample(logits, some_draws(params), PhiloxNoise())
    logits[0] = fill
    assert torch_sample(logits, some_draws(params), PhiloxNoise()) == [0, alone[1]]


def test_noise_at_some_lanes_is_the_noise_at_all_of_them_there() -> None:
    lanes = np.array([40_000, 3, 3, 0, 49_151, 7, 4])
    address = np.array([2**64 - 2], np.uint64), np.array([5], np.uint32), np.array([77], np.uint32)
    whole = PhiloxNoise().uniform(*address, 2, 49_152)[0]
    assert PhiloxNoise().uniform_at(2**64 - 2, 5, 77, 2, lanes).tolist() == whole[lanes].tolist()
