"""Whether something rare comes as often as it should: its count is Poisson, near enough. (ST-1, ST-2)

Owns the test and the smallest effect that it finds. Never: what was counted.
"""

from __future__ import annotations

from scipy import optimize, stats

from differential.sampling_stats import POWER
from properties.suite import Statistic
from properties.verdict import Verdict


def rare_statistic(entry_id: str, null: str, count: int, num: int, share: float, alpha: float) -> Statistic:
    """The verdict on a count of `num` samples, of which `share` are expected."""
    mean = num * share
    p = min(1.0, 2 * min(stats.poisson.cdf(count, mean), stats.poisson.sf(count - 1, mean)))
    effect, power = rare_effect(mean, alpha)
    return Statistic(
        id=entry_id,
        null=null,
        statistic=f"Poisson count {count} where {mean:.0f} are expected",
        n=num,
        alpha=alpha,
        tv_min=effect / num,
        power=power,
        p=float(p),
        verdict=Verdict.INVALID if p < alpha else Verdict.VALID,
    )


def rare_effect(mean: float, alpha: float = 1e-8) -> tuple[float, float]:
    """By how much a Poisson mean must differ to be found with `POWER`, upwards or downwards, and the power there."""
    low, high = stats.poisson.ppf(alpha / 2, mean), stats.poisson.isf(alpha / 2, mean)

    def power(other: float) -> float:
        return float(stats.poisson.sf(high, other) if other > mean else stats.poisson.cdf(low - 1, other))

    up = optimize.brentq(lambda other: power(other) - POWER, mean + 1e-9, 10 * mean + 1000)
    if power(1e-9) < POWER:  # even none of them would not be found
        return (up - mean, power(up))
    down = optimize.brentq(lambda other: power(other) - POWER, 1e-9, mean - 1e-9)
    return (up - mean, power(up)) if up - mean > mean - down else (mean - down, power(down))
