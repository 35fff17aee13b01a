"""How far from its null hypothesis whatever was sampled seems to be, with an interval that is not an approximation.

Owns estimates and intervals for total variation, rates and Kolmogorov's distance, all at one confidence, beside the verdict
and without any part in it. Never: a verdict.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import stats

from differential.error_budget import Counts, Probabilities
from properties.suite import Estimate

CONFIDENCE = 0.99


def of_distance(counts: Counts, law: Probabilities) -> Estimate:
    """Of the total variation between the law that `counts` [..., cells] came from and `law` [cells]; over rows of counts, the
    mean of theirs, each row weighing as it has samples.

    The observed distance is off by no more than that between observed and true shares. Its expectation is half of
    sqrt((cells - 1) / n) at most (Cauchy and Schwarz), and it exceeds that by sqrt(ln(1 / d) / (2 n)) with a probability of d
    at most (McDiarmid 1989). The estimate is the observed distance less what chance alone would show.
    """
    rows = np.atleast_2d(counts)
    num, each = int(rows.sum()), rows.sum(axis=1)
    seen = each > 0
    observed = float(np.abs(rows - each[:, None] * law).sum()) / 2 / num
    chance = float((np.sqrt(each[seen]) * np.sqrt(law * (1 - law) * 2 / np.pi).sum()).sum()) / 2 / num
    off = float(np.sqrt(each[seen]).sum()) * math.sqrt(len(law) - 1) / 2 / num + math.sqrt(
        math.log(1 / (1 - CONFIDENCE)) / (2 * num)
    )
    return Estimate(max(observed - chance, 0.0), max(observed - off, 0.0), min(observed + off, 1.0), CONFIDENCE)


def of_rate(count: int, num: int, share: float, *, is_one_sided: bool = False) -> Estimate:
    """Of the difference between the rate at which `count` of `num` came and `share` (Clopper and Pearson 1934).
    ``is_one_sided``: what lies below does not count."""
    rest = (1 - CONFIDENCE) / 2
    low = float(stats.beta.ppf(rest, count, num - count + 1)) if count else 0.0
    high = float(stats.beta.isf(rest, count + 1, num - count)) if count < num else 1.0
    if is_one_sided:
        return Estimate(max(count / num - share, 0.0), max(low - share, 0.0), max(high - share, 0.0), CONFIDENCE)
    least = 0.0 if low <= share <= high else min(abs(low - share), abs(high - share))
    return Estimate(abs(count / num - share), least, max(abs(low - share), abs(high - share)), CONFIDENCE)


def of_kolmogorov(distance: float, num: int) -> Estimate:
    """Of a distance observed between `num` numbers and their law (Massart 1990)."""
    off = math.sqrt(math.log(2 / (1 - CONFIDENCE)) / (2 * num))
    return Estimate(distance, max(distance - off, 0.0), min(distance + off, 1.0), CONFIDENCE)
