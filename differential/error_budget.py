"""The ledger of statistical tests: how often the whole gate may cry wolf, who may spend how much of it, and for what power.

Every statistical test names its entry and takes its false-alarm rate from the ledger, once; the entries together never exceed
the total (union bound, so tests need not be independent). A test that failed is not repeated. Beside each verdict stands the
smallest effect that the test finds, in the unit that its `Statistic` names, and the power to find it. Never: a sample, or a
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import optimize, stats

from engine_under_test.errors import ConfigError, ProtocolError

TOTAL_ALPHA = 1e-6  # false alarms of a whole gate

Probabilities = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one test may spend."""

    id: str
    alpha: float


# The ways in which `served-law` makes an engine serve.
SERVED = ("batched", "chunked", "cached", "preempted", "drafted", "looked-up", "all-of-it")
# Every statistical test that a gate can run. A new test joins here, or it has no alpha to test with.
ENTRIES = (
    Entry("sampler-law", 1e-8),
    Entry("sampler-neighbours-in-seed", 1e-8),
    Entry("sampler-neighbours-in-choice", 1e-8),
    Entry("sampler-neighbours-in-position", 1e-8),
    Entry("processed-plain", 1e-8),
    Entry("processed-min-p", 1e-8),
    Entry("processed-top-k", 1e-8),
    Entry("processed-top-p", 1e-8),
    Entry("processed-ties", 1e-8),
    Entry("processed-together", 1e-8),
    *(Entry(f"verification-{name}", 1e-8) for name in ("joint", "text", "certain", "end", "rare")),
    *(Entry(f"verification-behind-{kept}-drafts", 1e-8) for kept in range(3)),
    *(Entry(f"verification-neighbours-in-{axis}", 1e-8) for axis in ("seed", "choice", "position")),
    *(Entry(f"power-{number}", 1e-8) for number in range(1, 14)),
    Entry("power-runs", 3e-7),  # so that 3 of 13 that pass are rejected
    *(Entry(f"calibration-{name}", 1e-8) for name in ("joint", "end", "draws")),
    *(Entry(f"served-{way}-law", 1e-8) for way in SERVED),
    *(Entry(f"served-{way}-{near}", 1e-9) for way in SERVED for near in ("request", "choice", "position", "row", "resumed")),
    *(Entry(f"served-{way}-{given}", 5e-9) for way in SERVED for given in ("behind-token", "behind-step", "by-place")),
    Entry("served-rare", 1e-8),
    Entry("covered-drawn", 1e-8),
    *(Entry(f"smollm2-first-{number}", 1e-8) for number in (1, 2)),
)


class Ledger:
    """Hands out each entry's false-alarm rate once. One ledger serves one run."""

    def __init__(self, entries: Iterable[Entry] = ENTRIES, total: float = TOTAL_ALPHA) -> None:
        self.total = total
        self._left: dict[str, float] = {}
        self.spent = 0.0
        for entry in entries:
            if entry.id in self._left:
                raise ConfigError(f"an entry of the error budget stands there once, found {entry.id} twice; name the second")
            if not 0 < entry.alpha < 1:
                raise ConfigError(f"a false-alarm rate lies between 0 and 1, found {entry.alpha} for {entry.id}; correct it")
            self._left[entry.id] = entry.alpha
        if (promised := math.fsum(self._left.values())) > total:
            raise ConfigError(
                f"all entries of the error budget together stay within {total:.3g}, found {promised:.3g}; lower some of them"
            )

    def take(self, entry_id: str) -> float:
        """The false-alarm rate of an entry. ProtocolError if there is no such entry, or if it was taken before."""
        if entry_id not in self._left:
            raise ProtocolError(
                f"a statistical test takes the false-alarm rate of its own entry, once; found {entry_id!r}, left are "
                f"{sorted(self._left)}; add an entry, and never repeat a test"
            )
        alpha = self._left.pop(entry_id)
        self.spent += alpha
        return alpha


def pearson(counts: Counts, law: Probabilities) -> tuple[float, float]:
    """Pearson's chi-square of counts against a law, and its p-value by the chi-square law with one degree less than cells.

    A design in which a cell expects less than 1,000 is refused. In designs with 1,000 in each of 2 to 16 cells, and in those
    of the gate, rates of 1e-8 and 1e-9 are true to 6 % (importance sampling, `test_error_budget.py`): entries that together
    stay within 94 % of the total keep it.
    """
    expected = counts.sum() * law
    if expected.min() < 1000:
        raise ConfigError(
            f"each cell of a chi-square test expects at least 1000, found {expected.min():.0f}; take more samples"
        )
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic, float(stats.chi2.sf(statistic, len(law) - 1))


def chi_square_power(num_samples: float, total_variation: float, num_cells: int, alpha: float) -> float:
    """The least power of `pearson` against any law at a total variation of at least `total_variation` from the null.

    Least favourable direction: move the mass d from one half of the cells to the other, in proportion to their
    probabilities. For cells A that gain and B that lose, sum(delta^2 / p) is at least d^2 / P(A) + d^2 / P(B) (Cauchy), which
    is least, 4 d^2, where P(A) = P(B) = 1/2. So the noncentrality is at least 4 n d^2 whatever the null; the statistic is
    then noncentral chi-square (Cohen, Statistical power analysis, 1988, chapter 7).
    """
    critical = stats.chi2.isf(alpha, num_cells - 1)
    return float(stats.ncx2.sf(critical, num_cells - 1, 4 * num_samples * total_variation**2))


def samples_needed(total_variation: float, num_cells: int, alpha: float, power: float) -> int:
    """The fewest samples with which `pearson` finds `total_variation` with `power`."""

    def excess(log_samples: float) -> float:
        return chi_square_power(math.exp(log_samples), total_variation, num_cells, alpha) - power

    return math.ceil(math.exp(optimize.brentq(excess, 0.0, math.log(1e12))))


def smallest_effect(num_samples: int, num_cells: int, alpha: float, power: float) -> float:
    """The least total variation that `pearson` finds with `power`, given so many samples."""
    return float(
        optimize.brentq(lambda effect: chi_square_power(num_samples, effect, num_cells, alpha) - power, 1e-9, 1.0, xtol=1e-12)
    )


def least_favourable(law: Sequence[float] | Probabilities, total_variation: float) -> Probabilities:
    """A law at this total variation from `law` that is as hard to find as this law allows: see `chi_square_power`.

    The half that gains is filled greedily from the largest cell down, which comes close to one half.
    """
    null = np.asarray(law, dtype=np.float64)
    gains = np.zeros(len(null), dtype=bool)
    for cell in np.argsort(-null, kind="stable"):
        if null[gains].sum() + null[cell] <= 0.5:
            gains[cell] = True
    share = np.where(gains, total_variation / null[gains].sum(), -total_variation / null[~gains].sum())
    shifted: Probabilities = null * (1 + share)
    return shifted
