"""Whether numbers are uniform: Kolmogorov's test. Its power is by the inequality of Dvoretzky, Kiefer and Wolfowitz (Massart
1990). Never: what the numbers are."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy import stats

from differential import estimates
from differential.sampling_stats import POWER
from properties.suite import KOLMOGOROV, Statistic


def uniform_statistic(entry_id: str, null: str, numbers: Sequence[float] | npt.NDArray[np.float64], alpha: float) -> Statistic:
    """The verdict on independent numbers in [0, 1]."""
    num = len(numbers)
    distance, p = stats.kstest(numbers, "uniform")
    seen = sum(math.sqrt(math.log(2 / rate) / (2 * num)) for rate in (alpha, 1 - POWER))
    told = f"Kolmogorov distance {distance:.4f}"
    return Statistic.judged(
        entry_id, null, told, n=num, alpha=alpha, tv_min=seen, power=POWER, p=p, effect=KOLMOGOROV,
        estimate=estimates.of_kolmogorov(float(distance), num),
    )  # fmt: skip
