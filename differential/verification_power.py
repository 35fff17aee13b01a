"""The suite `verification-power`: the tests of speculation find what they say they find, as often as they say. (ST-1, ST-3)

A speculator that is wrong in one of thirteen ways (`verification_slips.py`) verifies a share of all rows, such that the law of
what comes is off by just the effect that the test states. Its law is known exactly (`exact_law.py`), so counts are drawn
from it directly, many times, and the test must miss no more often than stated. Then the wrong speculators themselves are run,
with drafts and noise; how many of them pass is judged over all ways together. Counts drawn from the right law must give
p-values that are uniform. Each answer says which miss rate, or which distance, it would have found.
Owns: what the tests are worth. Never: a look at the engine alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import stats

from differential.enumerated_law import law_of_end, law_of_step
from differential.error_budget import Ledger, chi_square_power, pearson, samples_needed
from differential.exact_law import Law, Outcomes, Variables, integrate, total_variation
from differential.rare_counts import miss_statistic
from differential.sampling_stats import POWER, law_of_difference
from differential.threads import one_thread
from differential.uniformity import uniform_statistic
from differential.verification_cases import ENGINE, OPPOSED, Addresses, LawChanged, Speculator, steps
from differential.verification_draws import JOINT, WIDE, WIDE_CASE, pooled, tally
from differential.verification_slips import SLIPS, Slip
from differential.well_formed import Malformed
from engine_under_test.errors import ProtocolError
from properties.suite import KOLMOGOROV, MISS_RATE, CheckResult, Failure, Figure, Label, Profile, Statistic, SuiteContext
from properties.verdict import Verdict, Violation, merge

SUITE_ID = "verification-power"
EFFECT = {Profile.QUICK: 0.03, Profile.PR: 0.01, Profile.NIGHTLY: 0.01}  # total variation
ALPHA = 1e-8  # at which the tests under test reject: that of the gate
COUNTS = {Profile.QUICK: 2000, Profile.PR: 20_000, Profile.NIGHTLY: 200_000}  # drawn directly, of each way
RUNS = {Profile.QUICK: 0, Profile.PR: 1, Profile.NIGHTLY: 20}  # of the wrong speculator itself, of each way
CALIBRATIONS = {Profile.QUICK: 4000, Profile.PR: 40_000, Profile.NIGHTLY: 40_000}
DRAWN_CALIBRATIONS = {Profile.QUICK: 40, Profile.PR: 400, Profile.NIGHTLY: 8000}  # by drawing
_GROUPS = 16
_ROWS_AT_ONCE = 1 << 14
_ROWS_OF_P = 1 << 13  # whose outcomes make one p-value of `calibrate_draws`
RUNS_ID, DRAWS_ID = "power-runs", "calibration-draws"  # entries in the ledger

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Design:
    """A test of the laws of `OPPOSED`, and one way to be wrong, in a share of rows that makes the stated effect of it.

    ``bias`` is the total variation of what is wrong in every row. ``null``, ``wrong``: laws of the test's cells."""

    slip: Slip
    bias: float
    share: float
    null: Floats
    wrong: Floats
    num: int

    @property
    def effect(self) -> float:
        return float(np.abs(self.null - self.wrong).sum()) / 2

    @property
    def power(self) -> float:
        """As it would stand beside a verdict."""
        return chi_square_power(self.num, self.effect, int((self.null > 0).sum()), ALPHA)


def design(slip: Slip, effect: float) -> Design:
    """With as many samples as the effect needs."""
    right = law_of_step(OPPOSED.target, OPPOSED.proposed, OPPOSED.width, 0)
    if slip.is_between_rows:
        null = law_of_difference(_in_groups(right, right))
        # Two neighbours come to the same if both are wrong.
        bias = float(1 - null[0])
        share = math.sqrt(effect / bias)
        equal = np.eye(_GROUPS)[0]
        wrong = null + share**2 * (equal - null)
        return Design(slip, bias, share, null, wrong, samples_needed(effect, _GROUPS, ALPHA, POWER))
    who = slip.makes(ENGINE)
    found = integrate(lambda noise, num: steps(OPPOSED, who, noise, Addresses.first(num))).law
    bias = total_variation(found, right)
    share = effect / bias
    outcomes = sorted({*found, *right})
    null = np.array([right.get(each, 0.0) for each in outcomes])
    wrong = (1 - share) * null + share * np.array([found.get(each, 0.0) for each in outcomes])
    num = samples_needed(effect, int((null > 0).sum()), ALPHA, POWER)
    return Design(slip, bias, share, null, wrong, max(num, math.ceil(1000 / null[null > 0].min())))


def _in_groups(law: Law, of: Law) -> Floats:
    """The law of the group that an outcome lies in."""
    numbers = {outcome: number % _GROUPS for number, outcome in enumerate(sorted(of))}
    found: Floats = np.zeros(_GROUPS)
    for outcome, share in law.items():
        found[numbers[outcome]] += share
    return found


def p_values(counts: npt.NDArray[np.int64], null: Floats) -> Floats:
    """Of many samples [samples, cells], by the gate's test: Pearson's; 0 where an outcome came that has no probability."""
    is_possible = null > 0
    expected = counts[0].sum() * null[is_possible]
    statistic = ((counts[:, is_possible] - expected) ** 2 / expected).sum(axis=1)
    found: Floats = stats.chi2.sf(statistic, len(expected) - 1)
    one = pearson(counts[0][is_possible], null[is_possible])[1] if is_possible.all() else found[0]
    if not math.isclose(one, found[0], rel_tol=1e-9, abs_tol=1e-300):
        raise ProtocolError(f"p-values of many samples are those of one, found {found[0]} and {one}; correct one of the two")
    found[counts[:, ~is_possible].any(axis=1)] = 0.0
    return found


def misses(one: Design, repetitions: int, chance: np.random.Generator) -> int:
    """How often counts drawn from the wrong law pass."""
    return int((p_values(chance.multinomial(one.num, one.wrong, size=repetitions), one.null) >= ALPHA).sum())


def run_wrong(one: Design, chance: np.random.Generator, right: Speculator = ENGINE) -> bool:
    """Whether the wrong speculator itself, in its share of rows, is rejected: drafts, noise and all."""
    wrong = one.slip.makes(right)
    right_law = law_of_step(OPPOSED.target, OPPOSED.proposed, OPPOSED.width, 0)
    rows = 2 * one.num if one.slip.is_between_rows else one.num
    found = np.concatenate([_batch(right, wrong, one.share, chance)[: rows - begin] for begin in range(0, rows, _ROWS_AT_ONCE)])
    outcomes = sorted(right_law)
    if one.slip.is_between_rows:
        number = {outcome: place % _GROUPS for place, outcome in enumerate(outcomes)}
        if not {*map(tuple, found.tolist())} <= number.keys():
            return True  # one of them has no probability
        group = np.array([number[tuple(row)] for row in found.tolist()])
        return pearson(np.bincount((group[1::2] - group[0::2]) % _GROUPS, minlength=_GROUPS), one.null)[1] < ALPHA
    cells = pooled(right_law, tally(found), rows)
    return bool(cells.impossible) or pearson(cells.counts, cells.law)[1] < ALPHA


def _batch(right: Speculator, wrong: Speculator, share: float, chance: np.random.Generator) -> Outcomes:
    """One batch of rows, each the wrong way with a probability of `share`."""
    noise = Variables(values=chance.random((_ROWS_AT_ONCE, 16)))
    is_wrong = chance.random(_ROWS_AT_ONCE) < share
    found = np.empty((_ROWS_AT_ONCE, OPPOSED.width + 2), np.int64)
    for who, rows in ((right, np.flatnonzero(~is_wrong)), (wrong, np.flatnonzero(is_wrong))):
        if len(rows):
            found[rows] = steps(OPPOSED, who, noise, Addresses(rows.astype(np.uint64), np.zeros(len(rows), np.uint32)))
    return found


# Verdicts


def judge_misses(number: int, one: Design, missed: int, repetitions: int, alpha: float) -> Statistic:
    """A test that states its power misses no more often."""
    null = f"{one.slip.name}, in {one.share:.1%} of rows ({one.effect:.2%} total variation), is missed once in 1,000 times"
    return miss_statistic(f"power-{number}", null, f"samples of {one.num:,}", missed, repetitions, alpha)


def judge_runs(passed: int, runs: int, alpha: float) -> Statistic:
    """The runs of all ways to be wrong together: each passes once in 1,000 times, or less often."""
    null = "wrong speculators that run, drafts, noise and all, are missed once in 1,000 times"
    return miss_statistic(RUNS_ID, null, "wrong speculators", passed, runs, alpha)


def calibrate(entry_id: str, law: Floats, num: int, repetitions: int, chance: np.random.Generator, alpha: float) -> Statistic:
    """p-values of counts drawn from the law itself are uniform."""
    found = p_values(chance.multinomial(num, law, size=repetitions), law)
    null = f"p-values of {num:,} samples in {len(law)} cells are uniform where nothing is wrong"
    return uniform_statistic(entry_id, null, found, alpha)


def calibrate_draws(repetitions: int, chance: np.random.Generator, alpha: float, right: Speculator = ENGINE) -> Statistic:
    """The same with drafts, noise and all: p-values of the right speculator itself."""
    law = law_of_step(OPPOSED.target, OPPOSED.proposed, OPPOSED.width, 0)
    found: list[float] = []
    while len(found) < repetitions:
        batch = steps(OPPOSED, right, Variables(values=chance.random((_ROWS_AT_ONCE, 16))), Addresses.first(_ROWS_AT_ONCE))
        for part in np.split(batch, _ROWS_AT_ONCE // _ROWS_OF_P)[: repetitions - len(found)]:
            cells = pooled(law, tally(part), _ROWS_OF_P)
            found.append(pearson(cells.counts, cells.law)[1])
    null = f"p-values of {_ROWS_OF_P:,} verifications in {len(cells.law)} cells, drawn, are uniform where nothing is wrong"
    return uniform_statistic(DRAWS_ID, null, found, alpha)


@dataclass(slots=True)
class Found:
    """What a run has come to so far."""

    context: SuiteContext
    answers: list[Statistic] = field(default_factory=list)
    broken: list[Violation] = field(default_factory=list)
    biases: list[Figure] = field(default_factory=list)
    num_counts: int = 0
    num_runs: int = 0
    num_passed: int = 0

    def take(self, answer: Statistic) -> None:
        self.answers.append(answer)
        self.num_counts += answer.n if answer.id not in (RUNS_ID, DRAWS_ID) else 0
        if answer.verdict is Verdict.INVALID:
            found = f"{answer.statistic}, p = {answer.p:.1e}"
            self.broken.append(Violation("ST-1", "power as stated", answer.null, found, f"p of at least {answer.alpha:.0e}"))

    def ask(
        self, numbered: Sequence[tuple[int, Slip]], find: Callable[[Slip, float], Design], ledger: Ledger, planned: int
    ) -> None:
        """Every way to be wrong, then calibration."""
        profile = self.context.profile
        for number, slip in numbered:
            chance = np.random.default_rng([self.context.seed, number])
            one = find(slip, EFFECT[profile])
            missed = misses(one, COUNTS[profile], chance)
            self.take(judge_misses(number, one, missed, COUNTS[profile], ledger.take(f"power-{number}")))
            self.biases.append(Figure(f"bias.{number}", one.bias, "total variation", Label.DERIVED, slip.name))
            self.run(one, chance, RUNS[profile])
            self.context.progress(number, planned)
        if self.num_runs:
            self.take(judge_runs(self.num_passed, self.num_runs, ledger.take(RUNS_ID)))
        for entry_id, law, num in _calibrated(profile):
            chance = np.random.default_rng([self.context.seed, num])
            self.take(calibrate(entry_id, law, num, CALIBRATIONS[profile], chance, ledger.take(entry_id)))
        chance = np.random.default_rng([self.context.seed, 1])
        self.take(calibrate_draws(DRAWN_CALIBRATIONS[profile], chance, ledger.take(DRAWS_ID)))

    def run(self, one: Design, chance: np.random.Generator, runs: int) -> None:
        """A wrong speculator is run so many times. What passes is judged at the end, with that of all others."""
        self.num_passed += sum(not run_wrong(one, chance) for _ in range(runs))
        self.num_runs += runs


def check_power(
    context: SuiteContext, slips: tuple[Slip, ...] = SLIPS, find: Callable[[Slip, float], Design] = design
) -> CheckResult:
    """The suite: every way to be wrong, then calibration."""
    profile, ledger = context.profile, Ledger()
    found = Found(context)
    numbered = [*enumerate(slips, start=1)][:: 4 if profile is Profile.QUICK else 1]
    with one_thread():
        try:
            found.ask(numbered, find, ledger, len(slips) + 2)
        except (LawChanged, Malformed) as error:
            subject, expected = "a verification that was drawn", "an answer that can be read, and laws as they were"
            found.broken.append(Violation("ST-1", "speculation is lossless", subject, str(error), expected))
    context.progress(len(slips) + 2, len(slips) + 2)
    again = {"suite": SUITE_ID, "profile": profile.value, "seed": context.seed}
    return CheckResult(
        SUITE_ID,
        Verdict.INVALID if found.broken else merge(answer.verdict for answer in found.answers),
        examples=found.num_counts,
        ops=found.num_runs,
        reached={"ways to be wrong": len(numbered), "wrong speculators run": found.num_runs},
        invariants={"ST-1": len(numbered), "ST-3": 1},
        failures=tuple(Failure(each, seed=f"{context.seed:#x}", world=again) for each in found.broken),
        statistics=tuple(found.answers),
        figures=tuple(found.biases),
        note=_note(found, len(numbered), EFFECT[profile]),
    )


def _note(found: Found, num_ways: int, effect: float) -> str:
    """What was asked, and what the answers can tell: nobody shall read more into them."""
    if not any(each.id == DRAWS_ID for each in found.answers):
        return f"{num_ways} ways to be wrong, of which not all were asked"
    rate = max(each.tv_min for each in found.answers if each.effect == MISS_RATE and each.id != RUNS_ID) + 1 - POWER
    counts, draws = (
        max(each.tv_min for each in found.answers if each.effect == KOLMOGOROV and (each.id == DRAWS_ID) is is_drawn)
        for is_drawn in (False, True)
    )
    ran = f"{found.num_passed} of {found.num_runs} that ran pass" if found.num_runs else "none of them ran"
    return (
        f"{num_ways} ways to be wrong by {effect:.0%} total variation; a miss rate of {rate:.2%} or more where 0.10% is stated "
        f"would have been found, by {found.num_counts:,} samples drawn as counts; {ran}; p-values a Kolmogorov distance of "
        f"{counts:.2f} (by counts) or {draws:.2f} (by drawing) away from uniform would have been found"
    )


def _calibrated(profile: Profile) -> list[tuple[str, Floats, int]]:
    """Two designs of `verification-law`: many cells, and cells of a large vocabulary."""
    joint = law_of_step(OPPOSED.target, OPPOSED.proposed, OPPOSED.width, 0)
    end = law_of_end(WIDE_CASE.target, WIDE_CASE.proposed, WIDE_CASE.width, 0)
    found = []
    for name, law, num in (
        ("joint", joint, JOINT[profile]),
        ("end", {each: float(share) for each, share in np.ndenumerate(end) if share > 0}, WIDE[profile]),
    ):
        found.append((f"calibration-{name}", pooled(law, {}, num).law, num))
    return found
