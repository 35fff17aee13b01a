"""Whether samples follow one law whatever they stand behind: what is pooled hides what cancels out.

Owns Pearson's test of counts [groups, cells], each group's number of samples being given: behind whatever it is that groups
are made of, shares are those of the law. Where samples are independent the null holds for groups made of earlier samples as
well, also for pairs that overlap (Billingsley 1961, theorem 3.1). Degrees of freedom: groups times
(cells - 1). Never: what the groups are.

Power: with d(g) the total variation in group g, the noncentrality is at least sum n(g) 4 d(g)^2 >= 4 n d^2, d the mean of d(g)
over all samples (see `error_budget.chi_square_power`; Jensen). That mean is the effect. Groups whose biases cancel are found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from differential import estimates
from differential.error_budget import Counts, Ledger, Probabilities, chi_square_power, smallest_effect
from differential.sampling_stats import POWER, rejected
from properties.suite import Statistic
from properties.verdict import Violation

LEAST = 1000  # expected of a cell of a group
_SHAPES = ((4, 5), (4, 4), (4, 3), (2, 4), (2, 3), (2, 2))  # groups and cells, the finest first


@dataclass(frozen=True, slots=True)
class Conditional:
    """One null hypothesis with its counts [groups, cells]. ``invariant``: whose violation a rejection is."""

    entry_id: str
    invariant: str
    name: str
    null: str
    counts: Counts
    law: Probabilities


def shape_for(num: int) -> tuple[int, int]:
    """Groups and cells of about equal shares for so many samples; of the fewest if even they expect too little."""
    return next(((groups, cells) for groups, cells in _SHAPES if num >= 1.1 * groups * cells * LEAST), _SHAPES[-1])


def cells_for(law: Probabilities, num_cells: int) -> npt.NDArray[np.int64]:
    """The cell of each value, such that cells have about the same share: each, falling, joins the least."""
    cell, shares = np.zeros(len(law), np.int64), np.zeros(num_cells)
    for value in np.argsort(-law, kind="stable").tolist():
        cell[value] = shares.argmin()
        shares[cell[value]] += law[value]
    return cell


def counted(groups: npt.NDArray[np.int64], cells: npt.NDArray[np.int64], shape: tuple[int, int]) -> Counts:
    """How often each group has each cell."""
    return np.bincount(groups.reshape(-1) * shape[1] + cells.reshape(-1), minlength=shape[0] * shape[1]).reshape(shape)


def pearson_given(counts: Counts, law: Probabilities) -> tuple[float, float]:
    """The statistic of counts [groups, cells], and its p-value. A group without samples says nothing."""
    expected = counts.sum(axis=1, keepdims=True) * law
    seen = expected[:, 0] > 0
    statistic = float(((counts[seen] - expected[seen]) ** 2 / expected[seen]).sum())
    return statistic, float(stats.chi2.sf(statistic, len(counts) * (len(law) - 1)))


def judge_given(question: Conditional, ledger: Ledger) -> Statistic:
    """The verdict, with the power at the smallest mean effect that it finds."""
    alpha = ledger.take(question.entry_id)
    groups, cells = question.counts.shape
    num, freedom = int(question.counts.sum()), groups * (cells - 1)
    statistic, p = pearson_given(question.counts, question.law)
    effect = smallest_effect(num, freedom + 1, alpha, POWER)
    told = f"Pearson chi-square {statistic:.1f} on {freedom} degrees of freedom, {groups} groups of {cells} cells"
    return Statistic.judged(
        question.entry_id, question.null, told, n=num, alpha=alpha, tv_min=effect,
        power=chi_square_power(num, effect, freedom + 1, alpha), p=p,
        estimate=estimates.of_distance(question.counts, question.law),
    )  # fmt: skip


def violation_given(question: Conditional, statistic: Statistic) -> Violation:
    shares = question.counts / np.maximum(question.counts.sum(axis=1, keepdims=True), 1)
    return rejected(
        question.invariant,
        question.name,
        statistic,
        (
            "expected of each group   " + " ".join(f"{share:.4f}" for share in question.law),
            *(
                f"found in group {group}         " + " ".join(f"{share:.4f}" for share in row)
                for group, row in enumerate(shares)
            ),
        ),
    )
