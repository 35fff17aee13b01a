"""A proposer for the Markov model that draws its drafts from a law of its own, by the race, and says it.

Its steps follow `PROPOSED`, which differs from the model's law and has a share for steps that can not come. Owns the drafts.
Never: whether they stand.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from differential.error_budget import Probabilities
from differential.markov import LAW, NEVER, RARE, VOCABULARY, shift_behind
from engine_under_test.sampling.speculation import Ask, Declaration, Knowledge, Proposal, Repair
from engine_under_test.seams import Noise, Purpose

WIDTH = 3


def _proposed() -> Probabilities:
    """The four likeliest steps at three fifths of their share, the next eight hardly ever, the others too often, and some that
    can not come. So what is recovered is a likely draft as often as a rare one, and noise shared with drafts would show."""
    order = np.argsort(-LAW, kind="stable")
    found = np.zeros(VOCABULARY)
    found[order[:4]], found[order[4:12]] = 0.6 * LAW[order[:4]], 0.05 * LAW[order[4:12]]
    found[list(RARE)], found[list(NEVER)] = 0.003, 0.01
    found[order[12:16]] = (1 - found.sum()) / 4
    return found


PROPOSED = _proposed()
_BY_SHIFT = PROPOSED[(np.arange(VOCABULARY) - np.arange(VOCABULARY)[:, None]) % VOCABULARY]
_LOGARITHMS = np.log(_BY_SHIFT)


class MarkovDrafts:
    """Proposes `WIDTH` drafts a row and step. It remembers nothing."""

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return Declaration("drawn", WIDTH, Knowledge.FULL)

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        drafts: list[list[int]] = [[] for _ in asks]
        laws: list[list[Probabilities]] = [[] for _ in asks]
        for place in range(max((ask.width for ask in asks), default=0)):
            rows = [row for row, ask in enumerate(asks) if ask.width > place]
            positions = [len(asks[row].tokens) + place for row in rows]
            shifts = [
                shift_behind((*asks[row].tokens[-2:], *drafts[row])[-2:], at) for row, at in zip(rows, positions, strict=True)
            ]
            uniforms = noise.uniform(
                np.array([asks[row].params.seed for row in rows], np.uint64),
                np.array([asks[row].row.choice for row in rows], np.uint32),
                np.array(positions, np.uint32),
                Purpose.DRAFT,
                VOCABULARY,
            )
            found = (_LOGARITHMS[shifts] - np.log(-np.log(uniforms))).argmax(axis=1)
            for row, shift, token in zip(rows, shifts, found.tolist(), strict=True):
                drafts[row].append(token)
                laws[row].append(_BY_SHIFT[shift])
        known = [law for of_row in laws for law in of_row]
        return Proposal(tuple(map(tuple, drafts)), np.stack(known) if known else None)

    def repair(self, repairs: Sequence[Repair]) -> None:
        """Nothing is kept."""
