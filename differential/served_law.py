"""The suite `served-law`: what an engine draws for its users is the law, however it is made to serve. (ST-2, ST-3)

Requests to an engine on the Markov model (`markov.py`), in several ways (`served.py`); every token is a sample. Of each way is
asked: do steps follow their law, pooled, and behind each group of tokens, behind each group of steps (so jointly for two
places that follow each other), at each group of places (`conditional_law.py`); and are tokens independent whose requests,
choices or places follow each other, that were drawn beside each other in one step, or on both sides of a preemption.
Differences of two tokens are mapped to a uniform number, so that a token drawn twice shows, whatever came between. Over all
ways: do rare steps come as often as they should, do those without probability ever. Never: a second try.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from differential.conditional_law import (
    Conditional,
    cells_for,
    counted,
    judge_given,
    shape_for,
    violation_given,
)
from differential.error_budget import Ledger, Probabilities
from differential.markov import LAW, NEVER, RARE, VOCABULARY, Tokens, shifts, steps
from differential.rare_counts import rare_statistic, repeat_statistic
from differential.sampling_stats import Question, judge, law_of_difference, violation_of
from differential.served import LENGTH, WAYS, Place, Served, Way, serve
from engine_under_test.seams import Noise
from properties.invariants.catalogue import CATALOGUE
from properties.suite import CheckResult, Failure, Profile, Statistic, SuiteContext
from properties.verdict import Verdict, Violation, merge

SUITE_ID = "served-law"
# Choices of each way. In profile pr the pooled marginal of each way's tokens (16 cells) and its laws behind what stands in
# front (4 groups of 5 cells) find a total variation of 3 %, in profile nightly of 1 %.
CHOICES = {Profile.QUICK: 256, Profile.PR: 1088, Profile.NIGHTLY: 9000}
# How many rows stand beside each other depends on what is drawn, where drafts fall: so these cells are fixed beforehand.
ROW_CELLS = {Profile.QUICK: 2, Profile.PR: 8, Profile.NIGHTLY: 16}
LEAST = 1000  # expected of a cell, as `error_budget.pearson` wants it
_MOST_CELLS = 16
_GIVEN = ("-behind-token", "-behind-step", "-by-place")
_QUICK = ("drafted", "all of it")
_NULLS = {
    "request": "tokens of requests whose seeds are neighbours are independent",
    "choice": "tokens of neighbouring choices of a request are independent",
    "position": "tokens that follow each other are independent but for the law",
    "row": "tokens of neighbouring rows of one step are independent",
    "resumed": "the token behind a preemption equals the one before it as often as chance has it",
}

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Pairs:
    """Two tokens each: where they stand in [requests, choices, LENGTH], flattened."""

    one: npt.NDArray[np.int64]
    other: npt.NDArray[np.int64]


def pooled_law(num: int) -> tuple[Tokens, Probabilities]:
    """The cell of each step, and the law of cells: as many as expect enough, the others and those without probability with the
    rarest of them."""
    order = np.argsort(-LAW, kind="stable")
    cell, shares = np.zeros(VOCABULARY, np.int64), [0.0]
    for token in order.tolist():
        if shares[-1] * num >= LEAST:
            shares.append(0.0)
        cell[token] = len(shares) - 1
        shares[-1] += LAW[token]
    if len(shares) > 1 and shares[-1] * num < LEAST:
        cell[cell == len(shares) - 1] -= 1
        rest = shares.pop()
        shares[-1] += rest
    law = np.array(shares)
    return cell, law / law.sum()


def of_steps(served: Served, found: Tokens) -> Question:
    """Whether the steps of one way follow their law."""
    cell, law = pooled_law(found.size)
    null = f"tokens drawn by the engine, {served.way.name}, follow their law"
    counts = np.bincount(cell[found.reshape(-1)], minlength=len(law))
    return Question(f"served-{slug(served.way)}-law", "ST-2", "sampler", null, counts, law)


def given(served: Served, found: Tokens) -> Iterator[Conditional]:
    """Whether steps [requests, choices, LENGTH] follow their law whatever stands in front of them, and wherever they stand."""
    begin, last = served.way.prompt_len, served.texts[..., served.way.prompt_len - 1 : -1]
    assert last.shape == found.shape == served.texts[..., begin:].shape
    shape = groups, cells = shape_for(found[..., 1:].size)
    cell = cells_for(LAW, cells)
    law = np.asarray(np.bincount(cell, weights=LAW), np.float64)
    places = np.broadcast_to(np.arange(LENGTH) * groups // LENGTH, found.shape)
    asked: tuple[tuple[str, str, str, Tokens, Tokens], ...] = (
        ("behind-token", "ST-2", "whatever token stands in front", last * groups // VOCABULARY, found),
        ("behind-step", "ST-3", "whatever step stands in front, so jointly with it", cells_for(LAW, groups)[found[..., :-1]],
         found[..., 1:]),
        ("by-place", "ST-2", "wherever in the output they stand", places, found),
    )  # fmt: skip
    for name, invariant, where, group, drawn in asked:
        null = f"tokens drawn by the engine, {served.way.name}, follow their law {where}"
        subject = "sampler" if invariant == "ST-2" else "noise"
        counts = counted(group, cell[drawn], shape)
        yield Conditional(f"served-{slug(served.way)}-{name}", invariant, subject, null, counts, law)


def slug(way: Way) -> str:
    return way.name.replace(" ", "-")


def neighbours(served: Served) -> Iterator[tuple[str, Pairs]]:
    """Disjoint pairs of tokens in each direction."""
    num, choices = served.texts.shape[:2]
    index = np.arange(num * choices * LENGTH).reshape(num, choices, LENGTH)
    for axis, name in enumerate(("request", "choice", "position")):
        pairs = np.moveaxis(index, axis, 0)
        even = len(pairs) // 2 * 2
        yield name, Pairs(pairs[0:even:2].reshape(-1), pairs[1:even:2].reshape(-1))
    rows = [pair for places in served.beside for pair in zip(places[0::2], places[1::2], strict=False)]
    yield "row", Pairs(_flat(index, [one for one, _ in rows]), _flat(index, [other for _, other in rows]))


def resumed(served: Served) -> Pairs:
    """The token in front of each preemption, and the one behind it."""
    num, choices = served.texts.shape[:2]
    behind = _flat(np.arange(num * choices * LENGTH).reshape(num, choices, LENGTH), served.resumed)
    return Pairs(behind - 1, behind)


def _flat(index: npt.NDArray[np.int64], places: Sequence[Place]) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = index[tuple(np.array(places, np.int64).reshape(-1, 3).T)]
    return found


def differences(served: Served, pairs: Pairs, chance: np.random.Generator) -> Floats:
    """A number for each pair, uniform if its tokens are independent. Behind different tokens, or at different positions, a
    difference is uniform since shifts are; behind the same ones it is the difference of two steps. Both are mapped by their
    distribution function, spread over its jumps at random."""
    begin = served.way.prompt_len
    tokens, moved = served.texts[..., begin:].reshape(-1), shifts(served.texts, begin).reshape(-1)
    difference = (tokens[pairs.other] - tokens[pairs.one]) % VOCABULARY
    is_same = (moved[pairs.other] == moved[pairs.one]) & _same_context(served, pairs)
    law = np.where(is_same[:, None], law_of_difference(LAW), np.full(VOCABULARY, 1 / VOCABULARY))
    at = np.arange(len(difference))
    below = law.cumsum(axis=1)[at, difference]
    found: Floats = np.clip(below - chance.random(len(difference)) * law[at, difference], 0.0, 1 - 1e-12)
    return found


def _same_context(served: Served, pairs: Pairs) -> npt.NDArray[np.bool_]:
    """Whether both stand at the same position behind the same two tokens."""
    begin = served.way.prompt_len
    texts = served.texts
    codes = (texts[..., begin - 2 : -2] * VOCABULARY + texts[..., begin - 1 : -1]) * LENGTH + np.arange(LENGTH)
    flat = codes.reshape(-1)
    found: npt.NDArray[np.bool_] = flat[pairs.one] == flat[pairs.other]
    return found


def of_neighbours(served: Served, name: str, pairs: Pairs, chance: np.random.Generator, profile: Profile) -> Question | None:
    """Whether the tokens of pairs are independent; None if there are too few pairs to say anything."""
    planned = ROW_CELLS[profile] if name == "row" else min(_MOST_CELLS, len(pairs.one) // LEAST)
    if (cells := planned) < 2 or len(pairs.one) < cells * LEAST:
        return None
    numbers = (differences(served, pairs, chance) * cells).astype(np.int64)
    null = f"{_NULLS[name]}, {served.way.name}"
    law = np.full(cells, 1 / cells)
    return Question(f"served-{slug(served.way)}-{name}", "ST-3", "noise", null, np.bincount(numbers, minlength=cells), law)


@dataclass(slots=True)
class Found:
    """What a run has come to so far."""

    answers: list[Statistic]
    broken: list[Violation]
    missed: list[str]
    rare: int = 0
    tokens: int = 0

    def judge(self, question: Question, ledger: Ledger) -> None:
        answer = judge(question, ledger)
        self.answers.append(answer)
        if answer.verdict is Verdict.INVALID:
            self.broken.append(violation_of(question, answer))

    def take(self, served: Served, ledger: Ledger, chance: np.random.Generator, profile: Profile) -> None:
        """Every question about one way."""
        if served.broken:
            what = f"{served.broken[0]}; {len(served.broken)} such choices"
            self.broken.append(Violation("SC-12", CATALOGUE["SC-12"].name, served.way.name, what, f"{LENGTH} tokens each"))
            return
        if served.lost:
            what = f"one that came to nothing: {served.lost[0]}"
            self.broken.append(
                Violation("SC-13", CATALOGUE["SC-13"].name, f"plans, {served.way.name}", what, "results that fit")
            )
            return
        found = steps(served.texts, served.way.prompt_len)
        counts = np.bincount(found.reshape(-1), minlength=VOCABULARY)
        self.rare += int(counts[list(RARE)].sum())
        self.tokens += found.size
        if impossible := int(counts[list(NEVER)].sum()):
            said = f"{impossible} tokens without probability"
            self.broken.append(Violation("ST-2", "sampler", f"{found.size:,} tokens, {served.way.name}", said, "none"))
        self.judge(of_steps(served, found), ledger)
        for asked in given(served, found):
            answer = judge_given(asked, ledger)
            self.answers.append(answer)
            if answer.verdict is Verdict.INVALID:
                self.broken.append(violation_given(asked, answer))
        for name, pairs in neighbours(served):
            question = of_neighbours(served, name, pairs, chance, profile)
            if question is None:
                self.missed.append(f"{served.way.name}: {len(pairs.one)} pairs ({name}), of which nothing can be said")
            else:
                self.judge(question, ledger)
        if served.way.preempts_at:
            self.judge_resumed(served, ledger, chance)
        self.missed += served.missed

    def judge_resumed(self, served: Served, ledger: Ledger, chance: np.random.Generator) -> None:
        """Pairs around preemptions are few: how many of them are equal, as a draw that comes twice makes them."""
        entry_id, share = f"served-{slug(served.way)}-resumed", 1 / VOCABULARY
        numbers = differences(served, resumed(served), chance)
        null = f"{_NULLS['resumed']}, {served.way.name}"
        count = int((numbers < share).sum())
        answer = repeat_statistic(entry_id, null, count, len(numbers), share, ledger.take(entry_id))
        self.answers.append(answer)
        if answer.verdict is Verdict.INVALID:
            found = f"{answer.statistic}, p = {answer.p:.1e}; {answer.estimated}"
            self.broken.append(
                Violation("ST-3", "noise", f"{answer.n:,} pairs ({null})", found, f"p of at least {answer.alpha:.0e}")
            )

    def judge_rare(self, ledger: Ledger) -> None:
        share = float(LAW[list(RARE)].sum())
        null = f"rare tokens come {share:.1%} of the time"
        answer = rare_statistic("served-rare", null, self.rare, self.tokens, share, ledger.take("served-rare"))
        self.answers.append(answer)
        if answer.verdict is Verdict.INVALID:
            self.broken.append(
                Violation(
                    "ST-2",
                    "sampler",
                    null,
                    f"{answer.statistic}, p = {answer.p:.1e}; {answer.estimated}",
                    f"{answer.alpha:.0e}",
                )
            )


def ways_of(profile: Profile) -> Sequence[Way]:
    """All, but in profile quick the one with drafts that are drawn, and the one with everything else."""
    return tuple(way for way in WAYS if way.name in _QUICK) if profile is Profile.QUICK else WAYS


def check_served(context: SuiteContext, noise: Noise | None = None) -> CheckResult:
    """The suite: every way, then what is rare."""
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}  # the same samples, not another try
    found, ledger, ways = Found([], [], []), Ledger(), ways_of(context.profile)
    reached: dict[str, int] = {}
    for number, way in enumerate(ways):
        context.progress(number, len(ways))
        chance = np.random.default_rng([context.seed, number])
        requests = 2 * -(-CHOICES[context.profile] // (2 * way.choices))
        # Ways and runs whose seeds are near each other shall not share addresses: 2^24 seeds lie between them.
        first_seed = (context.seed << 32) + (number << 24)
        served = serve(way, requests, first_seed, chance, partial(context.progress, number, len(ways)), noise)
        found.take(served, ledger, chance, context.profile)
        reached |= {f"{name}, {way.name}": served.reached.get(name, 0) for name in way.floors}
    context.progress(len(ways), len(ways))
    if found.tokens:
        found.judge_rare(ledger)
    laws = [each for each in found.answers if each.id.endswith("-law")]
    behind = [each for each in found.answers if each.id.endswith(_GIVEN)]
    num_joint = sum(each.id.endswith("-behind-step") for each in behind)
    return CheckResult(
        SUITE_ID,
        Verdict.INVALID if found.broken else Verdict.UNKNOWN if found.missed else merge(each.verdict for each in found.answers),
        examples=found.tokens,
        ops=found.tokens,
        reached=reached,
        missed=() if found.broken else tuple(found.missed),
        invariants={
            "ST-2": 2 * len(laws) + len(behind) - num_joint + 1,
            "ST-3": len(found.answers) - len(laws) - len(behind) + num_joint,
        },
        failures=tuple(Failure(each, seed=f"{context.seed:#x}", world=again) for each in found.broken),
        statistics=tuple(found.answers),
        note=_note(found, laws, behind, len(ways)),
    )


def _note(found: Found, laws: Sequence[Statistic], behind: Sequence[Statistic], num_ways: int) -> str:
    if not laws:
        return "no way of serving came to its end"
    pooled, conditional = (max(each.tv_min for each in answers) for answers in (laws, behind))
    return (
        f"{found.tokens:,} tokens drawn by an engine in {num_ways} ways; each way's pooled marginal finds a total variation of "
        f"{pooled:.2%}, its laws behind the token and the step before and by place one of {conditional:.2%} in the mean, with "
        f"power {min(each.power for each in (*laws, *behind)):.3f}"
    )
