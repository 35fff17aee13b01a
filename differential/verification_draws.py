"""Questions to draws of verification: joint laws, laws behind each number kept, texts, tails, independence. (ST-1, ST-3)

Each draw is one whole verification with drafts of its own. Where addresses matter (neighbours, several steps, the race over
lanes) noise is the engine's; where only the law does, each address of each row is one stratified number. Owns: what is drawn
and what it is compared with. Never: a second try.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from differential.enumerated_law import Law, law_of_end, law_of_step, law_of_text
from differential.exact_law import NotIntegrable, Outcomes, Variables
from differential.rare_counts import rare_statistic
from differential.sampling_stats import Question, law_of_difference
from differential.verification_cases import FIRST, FOUR, MIXED, Addresses, Case, Speculator, spread, steps, texts
from engine_under_test.sampling.noise import PhiloxNoise
from properties.suite import Profile, Statistic
from properties.verdict import Verdict, Violation

NUM_CHOICES, NUM_PLACES = 4, 32  # places: where the first draft may stand
LEAST = 1000  # expected of a cell, as `error_budget.pearson` wants it
TEXT_LENGTH = 3
_RARE = 2e-4
_FEWER = 0.9  # of what is expected behind a number of drafts kept: what cells are planned for
_GROUPS = 16  # of outcomes, whose differences are looked at
_ROWS_AT_ONCE = 1 << 13
_MOST_CODES = 1 << 17
# Draws. In profile pr no outcome of the joint law, the rarest of which has 0.0015, is too rare for a cell of its own.
JOINT = {Profile.QUICK: 1 << 16, Profile.PR: 700_416, Profile.NIGHTLY: 4 * 700_416}
TEXTS = {Profile.QUICK: 1 << 15, Profile.PR: 475_136, Profile.NIGHTLY: 4 * 475_136}
WIDE = {Profile.QUICK: 1 << 17, Profile.PR: 1 << 20, Profile.NIGHTLY: 1 << 23}

CERTAIN = Case(
    "certain drafts", FOUR.target, tuple(tuple(float(t == (s + 1) % 4) for t in range(4)) for s in range(4)), 2, True
)


def _with_rare_tokens() -> Case:
    """Thirty-two tokens, four drafts; behind token 0 the target says token 31 once in 5,000 times, and token 30 never."""
    target = np.array(spread(32, 5, 2.0))
    target[:, 30] = 0.0
    target[:, 31] = _RARE
    return Case(
        "32 tokens, four drafts", tuple(map(tuple, (target / target.sum(1, keepdims=True)).tolist())), spread(32, 6, 2.0), 4
    )


WIDE_CASE = _with_rare_tokens()
Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Cells:
    """A law of outcomes in cells of at least so many expected draws; what is rarer lies in one cell together."""

    names: tuple[str, ...]
    law: npt.NDArray[np.float64]
    counts: npt.NDArray[np.int64]
    impossible: tuple[str, ...]  # outcomes seen that have no probability


def pooled(law: Law, found: Law | dict[tuple[int, ...], int], num: int, planned: float | None = None) -> Cells:
    """Counts of outcomes in the cells of their law, which follow from it and from how many samples were planned, not from what
    was drawn."""
    planned = num if planned is None else planned
    often = sorted(outcome for outcome, share in law.items() if share * planned >= LEAST)
    rest = math.fsum(share for outcome, share in law.items() if share * planned < LEAST)
    counts = [int(found.get(outcome, 0)) for outcome in often]
    shares = [law[outcome] for outcome in often]
    if rest * planned >= LEAST:
        counts.append(num - sum(counts))
        shares.append(rest)
    elif rest:  # too rare for a cell: joins the rarest
        least = min(range(len(shares)), key=shares.__getitem__)
        counts[least] += num - sum(counts)
        shares[least] += rest
    else:
        counts[0] += num - sum(counts)  # impossible ones, which are told of in any case
    impossible = tuple(f"{told(each)} drawn {found[each]} times" for each in sorted(found) if each not in law)
    share = np.array(shares)
    return Cells(tuple(map(told, often)), share / share.sum(), np.array(counts), impossible)


def told(outcome: Sequence[int]) -> str:
    """An outcome in words."""
    kept, *tokens = outcome
    return f"{kept} kept, tokens {' '.join(str(token) for token in tokens if token >= 0)}"


def tally(outcomes: Outcomes) -> dict[tuple[int, ...], int]:
    """How often each row occurs."""
    codes = _codes(outcomes)
    if (size := int(codes.max()) + 1) <= _MOST_CODES:  # counted, which takes a tenth of sorting
        counts, first = np.bincount(codes), np.empty(size, np.int64)
        first[codes] = np.arange(len(codes))
        seen = np.flatnonzero(counts)
        first, counts = first[seen], counts[seen]
    else:
        _distinct, first, counts = np.unique(codes, return_index=True, return_counts=True)
    return dict(zip(map(tuple, outcomes[first].tolist()), counts.tolist(), strict=True))


def _codes(outcomes: Outcomes) -> npt.NDArray[np.int64]:
    """A number for each row, equal for equal ones."""
    base = int(outcomes.max()) + 2
    code = np.zeros(len(outcomes), np.int64)
    for column in outcomes.T:
        code = code * base + column + 1
    return code


# Draws


def grid(first_seed: int, num: int, stride: int) -> Addresses:
    """`num` rows at addresses of a grid [seeds, choices, places]; neighbouring places are `stride` positions apart."""
    each = NUM_CHOICES * NUM_PLACES
    row = np.arange(num)
    seeds = (row // each).astype(np.uint64) + np.uint64(first_seed % 2**64)
    return Addresses(
        seeds, (row // NUM_PLACES % NUM_CHOICES).astype(np.uint32), (FIRST + row % NUM_PLACES * stride).astype(np.uint32)
    )


def by_address(case: Case, who: Speculator, first_seed: int, num: int, progress: Progress) -> Outcomes:
    """[seeds * choices * places, columns] with the engine's noise; `num` is rounded up to an even number of seeds."""
    each = 2 * NUM_CHOICES * NUM_PLACES
    at = grid(first_seed, -(-num // each) * each, case.width + 1)
    noise, found = PhiloxNoise(), []
    for begin in range(0, len(at.seeds), _ROWS_AT_ONCE):
        part = slice(begin, begin + _ROWS_AT_ONCE)
        assert at.positions is not None
        found.append(steps(case, who, noise, Addresses(at.seeds[part], at.choices[part], at.positions[part])))
        progress(len(found[-1]))
    return np.concatenate(found)


def of_texts(case: Case, who: Speculator, first_seed: int, num: int, progress: Progress) -> Outcomes:
    """[num, TEXT_LENGTH] with the engine's noise: as many steps as it takes."""
    noise, found = PhiloxNoise(), []
    for begin in range(0, num, _ROWS_AT_ONCE):
        at = Addresses.first(min(_ROWS_AT_ONCE, num - begin), (first_seed + begin) % 2**64)
        found.append(texts(case, TEXT_LENGTH, who, noise, at))
        progress(len(found[-1]))
    return np.concatenate(found)


def stratified(case: Case, who: Speculator, num: int, chance: np.random.Generator, progress: Progress) -> Outcomes:
    """Each address one number a row, each part of the unit interval equally often in a batch (Latin hypercube sampling: McKay,
    Beckman, Conover 1979). Counts vary no more than independent ones do (Stein 1987), so a test keeps its false-alarm rate."""
    noise, found, known = Variables(), [], -1
    at = Addresses.first(_ROWS_AT_ONCE)
    while known < len(noise.addresses):  # learns which addresses there are
        known = len(noise.addresses)
        steps(case, who, noise_of_rows(noise, _ROWS_AT_ONCE, known, chance), at)
    for begin in range(0, num, _ROWS_AT_ONCE):
        found.append(steps(case, who, noise_of_rows(noise, _ROWS_AT_ONCE, known, chance), at)[: num - begin])
        progress(len(found[-1]))
    if len(noise.addresses) > known:
        raise NotIntegrable(f"{len(noise.addresses) - known} addresses were asked for so rarely that they were not stratified")
    return np.concatenate(found)


def noise_of_rows(noise: Variables, rows: int, columns: int, chance: np.random.Generator) -> Variables:
    """Fresh numbers for each variable. Strata come in an order of their own for each."""
    strata = np.argsort(chance.random((columns, rows)), axis=1).T if columns else np.empty((rows, 0))
    noise.values = (strata + chance.random((rows, columns))) / rows
    return noise


# Questions


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with the names of its cells, and what was drawn that can not be."""

    question: Question
    names: tuple[str, ...]
    impossible: tuple[str, ...] = ()


def ask(
    entry_id: str, invariant: str, null: str, law: Law, found: dict[tuple[int, ...], int], planned: float | None = None
) -> Asked:
    """Whether outcomes follow a law. ``planned``: samples, where how many there are depends on what is drawn."""
    cells = pooled(law, found, sum(found.values()), planned)
    name = "speculation is lossless" if invariant == "ST-1" else "noise"
    return Asked(Question(entry_id, invariant, name, null, cells.counts, cells.law), cells.names, cells.impossible)


def of_joint(outcomes: Outcomes) -> list[Asked]:
    """The joint law of drafts kept and tokens; the laws behind each number of drafts kept; neighbours in each direction."""
    law = law_of_step(FOUR.target, FOUR.proposed, FOUR.width, 0)
    found = tally(outcomes)
    asked = [ask("verification-joint", "ST-1", f"drafts kept and tokens of {FOUR.name} follow the enumerated law", law, found)]
    for kept in range(FOUR.width + 1):
        whole = math.fsum(share for outcome, share in law.items() if outcome[0] == kept)
        given = {outcome: share / whole for outcome, share in law.items() if outcome[0] == kept}
        seen = {outcome: count for outcome, count in found.items() if outcome[0] == kept}
        planned = _FEWER * whole * len(outcomes)
        if sum(seen.values()) < planned:
            continue  # so rare that the joint law is wrong, which has told so already
        null = f"tokens behind {kept} drafts kept follow their enumerated law"
        asked.append(ask(f"verification-behind-{kept}-drafts", "ST-1", null, given, seen, planned))
    return asked + of_neighbours(outcomes, law)


def of_neighbours(outcomes: Outcomes, law: Law) -> list[Asked]:
    """Whether verifications at neighbouring addresses are independent: the law of the difference of outcomes, numbered."""
    groups = {outcome: number % _GROUPS for number, outcome in enumerate(sorted(law))}
    of_groups: npt.NDArray[np.float64] = np.zeros(_GROUPS)
    for outcome, group in groups.items():
        of_groups[group] += law[outcome]
    shares = law_of_difference(of_groups)
    coded = _in_groups(outcomes, groups)
    asked = []
    shape = coded.reshape(-1, NUM_CHOICES, NUM_PLACES)
    for axis, name in enumerate(("seed", "choice", "position")):
        pairs = np.moveaxis(shape, axis, 0)
        counts = np.bincount(((pairs[1::2] - pairs[0::2]) % _GROUPS).reshape(-1), minlength=_GROUPS)
        null = f"verifications whose {name}s are neighbours are independent"
        question = Question(f"verification-neighbours-in-{name}", "ST-3", "noise", null, counts, shares)
        asked.append(Asked(question, tuple(f"difference {each}" for each in range(_GROUPS))))
    return asked


def _in_groups(outcomes: Outcomes, groups: dict[tuple[int, ...], int]) -> npt.NDArray[np.int64]:
    """The group of each row; impossible ones, which the joint law tells of, lie in group 0."""
    _distinct, first, of = np.unique(_codes(outcomes), return_index=True, return_inverse=True)
    number = np.array([groups.get(tuple(outcomes[row].tolist()), 0) for row in first])
    found: npt.NDArray[np.int64] = number[of.reshape(-1)]
    return found


def of_text(outcomes: Outcomes) -> Asked:
    law = law_of_text(MIXED.target, TEXT_LENGTH, 0)
    null = f"the first {TEXT_LENGTH} tokens of {MIXED.name} follow the target's law jointly, over several steps"
    return ask("verification-text", "ST-1", null, law, tally(outcomes))


def of_certain(outcomes: Outcomes) -> Asked:
    law = law_of_step(CERTAIN.target, CERTAIN.proposed, CERTAIN.width, 0)
    return ask("verification-certain", "ST-1", "drafts kept and tokens follow the enumerated law, drafts being certain", law,
               tally(outcomes))  # fmt: skip


def of_end(outcomes: Outcomes) -> Asked:
    """The number of drafts kept, and the token behind them."""
    case = WIDE_CASE
    shares = law_of_end(case.target, case.proposed, case.width, 0)
    law: Law = {(kept, token): float(share) for (kept, token), share in np.ndenumerate(shares) if share > 0}
    null = f"drafts kept and the token behind them, {case.name}, follow their law"
    return ask("verification-end", "ST-1", null, law, tally(ends(outcomes)))


def ends(outcomes: Outcomes) -> Outcomes:
    """[rows, 2]: drafts kept, and the token behind them."""
    kept = outcomes[:, 0]
    return np.stack([kept, outcomes[np.arange(len(kept)), 1 + kept]], axis=1)


def of_rare(outcomes: Outcomes, alpha: float) -> tuple[Statistic, Violation | None]:
    """Whether the rarest token comes first as often as the target says: its count is Poisson, near enough."""
    num, token = len(outcomes), len(WIDE_CASE.target) - 1
    share = WIDE_CASE.target[0][token]
    count = int((outcomes[:, 1] == token).sum())
    statistic = rare_statistic(
        "verification-rare", f"token {token} comes first {share:.1e} of the time", count, num, share, alpha
    )
    if statistic.verdict is Verdict.VALID:
        return statistic, None
    return statistic, Violation(
        "ST-1",
        "speculation is lossless",
        f"{num:,} samples",
        f"token {token} first {count} times",
        f"{num * share:.0f}, p >= {alpha:.0e}",
    )
