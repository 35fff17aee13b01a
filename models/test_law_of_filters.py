"""The law of the filters against the law of the fingerprint model, by hand, and under logits that are off."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_under_test.types import SamplingParams
from models.law_of_filters import Address, Drawn, Floats, kept, next_token, uniforms_at
from models.words import SAMPLE, uniforms

WARM = SamplingParams(temperature=1.0)
HERE = Address(7, 2, 40, 3)
ANYWHERE = SamplingParams(temperature=0.7, min_p=0.02, top_k=9, top_p=0.9)


def tokens_kept(logits: list[float], sampling: SamplingParams) -> list[int]:
    row = kept(np.array(logits), sampling)
    assert row.is_sure.all()
    found: list[int] = row.tokens.tolist()
    return found


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        pytest.param(replace(WARM, top_k=2), [1, 2], id="two equals at the second place: the lower one"),
        pytest.param(replace(WARM, top_k=3), [1, 2, 4], id="room for both"),
        pytest.param(replace(WARM, top_k=9), [0, 1, 2, 3, 4], id="more than there are"),
        pytest.param(replace(WARM, min_p=1.0), [1], id="as probable as the first"),
        pytest.param(replace(WARM, min_p=0.3), [1, 2, 4], id="a third as probable"),
        pytest.param(replace(WARM, top_p=1e-9), [1], id="next to nothing: the first"),
        pytest.param(replace(WARM, top_p=0.56), [1, 2], id="reached with the second"),
        pytest.param(replace(WARM, top_k=3, top_p=0.56), [1], id="of what top-k left"),
        pytest.param(replace(WARM, top_k=1, temperature=1e-300), [1], id="a temperature of nearly nothing"),
    ],
)
def test_what_is_kept(sampling: SamplingParams, expected: list[int]) -> None:
    assert tokens_kept([0.0, 3.0, 2.0, -1.0, 2.0, -np.inf], sampling) == expected


def test_a_nucleus_that_a_whole_number_of_equals_reaches_ends_there() -> None:
    equals = [-np.inf, 5.0, 5.0, 5.0, 5.0]
    assert tokens_kept(equals, replace(WARM, top_p=0.5)) == [1, 2]
    assert tokens_kept(equals, replace(WARM, top_p=0.51)) == [1, 2, 3]


def test_a_nucleus_whose_end_hangs_on_rounding_is_undecided_and_says_so() -> None:
    row = kept(np.array([1.0, 0.0, -1.0]), replace(WARM, top_p=(1 + np.exp(-1)) / (1 + np.exp(-1) + np.exp(-2))))
    assert (row.tokens.tolist(), row.is_sure.tolist()) == ([0, 1, 2], [True, True, False])


def test_greedy_takes_the_lowest_of_equals_and_token_0_of_nothing() -> None:
    greedy = SamplingParams(min_tokens=1, stop_token_ids=(1,))
    assert next_token(np.array([0.0, 4.0, 2.0, 2.0]), greedy, replace(HERE, index=0)).token == 2
    assert next_token(np.array([0.0, 4.0, 2.0, 2.0]), greedy, HERE).token == 1
    assert next_token(np.array([-np.inf, 4.0]), replace(greedy, temperature=1.0), replace(HERE, index=0)).token == 0


def test_noise_lane_by_lane_is_the_noise_of_all_lanes() -> None:
    whole = uniforms(HERE.seed, HERE.choice, np.array([HERE.position]), SAMPLE, 50_000)[0]
    for lanes in (np.array([0]), np.array([3, 4, 4_099, 49_999]), np.arange(30_000)):
        assert uniforms_at(HERE, lanes).tolist() == whole[lanes].tolist()


def test_equal_logits_with_equal_noise_go_to_the_lowest() -> None:
    def constant(_address: Address, lanes: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> Floats:
        return np.full(len(lanes), 0.5)

    found = next_token(np.array([0.0, 1.0, 1.0, 1.0]), WARM, HERE, noise=constant)
    assert (found.token, found.allowed) == (1, frozenset({1}))


def off_by(logits: Floats, slack: float, sampling: SamplingParams, rng: np.random.Generator) -> Drawn:
    """What comes if each logit is off by up to `slack`; most are off as far as they may be."""
    errors = slack * rng.choice([-1.0, 0.3, 1.0], size=len(logits))
    return next_token(logits + errors, sampling, HERE)


@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-6, 1e-3, 0.05, 0.4]),
    st.sampled_from(
        [
            SamplingParams(),
            WARM,
            replace(WARM, min_p=0.1),
            replace(WARM, top_k=3),
            replace(WARM, top_p=0.6),
            ANYWHERE,
            replace(ANYWHERE, min_tokens=9, stop_token_ids=(1, 2)),
        ]
    ),
)
def test_whatever_logits_that_are_off_lead_to_is_allowed(seed: int, slack: float, sampling: SamplingParams) -> None:
    rng = np.random.default_rng(seed)
    logits = np.round(rng.standard_normal(30) * 2, 1)
    law = next_token(logits, sampling, HERE, slack)
    for _ in range(6):
        found = off_by(logits, slack, sampling, rng)
        assert found.allowed <= law.allowed, (found.token, law)


def test_slack_allows_what_ties_within_it_and_nothing_else() -> None:
    logits = np.array([0.0, 4.0, 3.99, 1.0])
    assert next_token(logits, SamplingParams(), HERE, 0.01).allowed == {1, 2}
    assert next_token(logits, SamplingParams(), HERE, 0.001).allowed == {1}
    narrow = next_token(logits, replace(WARM, top_k=1), HERE, 0.01)
    assert narrow.allowed == {1, 2}
    assert narrow.behind(3) == np.inf
    assert next_token(logits, replace(WARM, top_k=1), HERE, 0.001).allowed == {1}
