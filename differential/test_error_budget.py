"""The ledger refuses what would break its promise, and its figures for power are true."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from differential.error_budget import (
    ENTRIES,
    TOTAL_ALPHA,
    Entry,
    Ledger,
    chi_square_power,
    least_favourable,
    pearson,
    samples_needed,
    smallest_effect,
)
from engine_under_test.errors import ConfigError, ProtocolError

LAW = np.array([0.3, 0.25, 0.2, 0.15, 0.1])


def test_the_gates_entries_stay_within_one_false_alarm_in_a_million() -> None:
    ledger = Ledger()
    assert ledger.total == TOTAL_ALPHA == 1e-6
    for entry in ENTRIES:
        assert ledger.take(entry.id) == entry.alpha
    assert 0 < ledger.spent <= TOTAL_ALPHA


def test_over_spending_is_refused() -> None:
    with pytest.raises(ConfigError, match="together"):
        Ledger([Entry("a", 6e-7), Entry("b", 5e-7)])


@pytest.mark.parametrize("alpha", [0.0, -1e-8, 1.0, float("nan")], ids=["zero", "negative", "one", "not a number"])
def test_a_rate_that_is_none_is_refused(alpha: float) -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Ledger([Entry("a", alpha)], total=2.0)


def test_an_entry_can_not_stand_twice() -> None:
    with pytest.raises(ConfigError, match="twice"):
        Ledger([Entry("a", 1e-8), Entry("a", 1e-8)])


def test_a_test_is_not_repeated() -> None:
    ledger = Ledger([Entry("a", 1e-8)])
    ledger.take("a")
    with pytest.raises(ProtocolError, match="never repeat"):
        ledger.take("a")


def test_a_test_without_an_entry_gets_nothing() -> None:
    with pytest.raises(ProtocolError, match="'b'"):
        Ledger([Entry("a", 1e-8)]).take("b")


def rejections(law: np.ndarray[tuple[int], np.dtype[np.float64]], num_samples: int, alpha: float, trials: int = 2000) -> float:
    """How often `pearson` rejects LAW when samples follow `law`."""
    counts = np.random.default_rng(5).multinomial(num_samples, law, size=trials)
    return float(np.mean([pearson(row, LAW)[1] < alpha for row in counts]))


def test_false_alarms_come_as_often_as_stated() -> None:
    assert rejections(LAW, 20_000, alpha=0.05) == pytest.approx(0.05, abs=0.015)


@pytest.mark.parametrize(
    ("num_samples", "effect", "alpha"),
    [(10_000, 0.02, 0.01), (20_000, 0.02, 0.001), (40_000, 0.012, 0.05)],
    ids=["near a half", "near nine tenths", "near one"],
)
def test_power_is_what_a_simulation_finds_in_the_hardest_direction(num_samples: int, effect: float, alpha: float) -> None:
    shifted = least_favourable(LAW, effect)
    assert np.abs(shifted - LAW).sum() / 2 == pytest.approx(effect)
    stated = chi_square_power(num_samples, effect, len(LAW), alpha)
    assert rejections(shifted, num_samples, alpha) == pytest.approx(stated, abs=0.03)


def test_no_direction_is_less_favourable() -> None:
    rng = np.random.default_rng(6)
    for _ in range(200):
        law = rng.dirichlet(np.ones(8))
        change = rng.normal(size=8)
        change -= change.mean()
        effect = np.abs(change).sum() / 2
        assert (change**2 / law).sum() >= 4 * effect**2


def test_samples_effect_and_power_are_inverse_to_each_other() -> None:
    needed = samples_needed(0.01, 16, 1e-8, 0.999)
    assert chi_square_power(needed, 0.01, 16, 1e-8) >= 0.999 > chi_square_power(needed - 2, 0.01, 16, 1e-8)
    assert smallest_effect(needed, 16, 1e-8, 0.999) == pytest.approx(0.01, rel=1e-4)


def test_pearson_agrees_with_the_textbook() -> None:
    counts = np.array([3000, 2600, 2000, 1400, 1000])
    statistic, p = pearson(counts, LAW)
    assert statistic == pytest.approx(100**2 / 2500 + 100**2 / 1500)
    assert p == pytest.approx(0.0306, abs=1e-4)


def test_a_design_with_too_few_samples_is_refused() -> None:
    with pytest.raises(ConfigError, match="1000"):
        pearson(np.array([2997, 2500, 2000, 1500, 1000]) // 10, LAW)


def false_alarm_rate(num: int, law: np.ndarray[tuple[int], np.dtype[np.float64]], alpha: float, reps: int = 100_000) -> float:
    """How often Pearson's statistic of `num` samples from the law is rejected, however rarely that is: counts are drawn from a
    Dirichlet-multinomial law, under which the limit is the mean, and weighed with the quotient of both probabilities."""
    chance, freedom = np.random.default_rng(1), len(law) - 1
    limit = stats.chi2.isf(alpha, freedom)
    spread = limit / freedom
    total = (num - spread) / (spread - 1)
    counts = chance.multinomial(num, chance.dirichlet(total * law, size=reps))
    counts = counts[((counts - num * law) ** 2 / (num * law)).sum(axis=1) > limit]
    right = (counts * np.log(law)).sum(axis=1)
    drawn = (special.gammaln(counts + total * law) - special.gammaln(total * law)).sum(axis=1)
    drawn += special.gammaln(total) - special.gammaln(total + num)
    return float(np.exp(right - drawn).sum()) / reps


@pytest.mark.parametrize(
    ("num", "cells", "alpha"),
    [
        pytest.param(17_408, 16, 1e-9, id="neighbours of one way of serving"),
        pytest.param(34_816, 16, 1e-8, id="the law of one way of serving"),
        pytest.param(8000, 8, 1e-9, id="rows beside each other, as few as are allowed"),
        pytest.param(2000, 2, 1e-8, id="two cells"),
        pytest.param(16_000, 16, 1e-8, id="cells that expect as little as is allowed"),
    ],
)
def test_false_alarms_are_as_rare_as_stated_where_nobody_could_count_them(num: int, cells: int, alpha: float) -> None:
    rate = false_alarm_rate(num, np.full(cells, 1 / cells), alpha)
    assert 0.8 < rate / alpha < 1.06 + 0.03  # which is what this many samples do not tell apart


def test_false_alarms_of_uneven_cells_are_as_rare_as_stated() -> None:
    chance = np.random.default_rng(3)
    law = np.maximum(chance.dirichlet(np.full(74, 2.0)), 1100 / 700_416)
    assert 0.8 < false_alarm_rate(700_416, law / law.sum(), 1e-8) / 1e-8 < 1.06 + 0.03


def test_the_entries_leave_room_for_what_approximations_are_off() -> None:
    assert sum(entry.alpha for entry in ENTRIES) <= 0.94 * TOTAL_ALPHA
