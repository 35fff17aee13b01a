"""The likelihood-ratio test of equal cells, for samples too few for Pearson's: its false-alarm rate is bounded, not approached.

Statistic: 2 G = 2 sum x ln(x / e), x counted, e expected of each cell. For any t in (0, 1/2), P(2 G >= g) <= E[exp(2 t G)]
exp(-t g) (Chernoff). The expectation is summed exactly: counts are independent Poisson numbers given their sum, so it is one
coefficient of a power of a power series. The least over a fixed set of t is an upper bound of the p-value whatever the number
of samples. Power: for any law at total variation d the expectation of 2 G grows by 2 n KL >= 4 n d^2 (Pinsker), and 2 G is
taken for noncentral chi-square with that. Never: what was counted.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, special, stats

from differential import estimates
from differential.error_budget import Counts
from differential.sampling_stats import POWER
from properties.suite import Statistic

_TILTS: tuple[float, ...] = tuple(np.linspace(0.3, 0.48, 8).tolist())


@cache
def _log_expectation(num: int, cells: int, tilt: float) -> float:
    """ln E[exp(tilt * 2 G)] of `num` samples in equal cells, exactly but for rounding."""
    mean = num / cells
    x = np.arange(num + 1)
    # ln of Poisson(x; mean) exp(2 tilt d(x)), d(x) = x ln(x / mean) - x + mean, the sum of which over all cells is G.
    distance = special.xlogy(x, x / mean) - x + mean
    one = np.exp(stats.poisson.logpmf(x, mean) + 2 * tilt * distance)
    found: npt.NDArray[np.float64] = np.ones(1)
    for _cell in range(cells):
        found = np.convolve(found, one)[: num + 1]
    return float(math.log(found[num]) - stats.poisson.logpmf(num, num))


def p_bound(num: int, cells: int, statistic: float) -> float:
    """An upper bound of the probability that 2 G comes to `statistic` or more."""
    bounds = [math.exp(min(0.0, _log_expectation(num, cells, tilt) - tilt * statistic)) for tilt in _TILTS]
    return min(bounds)


@cache
def limit(num: int, cells: int, alpha: float) -> float:
    """The statistic from which on the bound is `alpha` or less."""
    return min((_log_expectation(num, cells, tilt) - math.log(alpha)) / tilt for tilt in _TILTS)


def power_of(num: int, cells: int, effect: float, alpha: float) -> float:
    """The power at a total variation of `effect`."""
    return float(stats.ncx2.sf(limit(num, cells, alpha), cells - 1, 4 * num * effect**2))


def twice_g(counts: Counts) -> float:
    """The statistic, against equal cells."""
    return 2 * float(special.xlogy(counts, counts * len(counts) / counts.sum()).sum())


def likelihood_statistic(entry_id: str, null: str, counts: Counts, alpha: float) -> Statistic:
    """The verdict on counts of cells that have equal probabilities."""
    num, cells = int(counts.sum()), len(counts)
    found = twice_g(counts)
    p = p_bound(num, cells, found)
    effect = float(optimize.brentq(lambda other: power_of(num, cells, other, alpha) - POWER, 1e-6, 1.0, xtol=1e-12))
    told = f"likelihood ratio 2G {found:.1f} in {cells} cells, rejected from {limit(num, cells, alpha):.1f} on"
    return Statistic.judged(
        entry_id, null, told, n=num, alpha=alpha, tv_min=effect, power=power_of(num, cells, effect, alpha), p=p,
        estimate=estimates.of_distance(counts, np.full(cells, 1 / cells)),
    )  # fmt: skip
