"""Pairs of a target's and a proposer's law, and how the engine's speculation is run on many rows of one pair.

Owns: which laws are asked, and the loop that draws drafts, verifies them and goes on behind what was emitted, vectorised over
rows. Never: a law or a verdict. Laws are Markov (`enumerated_law.py`), so that joint laws over positions are more than
products, and shared: one small table serves any number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from differential.enumerated_law import Table
from differential.exact_law import ForeignNoise, Outcomes
from differential.well_formed import answered, whole_numbers
from engine_under_test.sampling.picking import RACE, WALK, Pick
from engine_under_test.sampling.verification import Law, Rows, Verdicts, draw, verify
from engine_under_test.seams import Noise

_OF_NOISE = (ForeignNoise,)
FIRST = 5  # the position that the first draft stands for
Draw = Callable[[Law, npt.NDArray[np.uint64], npt.NDArray[np.uint32], npt.NDArray[np.uint32], Noise, Pick], torch.Tensor]
Verify = Callable[[Rows, Noise, Pick], Verdicts]


@dataclass(frozen=True, slots=True)
class Case:
    """``proposed``: the proposer's law; with ``is_certain`` each row of it has one token, and verification is told none.
    ``spare``: places for drafts that the rows do not have, as beside a row that has them."""

    name: str
    target: Table
    proposed: Table
    width: int
    is_certain: bool = False
    spare: int = 0

    @property
    def vocab_size(self) -> int:
        return len(self.target)


@dataclass(frozen=True, slots=True)
class Speculator:
    """The two parts of the engine under test: how drafts are drawn, and how they are verified."""

    draw: Draw = draw
    verify: Verify = verify
    pick: Pick = WALK


ENGINE = Speculator()
RACING = Speculator(pick=RACE)

_P3 = ((0.5, 0.3, 0.2), (0.15, 0.25, 0.6), (0.35, 0.4, 0.25))
_Q3 = ((0.3, 0.45, 0.25), (0.4, 0.4, 0.2), (0.15, 0.35, 0.5))
_P4 = ((0.35, 0.15, 0.3, 0.2), (0.1, 0.4, 0.15, 0.35), (0.25, 0.3, 0.3, 0.15), (0.45, 0.2, 0.1, 0.25))
_Q4 = ((0.2, 0.4, 0.15, 0.25), (0.3, 0.2, 0.4, 0.1), (0.15, 0.35, 0.1, 0.4), (0.25, 0.25, 0.3, 0.2))
_HOLES_P = ((0.0, 0.6, 0.4, 0.0), (0.3, 0.0, 0.0, 0.7), (0.25, 0.25, 0.5, 0.0), (0.0, 0.0, 0.0, 1.0))
_HOLES_Q = ((0.5, 0.5, 0.0, 0.0), (0.0, 0.4, 0.6, 0.0), (0.0, 0.0, 0.3, 0.7), (0.25, 0.25, 0.25, 0.25))
_P2, _Q2 = ((0.7, 0.3), (0.4, 0.6)), ((0.45, 0.55), (0.65, 0.35))


def _only(tokens: tuple[int, ...]) -> Table:
    """Each row on one token."""
    return tuple(tuple(float(token == only) for token in range(len(tokens))) for only in tokens)


def spread(vocab_size: int, seed: int, concentration: float = 1.0, rows: int | None = None) -> Table:
    """Random laws; with ``rows`` 1 the same behind every token."""
    chance = np.random.default_rng(seed)
    made = chance.dirichlet(np.full(vocab_size, concentration), size=rows or vocab_size)
    return tuple(map(tuple, np.resize(made, (vocab_size, vocab_size)).tolist()))


MIXED = Case("three tokens, two drafts", _P3, _Q3, 2)
FOUR = Case("four tokens, two drafts", _P4, _Q4, 2)
# Where a draft falls, two tokens may be recovered: how noise is shared shows in which of them it is.
OPPOSED = Case(
    "three opposed tokens, two drafts",
    ((0.2, 0.4, 0.4), (0.45, 0.2, 0.35), (0.3, 0.5, 0.2)),
    ((0.6, 0.2, 0.2), (0.15, 0.6, 0.25), (0.25, 0.2, 0.55)),
    2,
)
EXACT_CASES = (  # the smallest first: it is what a failure is told of
    Case("one draft of two tokens", _P2, _Q2, 1),
    Case("one draft beside rows of three", _P2, _Q2, 1, spare=2),
    OPPOSED,
    Case("tokens of no probability on either side", _HOLES_P, _HOLES_Q, 2),
    Case("certain drafts", _P3, _only((1, 2, 0)), 2, is_certain=True),
    Case("a greedy target", _only((2, 0, 1)), _Q3, 2),
    Case("equal laws", _P3, _P3, 2),
    Case("nothing proposed", _P3, _Q3, 0),
    MIXED,
    Case("one draft of four tokens", _P4, _Q4, 1),
    Case("three drafts of two tokens", _P2, _Q2, 3),
    Case("a greedy target, certain drafts", _only((2, 0, 1)), _only((2, 1, 1)), 2, is_certain=True),
    Case("sixteen tokens", spread(16, 1, 5.0, rows=1), spread(16, 2, 5.0, rows=1), 1),
)
TEXT_CASES = (
    (Case("two tokens, one draft a step", _P2, _Q2, 1), 3),
    (Case("two tokens, two drafts a step", _P2, _Q2, 2), 3),
    (Case("three tokens, one draft a step", _P3, _Q3, 1), 2),
)


class LawChanged(Exception):
    """Verification wrote to the laws that it was handed, which others read too."""


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """The laws of a case as tensors of a type."""

    target: torch.Tensor
    proposed: torch.Tensor

    @classmethod
    def of(cls, case: Case, dtype: torch.dtype) -> Tables:
        return cls(torch.tensor(case.target, dtype=dtype), torch.tensor(case.proposed, dtype=dtype))

    def check(self, case: Case) -> None:
        """LawChanged if verification wrote to what it was handed."""
        fresh = Tables.of(case, self.target.dtype)
        for name, mine, its in (("target", self.target, fresh.target), ("proposed", self.proposed, fresh.proposed)):
            if not torch.equal(mine, its):
                row = int((mine != its).any(dim=1).nonzero()[0, 0])
                raise LawChanged(f"{name} row {row} from {its[row].tolist()} to {mine[row].tolist()}")


@dataclass(frozen=True, slots=True, eq=False)
class Addresses:
    """Seed and choice of each row; where its first draft stands, if not at `FIRST`."""

    seeds: npt.NDArray[np.uint64]
    choices: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.uint32] | None = None

    @classmethod
    def first(cls, num: int, first_seed: int = 0) -> Addresses:
        return cls(np.arange(num, dtype=np.uint64) + np.uint64(first_seed), np.zeros(num, np.uint32))


def one_step(
    case: Case,
    tables: Tables,
    who: Speculator,
    noise: Noise,
    at: Addresses,
    positions: npt.NDArray[np.uint32],
    last: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Drafts kept [rows], and the tokens emitted [rows, width + 1], filled up with -1, behind token `last` of each row.
    Malformed if the speculator's answer can not be read."""
    states = [last]
    for place in range(case.width):
        law = Law(tables.proposed, states[-1][:, None])
        drawn = partial(who.draw, law, at.seeds, at.choices, positions + np.uint32(place), noise, who.pick)
        states.append(_whole(answered("a draw", drawn, but=_OF_NOISE), "draft", len(last), case.vocab_size - 1))
    of = torch.nn.functional.pad(torch.stack(states, dim=1), (0, case.spare))
    drafts = of[:, 1:]
    proposed = None if case.is_certain else Law(tables.proposed, of[:, :-1])
    num = torch.full((len(last),), case.width)
    rows = Rows(at.seeds, at.choices, positions, drafts, num, Law(tables.target, of), proposed)
    verdicts = answered("verification", partial(who.verify, rows, noise, who.pick), but=_OF_NOISE)
    kept = _whole(verdicts.num_accepted, "drafts kept", len(last), case.width)
    tokens = _whole(verdicts.tokens, "token", len(last), case.vocab_size - 1)
    places = torch.arange(case.width + 1)
    padded = torch.nn.functional.pad(drafts[:, : case.width], (0, 1))
    emitted = torch.where(places < kept[:, None], padded, torch.where(places == kept[:, None], tokens[:, None], -1))
    return kept, emitted


def _whole(found: object, what: str, num: int, most: int) -> torch.Tensor:
    return torch.from_numpy(whole_numbers(found, what, num, 0, most))


def steps(case: Case, who: Speculator, noise: Noise, at: Addresses, dtype: torch.dtype = torch.float64) -> Outcomes:
    """One verification a row: [rows, 1 + width + 1], drafts kept and tokens emitted."""
    num = len(at.seeds)
    first = np.full(num, FIRST, np.uint32) if at.positions is None else at.positions
    tables = Tables.of(case, dtype)
    kept, emitted = one_step(case, tables, who, noise, at, first, torch.zeros(num, dtype=torch.int64))
    tables.check(case)
    return torch.cat((kept[:, None], emitted), dim=1).numpy()


def texts(
    case: Case, length: int, who: Speculator, noise: Noise, at: Addresses, dtype: torch.dtype = torch.float64
) -> Outcomes:
    """The first `length` tokens of each row, from as many steps as it takes."""
    num = len(at.seeds)
    tables = Tables.of(case, dtype)
    text = torch.zeros((num, length + case.width + 1), dtype=torch.int64)
    lengths = torch.zeros(num, dtype=torch.int64)
    last = torch.zeros(num, dtype=torch.int64)
    places = torch.arange(case.width + 1)
    while len(left := torch.nonzero(lengths < length)[:, 0]):
        here = Addresses(at.seeds[left.numpy()], at.choices[left.numpy()])
        positions = (FIRST + lengths[left]).numpy().astype(np.uint32)
        kept, emitted = one_step(case, tables, who, noise, here, positions, last[left])
        text[left[:, None], lengths[left, None] + places] = emitted
        last[left] = emitted.gather(1, kept[:, None])[:, 0]
        lengths[left] += kept + 1
    tables.check(case)
    return text[:, :length].numpy()
