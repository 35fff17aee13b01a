"""Speculation done wrong in the ways that public engines did it wrong, and how far off the law each of them is.

Owns: the slips, each as a whole `Speculator` made of the engine's parts with one thing wrong. Never: a test, or a verdict.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from differential.exact_law import Floats
from differential.verification_cases import Speculator
from engine_under_test.sampling.picking import Pick
from engine_under_test.sampling.verification import TORCH, BackEnd, Law, Rows, Verdicts, accept, draw, verify, weights_behind
from engine_under_test.seams import Noise, Purpose

_TOP_P = 0.75
_TEMPERATURE = 0.7

Words = npt.NDArray[np.uint32]
Readdress = Callable[[npt.NDArray[np.uint64], Words, Words, int], tuple[npt.NDArray[np.uint64], Words, Words, int]]


@dataclass(frozen=True, slots=True)
class Readdressed:
    """Noise whose addresses are changed before they are looked up: the place where a shared offset lies."""

    noise: Noise
    change: Readdress

    def uniform(self, seeds: npt.NDArray[np.uint64], choices: Words, positions: Words, purpose: int, num_lanes: int) -> Floats:
        """See `seams.Noise`."""
        return self.noise.uniform(*self.change(seeds, choices, positions, purpose), num_lanes)

    def uniform_at(self, seed: int, choice: int, position: int, purpose: int, lanes: npt.NDArray[np.int64]) -> Floats:
        """See `seams.Noise`."""
        columns = np.array([seed], np.uint64), np.array([choice], np.uint32), np.array([position], np.uint32)
        seeds, choices, positions, other = self.change(*columns, purpose)
        return self.noise.uniform_at(int(seeds[0]), int(choices[0]), int(positions[0]), other, lanes)


@dataclass(frozen=True, slots=True)
class Slip:
    """``makes``: the wrong speculator from the right one. ``is_between_rows``: each row by itself is right."""

    name: str
    makes: Callable[[Speculator], Speculator]
    is_between_rows: bool = False


def _addressed(change: Readdress) -> Callable[[Speculator], Speculator]:
    def makes(right: Speculator) -> Speculator:
        return replace(
            right,
            draw=lambda law, seeds, choices, positions, noise, pick: right.draw(
                law, seeds, choices, positions, Readdressed(noise, change), pick
            ),
            verify=lambda rows, noise, pick: right.verify(rows, Readdressed(noise, change), pick),
        )

    return makes


def _purpose(wrong: int, instead: int) -> Readdress:
    return lambda seeds, choices, positions, purpose: (seeds, choices, positions, instead if purpose == wrong else purpose)


def _one_accept_for_all(
    seeds: npt.NDArray[np.uint64], choices: Words, positions: Words, purpose: int
) -> tuple[npt.NDArray[np.uint64], Words, Words, int]:
    """Every draft of a row is judged by one number."""
    first = np.full_like(positions, positions.min()) if purpose == Purpose.ACCEPT and len(positions) else positions
    return seeds, choices, first, purpose


def _verified(
    change: Callable[[Rows], Rows] = lambda rows: rows, back_end: BackEnd = TORCH
) -> Callable[[Speculator], Speculator]:
    """Verification of other rows, or by another back end."""

    def wrong(rows: Rows, noise: Noise, pick: Pick) -> Verdicts:
        return verify(change(rows), noise, pick, back_end)

    return lambda right: replace(right, verify=wrong)


def _of_target(rows: Rows, change: Callable[[torch.Tensor], torch.Tensor]) -> Rows:
    return replace(rows, target=rows.target._replace(of=change(rows.target.of)))


def _swapped(rows: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    assert rows.proposed is not None
    of = rows.proposed.of
    padded = torch.cat((of, of[:, :1]), dim=1)
    return accept(replace(rows, target=Law(rows.proposed.table, padded), proposed=Law(rows.target.table, of)), uniforms)


def _not_normalised(weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """A walk that takes the positive part as it is; what is missing from 1 goes to the last token."""
    sums = weights.cumsum(1)
    beyond = torch.searchsorted(sums, uniforms[:, :1].contiguous(), right=True)[:, 0]
    return beyond.clamp(max=weights.shape[1] - 1)


def _not_positive_part(rows: Rows, kept: torch.Tensor, uniforms: torch.Tensor, pick: Pick) -> torch.Tensor:
    """Recovery from the target itself."""
    return pick(rows.target.table[rows.target.of[torch.arange(len(kept)), kept]], uniforms)


def _with_table(rows: Rows, table: torch.Tensor) -> Rows:
    return replace(rows, target=rows.target._replace(table=table))


def _filtered(table: torch.Tensor) -> torch.Tensor:
    """Top-p of each row."""
    ordered, of = table.sort(dim=1, descending=True, stable=True)
    is_kept = ordered.cumsum(1) - ordered < _TOP_P * ordered.sum(1, keepdim=True)
    left = torch.zeros_like(table).scatter(1, of, torch.where(is_kept, ordered, 0.0))
    return left / left.sum(1, keepdim=True)


def _filtered_behind(rows: Rows, kept: torch.Tensor, uniforms: torch.Tensor, pick: Pick) -> torch.Tensor:
    """Top-p on what is left when the drafts have been judged by the whole law."""
    weights = weights_behind(rows, kept)
    return pick(_filtered(weights / weights.sum(1, keepdim=True)), uniforms)


def _cooled(table: torch.Tensor) -> torch.Tensor:
    cold = table ** (1 / _TEMPERATURE)
    return cold / cold.sum(1, keepdim=True)


def _drawn_cool(right: Speculator) -> Speculator:
    """Drafts come from a colder law than verification is told."""
    return replace(
        right,
        draw=lambda law, seeds, choices, positions, noise, pick: draw(
            law._replace(table=_cooled(law.table)), seeds, choices, positions, noise, pick
        ),
    )


def _one_less(rows: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    """The last draft kept is given up."""
    return (accept(rows, uniforms) - 1).clamp(min=0)


SLIPS = (
    Slip("recovery shares the draft's noise", _addressed(_purpose(Purpose.RECOVER, Purpose.DRAFT))),
    Slip("recovery shares acceptance's noise", _addressed(_purpose(Purpose.RECOVER, Purpose.ACCEPT))),
    Slip("the bonus shares the draft's noise of the step", _addressed(
        lambda seeds, choices, positions, purpose: (seeds, choices, positions - np.uint32(1), Purpose.DRAFT)
        if purpose == Purpose.SAMPLE else (seeds, choices, positions, purpose)
    )),
    Slip("one number judges all drafts", _addressed(_one_accept_for_all)),
    Slip("p and q swapped", _verified(back_end=TORCH._replace(accept=_swapped))),
    Slip("the positive part not normalised", lambda right: replace(
        right, verify=lambda rows, noise, pick: verify(rows, noise, pick, TORCH._replace(
            pick=lambda rows, kept, uniforms, _pick: _not_normalised(weights_behind(rows, kept), uniforms)
        ))
    )),
    Slip("recovery from the target", _verified(back_end=TORCH._replace(pick=_not_positive_part))),
    Slip("the bonus from the row before", _verified(lambda rows: _of_target(
        rows, lambda of: torch.cat((of[:, :-1], of[:, -2:-1]), dim=1)
    ))),
    Slip("top-p behind verification", _verified(back_end=TORCH._replace(pick=_filtered_behind))),
    Slip("acceptance off by one", _verified(back_end=TORCH._replace(accept=_one_less))),
    Slip("each draft judged by the row behind it", _verified(lambda rows: _of_target(
        rows, lambda of: torch.cat((of[:, 1:], of[:, -1:]), dim=1)
    ))),
    Slip("temperature on the draft only", _drawn_cool),
    Slip("the seed fixed across requests", _addressed(
        lambda seeds, choices, positions, purpose: (np.zeros_like(seeds), choices, positions, purpose)
    ), is_between_rows=True),
)  # fmt: skip
