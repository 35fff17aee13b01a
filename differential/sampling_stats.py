"""Is what the sampler draws the law that it should draw from, and are draws at neighbouring addresses independent? (ST-2, ST-3)

One batch of samples from a law of sixteen tokens, taken through the engine's sampler at every address of a grid (seed,
choice, position), answers four questions with Pearson's chi-square: the law itself, and for neighbours in each direction of the
grid the law of the difference of the two tokens, modulo sixteen. Noise used twice shows there, because equal noise gives
the difference 0. Never: a second try.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from differential import estimates
from differential.error_budget import Ledger, Probabilities, chi_square_power, pearson, samples_needed, smallest_effect
from differential.well_formed import Malformed, answered, whole_numbers
from engine_under_test.sampling import sampler
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.seams import Noise
from engine_under_test.types import SamplingParams
from properties.suite import CheckResult, Failure, Profile, Statistic, SuiteContext
from properties.verdict import Verdict, Violation, merge

SUITE_ID = "sampler-statistics"
LAW = "sampler-law"  # its entry in the ledger
POWER = 0.999
# The smallest total variation that the law test finds with `POWER`: it fixes the number of samples.
EFFECT = {Profile.QUICK: 0.02, Profile.PR: 0.01, Profile.NIGHTLY: 0.005}
TEMPERATURE = 0.75
# Sixteen logits in no particular order, from 0 to 1.5: after the temperature each token has 2 % or more.
LOGITS = np.array([0.7, 0.0, 1.5, 0.2, 1.1, 0.9, 0.1, 0.5, 1.3, 0.3, 0.8, 0.4, 1.0, 0.6, 0.25, 1.2])
NUM_CHOICES, NUM_POSITIONS = 8, 64
_SEEDS_PER_BATCH = 8

Tokens = npt.NDArray[np.int64]
Sample = Callable[[npt.NDArray[np.float64], sampler.Draws, Noise], Tokens]


@dataclass(frozen=True, slots=True)
class Question:
    """One null hypothesis, with the counts that answer it. ``invariant``: whose violation a rejection is."""

    entry_id: str
    invariant: str
    name: str
    null: str
    counts: npt.NDArray[np.int64]
    law: Probabilities


def softmax(logits: npt.NDArray[np.float64], temperature: float) -> Probabilities:
    """The law that the sampler should draw from."""
    scaled = np.exp((logits - logits.max()) / temperature)
    probabilities: Probabilities = scaled / scaled.sum()
    return probabilities


def law_of_difference(law: Probabilities) -> Probabilities:
    """The law of (b - a) modulo the number of tokens, for independent a and b."""
    return np.array([(law * np.roll(law, -shift)).sum() for shift in range(len(law))])


def num_seeds(effect: float) -> int:
    """Even, and enough for the law test to find `effect`."""
    needed = samples_needed(effect, len(LOGITS), Ledger().take(LAW), POWER)
    return 2 * -(-needed // (2 * NUM_CHOICES * NUM_POSITIONS))


def draw_grid(sample: Sample, first_seed: int, seeds: int, progress: Callable[[int, int], None]) -> Tokens:
    """One token at each address, [seeds, choices, positions]. Malformed if some can not be read."""
    found = np.empty((seeds, NUM_CHOICES, NUM_POSITIONS), dtype=np.int64)
    noise = PhiloxNoise()
    for begin in range(0, seeds, _SEEDS_PER_BATCH):
        batch = found[begin : begin + _SEEDS_PER_BATCH]
        params = [SamplingParams(temperature=TEMPERATURE, seed=(first_seed + begin + i) % 2**64) for i in range(len(batch))]
        seed, choice, position = (axis.reshape(-1).tolist() for axis in np.indices(batch.shape))
        draws = sampler.Draws([params[i] for i in seed], choice, position, [0] * batch.size)
        drawn = answered("the sampler", partial(sample, np.tile(LOGITS, (batch.size, 1)), draws, noise))
        batch[:] = whole_numbers(drawn, "token", batch.size, 0, len(LOGITS) - 1).reshape(batch.shape)
        progress(min(begin + _SEEDS_PER_BATCH, seeds), seeds)
    return found


def questions(tokens: Tokens) -> list[Question]:
    """The four null hypotheses over one grid of tokens. Pairs are disjoint, so that they are independent of each other."""
    law = softmax(LOGITS, TEMPERATURE)
    cells = len(law)
    asked = [
        Question(
            LAW,
            "ST-2",
            "sampler",
            f"tokens follow the softmax of {cells} logits at temperature {TEMPERATURE}",
            np.bincount(tokens.reshape(-1), minlength=cells),
            law,
        )
    ]
    for axis, name in enumerate(("seed", "choice", "position")):
        pairs = np.moveaxis(tokens, axis, 0)
        difference = (pairs[1::2] - pairs[0::2]) % cells
        asked.append(
            Question(
                f"sampler-neighbours-in-{name}",
                "ST-3",
                "noise",
                f"tokens at addresses that differ by 1 in the {name} are independent",
                np.bincount(difference.reshape(-1), minlength=cells),
                law_of_difference(law),
            )
        )
    return asked


def judge(question: Question, ledger: Ledger) -> Statistic:
    """The verdict on one question, with its power at the smallest effect that it finds."""
    alpha = ledger.take(question.entry_id)
    num, cells = int(question.counts.sum()), len(question.law)
    statistic, p = pearson(question.counts, question.law)
    effect = smallest_effect(num, cells, alpha, POWER)
    told = f"Pearson chi-square {statistic:.1f} on {cells - 1} degrees of freedom"
    power = chi_square_power(num, effect, cells, alpha)
    estimate = estimates.of_distance(question.counts, question.law)
    return Statistic.judged(
        question.entry_id, question.null, told, n=num, alpha=alpha, tv_min=effect, power=power, p=p, estimate=estimate
    )


def rejected(invariant: str, name: str, statistic: Statistic, facts: tuple[str, ...]) -> Violation:
    """A null hypothesis that samples are against, with what they show."""
    found = f"{statistic.statistic}, p = {statistic.p:.1e}; {statistic.estimated}"
    subject = f"{statistic.n:,} samples ({statistic.null})"
    return Violation(invariant, name, subject, found, f"p of at least {statistic.alpha:.0e}", facts)


def unread(subject: str, error: Malformed) -> Violation:
    """Of an answer of a sampler that says nothing of a law, since it is none."""
    return Violation("ST-2", "sampler", subject, str(error), "a token of the vocabulary for each row")


def violation_of(question: Question, statistic: Statistic) -> Violation:
    observed = question.counts / statistic.n
    return rejected(
        question.invariant,
        question.name,
        statistic,
        tuple(
            f"cell {cell:2d}: found {seen:.5f}, expected {expected:.5f}"
            for cell, (seen, expected) in enumerate(zip(observed.tolist(), question.law.tolist(), strict=True))
        ),
    )


def check_sampler(context: SuiteContext, sample: Sample = sampler.sample) -> CheckResult:
    """The suite: every question of one grid, answered once."""
    # Runs whose seeds are near each other shall not share addresses: 2^32 seeds lie between them.
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}  # the same samples, not another try
    try:
        tokens = draw_grid(sample, context.seed << 32, num_seeds(EFFECT[context.profile]), context.progress)
    except Malformed as error:
        failure = Failure(unread(f"samples of {len(LOGITS)} logits", error), f"{context.seed:#x}", again)
        return CheckResult(SUITE_ID, Verdict.INVALID, invariants={"ST-2": 1}, failures=(failure,))
    asked = questions(tokens)
    ledger = Ledger()
    answers = [judge(question, ledger) for question in asked]
    failures = tuple(
        Failure(violation_of(question, answer), seed=f"{context.seed:#x}", world=again)
        for question, answer in zip(asked, answers, strict=True)
        if answer.verdict is Verdict.INVALID
    )
    return CheckResult(
        SUITE_ID,
        merge(answer.verdict for answer in answers),
        examples=tokens.size,
        invariants={"ST-2": 1, "ST-3": 3},
        failures=failures,
        statistics=tuple(answers),
        note=describe(answers[0]),
    )


def describe(statistic: Statistic) -> str:
    """One line for a person: what was asked, how finely, and the answer."""
    return (
        f"{statistic.null}: p = {statistic.p:.2g} at a false-alarm rate of {statistic.alpha:.0e}; n = {statistic.n:,} finds a "
        f"total variation of {statistic.tv_min:.2%} with power {statistic.power:.3f}"
    )
