"""The Triton kernels of verification beside the same in torch, bit for bit on equal noise, under Triton's interpreter.

Owns the batches of rows with drafts and their noise, how both back ends are asked, and what they were seen to decide. Never:
what the rule is (`verification_law.py` judges that in torch), or a suite's verdict (`kernel_numbers.py`).

Laws and noise have few values each, so that equalities come up that a drawn number hardly ever meets: U q = p, and two tokens
of one score, in one round of the race and in two. What nobody may read is poison: drafts past the number of them that a row
has, and the laws of their places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch

from engine_under_test.execution.kernels import verify as by_kernel
from engine_under_test.sampling.picking import fastest, speeds
from engine_under_test.sampling.verification import Law, Rows, accept, weights_behind
from properties.suite import Profile
from properties.verdict import Violation

_PARTS, _STEPS = 8, 4  # of a law, of the noise
_ROWS = {Profile.QUICK: 14, Profile.PR: 14, Profile.NIGHTLY: 96}
_ROUND = 1024  # tokens that the race looks at at once
_POISON = 2**40  # as a draft
FLOORS = {
    "verification: drafts kept": 25,
    "verification: drafts that fell": 25,
    "verification: bonus tokens": 35,
    "verification: U q equals p": 8,
    "verification: scores that are equal": 6,
    "verification: equal scores in two rounds": 2,
    "verification: p - q positive nowhere": 4,
    "verification: winners past the first round": 6,
}


@dataclass(frozen=True, slots=True)
class Drafted:
    """Rows of 0 to ``width`` drafts. ``is_certain``: no law of theirs is told. ``is_coarse``: of few values."""

    vocab_size: int
    width: int
    dtype: torch.dtype
    is_certain: bool = False
    is_coarse: bool = True
    order: str = "forwards"  # in which the programs of a grid run

    @property
    def name(self) -> str:
        kind, dtype = "certain drafts" if self.is_certain else "drafts from a law", str(self.dtype).removeprefix("torch.")
        return f"verification of up to {self.width} {kind}, {self.vocab_size:,} tokens, {dtype}, a grid {self.order}"


def drafted_cases(profile: Profile) -> Iterator[Drafted]:
    """A token, a few, and around the edges of a round of the race; in the night each with both kinds of drafts and orders."""
    full, double, backwards = torch.float32, torch.float64, "backwards"
    once = (
        Drafted(1, 2, full),
        Drafted(2, 3, double, is_certain=True, order=backwards),
        Drafted(5, 4, full, order=backwards),
        Drafted(33, 3, double),
        Drafted(1024, 2, full, is_certain=True),
        Drafted(1025, 3, full, order=backwards),
        Drafted(2500, 2, double),
        Drafted(3000, 2, full, is_coarse=False),
        Drafted(40, 0, full),
    )
    yield from once
    if profile is Profile.NIGHTLY:
        for case in once:
            for is_certain, order in product((False, True), ("forwards", backwards)):
                yield replace(case, is_certain=is_certain, order=order)


def made(case: Drafted, num: int, seed: int) -> tuple[Rows, torch.Tensor, torch.Tensor]:
    """Rows of a case, a uniform for each of their drafts, and one for each token behind those kept."""
    chance = np.random.default_rng([seed, case.vocab_size, case.width, case.is_certain])
    width, num_laws = case.width, 24
    target, proposed = (_laws(case, chance, num_laws) for _ in range(2))
    of = chance.integers(0, num_laws, (num, width + 1))
    of_others = chance.integers(0, num_laws, (num, width))
    counts = chance.integers(0, width + 1, num)
    proposed[: num_laws // 2] = target[: num_laws // 2]
    equal = chance.random((num, width)) < 0.3  # p is q: nothing is positive
    of[:, :width] = np.where(equal, of[:, :width] % (num_laws // 2), of[:, :width])
    of_others = np.where(equal, of[:, :width], of_others)
    drafts = chance.integers(0, case.vocab_size, (num, width))
    likely = proposed[of_others].argmax(axis=2) if width else drafts
    drafts = np.where(chance.random((num, width)) < 0.7, likely, drafts)
    of_tokens = _noise(case, chance, (num, case.vocab_size))
    if width and case.is_coarse:  # what chance may leave out: in row 0 two ends of equal score, in row 1 p = q = 0 at a draft
        target[0], counts[0], of[0, 0], of_tokens[0, -1] = 0.0, 0, 0, of_tokens[0, 0]
        target[0, [0, -1]] = 0.5
        counts[1], of[1, 0], of_others[1, 0] = max(counts[1], 1), 1, 1
        proposed[1] = target[1]
        drafts[1, 0] = target[1].argmin()
    beyond = np.arange(width) >= counts[:, None]
    of_nobody = np.where(np.arange(num)[:, None] % 2, _POISON, target[of[:, :1]].argmax(axis=2))  # some that would matter
    drafts, of_others = np.where(beyond, of_nobody, drafts), np.where(beyond, num_laws, of_others)
    of = np.where(np.arange(width + 1) > counts[:, None], num_laws, of)
    poison = np.full(case.vocab_size, np.nan), np.arange(case.vocab_size) % 2.0  # what is taken off p would matter too
    tables = (np.concatenate((table, each[None])) for table, each in zip((target, proposed), poison, strict=True))
    laws = [torch.from_numpy(table).to(case.dtype) for table in tables]
    rows = Rows(
        np.arange(num, dtype=np.uint64), np.zeros(num, np.uint32), np.zeros(num, np.uint32),
        torch.from_numpy(drafts), torch.from_numpy(counts), Law(laws[0], torch.from_numpy(of)),
        None if case.is_certain else Law(laws[1], torch.from_numpy(of_others)),
    )  # fmt: skip
    return rows, _noise(case, chance, (num, width)), of_tokens


def _laws(case: Drafted, chance: np.random.Generator, num: int) -> Any:
    """Each number a multiple of 1 / `_PARTS`, on few tokens, mostly the last ones."""
    size = case.vocab_size
    if not case.is_coarse:
        return chance.dirichlet(np.full(size, 0.3), num)
    places = np.concatenate((chance.integers(0, size, 4), chance.integers(max(size - 6, 0), size, 4)))
    found = np.zeros((num, size))
    for law in found:
        np.add.at(law, places[chance.integers(0, len(places), _PARTS)], 1 / _PARTS)
    return found


def _noise(case: Drafted, chance: np.random.Generator, size: tuple[int, int]) -> torch.Tensor:
    found = chance.random(size)
    return torch.from_numpy((np.floor(found * (_STEPS - 1)) + 1) / _STEPS if case.is_coarse else found)


def wrong_verification(
    case: Drafted, profile: Profile, seed: int, in_order: Callable[[str], Any], reached: Counter[str]
) -> Violation | None:
    """What is wrong with a case, if anything is."""
    rows, uniforms, of_tokens = made(case, _ROWS[profile], seed)
    of_lanes = speeds(of_tokens).to(case.dtype)
    # Torch looks up every place before it asks whether there is a draft, so it is handed no poison.
    safe = _without_poison(rows)
    kept = accept(safe, uniforms)
    weights = weights_behind(safe, kept)
    tokens = fastest(weights, of_lanes)
    try:
        with in_order(case.order):
            found = by_kernel.accepted(rows, uniforms), by_kernel.recover_or_bonus(rows, kept, of_lanes)
    except Exception as error:  # whatever it is: the rows are lawful
        cause = error.__cause__ or error
        return Violation("ST-1", "speculation is lossless", case.name, f"{type(cause).__name__}: {cause}", "a result")
    for what, mine, its in (("drafts kept", found[0], kept), ("the token behind them", found[1], tokens)):
        if not torch.equal(mine, its):
            return _told(case, rows, what, mine, its)
    _count(reached, safe, uniforms, kept, weights, of_lanes, tokens)
    return None


def _without_poison(rows: Rows) -> Rows:
    is_there = torch.arange(rows.drafts.shape[1]) < rows.num_drafts[:, None]
    return replace(rows, drafts=torch.where(is_there, rows.drafts, 0))


def _told(case: Drafted, rows: Rows, what: str, mine: torch.Tensor, its: torch.Tensor) -> Violation:
    row = int((mine != its).nonzero()[0])
    facts = (
        f"{'wrong rows':<13} {int((mine != its).sum())} of {len(its)}",
        f"{'drafts':<13} {rows.drafts[row, : int(rows.num_drafts[row])].tolist()} in row {row}",
    )
    found = f"{what}, row {row}: {int(mine[row])} by the kernel"
    return Violation(
        "ST-1", "speculation is lossless", case.name, found, f"{int(its[row])}, as in torch from equal noise", facts
    )


def _count(
    reached: Counter[str], rows: Rows, uniforms: torch.Tensor, kept: torch.Tensor, weights: torch.Tensor,
    of_lanes: torch.Tensor, tokens: torch.Tensor,
) -> None:  # fmt: skip
    width = rows.drafts.shape[1]
    fell = kept < rows.num_drafts
    scores = torch.where(weights > 0, weights * of_lanes, -1.0)
    best = scores == scores.amax(1, keepdim=True)
    last = best.shape[1] - 1 - best.flip(1).to(torch.int64).argmax(1)
    allowed = rows.target.table[rows.target.of[:, :width], rows.drafts].double()
    given = 1.0 if rows.proposed is None else rows.proposed.table[rows.proposed.of, rows.drafts].double()
    is_there = torch.arange(width) < rows.num_drafts[:, None]
    nowhere = torch.zeros_like(fell)
    if rows.proposed is not None and len(at := fell.nonzero()[:, 0]):
        places = kept[at]
        left = rows.target.table[rows.target.of[at, places]] - rows.proposed.table[rows.proposed.of[at, places]]
        nowhere[at] = ~(left.amax(1) > 0)
    for name, seen in (
        ("drafts kept", kept),
        ("drafts that fell", fell),
        ("bonus tokens", ~fell),
        ("U q equals p", is_there & (uniforms * given == allowed)),
        ("scores that are equal", best.sum(1) > 1),
        ("equal scores in two rounds", tokens // _ROUND != last // _ROUND),
        ("p - q positive nowhere", nowhere),
        ("winners past the first round", tokens >= _ROUND),
    ):
        reached[f"verification: {name}"] += int(seen.sum())
    reached["verifications compared"] += len(kept)
