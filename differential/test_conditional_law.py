"""Claims about laws behind what stands in front, and about estimates: both rates of the test hold, intervals hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from differential import estimates
from differential.conditional_law import (
    LEAST,
    Conditional,
    cells_for,
    counted,
    judge_given,
    pearson_given,
    shape_for,
    violation_given,
)
from differential.error_budget import Entry, Ledger, least_favourable, smallest_effect
from differential.markov import LAW
from differential.sampling_stats import Question, judge
from properties.verdict import Verdict

GROUPS, CELLS = 4, 5
CELL = cells_for(LAW, CELLS)
LAW_OF_CELLS = np.asarray(np.bincount(CELL, weights=LAW), np.float64)
NUM = 33_728
ENTRY = "served-batched-behind-step"


def asked(counts: np.ndarray) -> Conditional:
    return Conditional(ENTRY, "ST-3", "noise", "nothing of it matters", counts, LAW_OF_CELLS)


def test_p_values_of_pairs_that_overlap_are_uniform_where_steps_are_independent() -> None:
    chance, found = np.random.default_rng(5), []
    group = cells_for(LAW, GROUPS)
    for _ in range(200):
        drawn = chance.choice(len(LAW), size=(250, 33), p=LAW)
        counts = counted(group[drawn[:, :-1]], CELL[drawn[:, 1:]], (GROUPS, CELLS))
        found.append(pearson_given(counts, LAW_OF_CELLS)[1])
    assert stats.kstest(found, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("is_seen_pooled", [False, True], ids=["biases that cancel", "a bias in one direction"])
def test_the_mean_effect_that_is_stated_is_found_as_often_as_stated(is_seen_pooled: bool) -> None:
    """Where biases of the groups cancel the pooled law is right, and its test passes what this one rejects."""
    effect = judge_given(asked(np.full((GROUPS, CELLS), NUM // 20)), Ledger()).tv_min
    assert effect < 0.03
    up = least_favourable(LAW_OF_CELLS, effect)
    down = 2 * LAW_OF_CELLS - up
    chance, alpha = np.random.default_rng(7), Ledger().take(ENTRY)
    laws = [up] * GROUPS if is_seen_pooled else [up, down] * (GROUPS // 2)
    each = [chance.multinomial(NUM // GROUPS, law, size=4000) for law in laws]
    counts = np.stack(each, axis=1)
    missed = [pearson_given(one, LAW_OF_CELLS)[1] >= alpha for one in counts]
    assert np.mean(missed) <= 0.0025
    pooled = Question("sampler-law", "ST-2", "sampler", "", counts[0].sum(axis=0), LAW_OF_CELLS)
    assert (judge(pooled, Ledger()).verdict is Verdict.INVALID) is is_seen_pooled


def test_a_rejection_names_the_groups_and_estimates_the_mean_effect() -> None:
    counts = np.array([[2000, 1500, 1500, 1500, 1500], [1000, 1500, 1500, 1500, 1500]] * 2)
    answer = judge_given(asked(counts), Ledger())
    assert answer.verdict is Verdict.INVALID
    told = violation_given(asked(counts), answer)
    assert len(told.facts) == 1 + GROUPS
    assert "estimated total variation" in told.found


@pytest.mark.parametrize("num", [2500, 8000, 20_000, 40_000, 10**6])
def test_cells_of_groups_expect_enough(num: int) -> None:
    groups, cells = shape_for(num)
    law = np.bincount(cells_for(LAW, cells), weights=LAW)
    if num > 8000:
        assert law.min() * num / groups >= LEAST * 0.8
    assert law.sum() == pytest.approx(1)
    assert len(law) == cells


# Estimates


def test_intervals_of_a_total_variation_hold_it_as_often_as_they_say() -> None:
    chance = np.random.default_rng(3)
    law = chance.dirichlet(np.full(30, 2.0))
    for effect, num in ((0.0, 2000), (0.02, 2000), (0.1, 500)):
        wrong = least_favourable(law, effect) if effect else law
        found = [estimates.of_distance(counts, law) for counts in chance.multinomial(num, wrong, size=300)]
        held = np.mean([each.low <= effect <= each.high and each.low <= each.value <= each.high for each in found])
        assert held >= estimates.CONFIDENCE


def test_an_estimate_behind_groups_is_the_mean_of_theirs() -> None:
    law = np.full(4, 0.25)
    counts = np.array([[40_000, 40_000, 10_000, 10_000], [25_000] * 4])
    found = estimates.of_distance(counts, law)
    assert found.value == pytest.approx(0.15, abs=0.003)
    assert found.low < 0.15 < found.high


@pytest.mark.parametrize(("rate", "num"), [(0.05, 400), (0.001, 3000), (0.5, 50)])
def test_intervals_of_a_rate_hold_it_as_often_as_they_say(rate: float, num: int) -> None:
    share = 0.05
    counts = np.random.default_rng(9).binomial(num, rate, size=300).tolist()
    held = [each.low <= abs(rate - share) <= each.high for each in (estimates.of_rate(count, num, share) for count in counts)]
    assert np.mean(held) >= estimates.CONFIDENCE


def test_an_interval_of_kolmogorovs_distance_holds_it() -> None:
    """Numbers of density 1.2 below one half and 0.8 above it are 0.1 away."""
    chance, held = np.random.default_rng(2), 0
    for _ in range(300):
        numbers = chance.random(400) / 2 + 0.5 * (chance.random(400) < 0.4)
        found = estimates.of_kolmogorov(float(stats.kstest(numbers, "uniform").statistic), 400)
        held += found.low <= 0.1 <= found.high
    assert held >= 297


def test_more_samples_find_a_smaller_mean_effect() -> None:
    assert smallest_effect(4 * NUM, GROUPS * (CELLS - 1) + 1, Entry("x", 5e-9).alpha, 0.999) < 0.015
