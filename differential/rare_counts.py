"""Whether something rare comes as often as it should. (ST-1, ST-2, ST-3)

Owns three tests, of a count that is Poisson, near enough, and of two that are binomial, exactly, and the smallest effects
that they find. Never: what was counted.
"""

from __future__ import annotations

from scipy import optimize, stats

from differential import estimates
from differential.sampling_stats import POWER
from properties.suite import MISS_RATE, RATE, Statistic


def rare_statistic(entry_id: str, null: str, count: int, num: int, share: float, alpha: float) -> Statistic:
    """The verdict on a count of `num` samples, of which `share` are expected."""
    mean = num * share
    p = min(1.0, 2 * min(stats.poisson.cdf(count, mean), stats.poisson.sf(count - 1, mean)))
    effect, power = rare_effect(mean, alpha)
    told = f"Poisson count {count} where {mean:.0f} are expected"
    return Statistic.judged(
        entry_id, null, told, n=num, alpha=alpha, tv_min=effect / num, power=power, p=p, effect=RATE,
        estimate=estimates.of_rate(count, num, share),
    )  # fmt: skip


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


def repeat_statistic(entry_id: str, null: str, count: int, num: int, share: float, alpha: float) -> Statistic:
    """The verdict on how many of `num` independent pairs are equal, each with a probability of `share`: for few pairs, and a
    draw that comes twice. The smallest effect is one upwards."""
    p = min(1.0, 2 * float(min(stats.binom.cdf(count, num, share), stats.binom.sf(count - 1, num, share))))
    limit = int(stats.binom.isf(alpha / 2, num, share)) + 1  # from which on it is rejected
    seen = optimize.brentq(lambda other: stats.binom.sf(limit - 1, num, other) - POWER, share, 1.0)
    told = f"binomial count {count} where {num * share:.0f} are expected"
    return Statistic.judged(
        entry_id, null, told, n=num, alpha=alpha, tv_min=seen - share, power=POWER, p=p, effect=RATE,
        estimate=estimates.of_rate(count, num, share),
    )  # fmt: skip


def miss_statistic(entry_id: str, null: str, what: str, missed: int, num: int, alpha: float) -> Statistic:
    """The verdict on how many of `num` tries were missed by a test that states `POWER`: the number is binomial, or smaller. The
    smallest effect is the difference between the miss rate that is found with `POWER` and the stated one."""
    stated = 1 - POWER
    p = min(1.0, float(stats.binom.sf(missed - 1, num, stated)))
    limit = int(stats.binom.isf(alpha, num, stated)) + 1  # misses from which on it is rejected
    can_reject = limit <= num
    seen = (
        float(optimize.brentq(lambda other: stats.binom.sf(limit - 1, num, other) - POWER, stated, 1.0)) if can_reject else 1.0
    )
    told = f"{missed} of {num:,} {what} pass; rejected from {limit} on, a miss rate of {seen:.2%} is found"
    power = POWER if can_reject else 0.0
    return Statistic.judged(
        entry_id, null, told, n=num, alpha=alpha, tv_min=seen - stated, power=power, p=p, effect=MISS_RATE,
        estimate=estimates.of_rate(missed, num, stated, is_one_sided=True),
    )  # fmt: skip
