"""Which drafts stand, and which token follows them: rejection sampling that leaves the target's distribution as it is.

Draft d, drawn from q, is kept with probability min(1, p(d) / q(d)), p being the target's processed law at its position; where
the first one falls, a token is drawn from the positive part of p - q, normalised; behind the last one, from p (Leviathan,
Kalman, Matias, ICML 2023, algorithm 1; Chen et al. 2023, algorithm 2). A draft that came with certainty has q = 1 at itself. A
greedy row has all of p on one token: a draft is kept if it is that token, and no noise matters.

Owns: this rule, vectorised over rows, and the addresses of its noise: purpose ACCEPT and the draft's position for each draft;
RECOVER and the position of the draft that fell; SAMPLE and the position behind the drafts for the bonus token, as without
speculation. Never: logits or filters (p and q come processed), KV, or stopping in the middle of what is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_under_test.errors import ConfigError, ProtocolError
from engine_under_test.sampling.picking import RACE, Pick, Race, speeds
from engine_under_test.sampling.speculation import Ask, Proposal
from engine_under_test.seams import Noise, Purpose


class Law(NamedTuple):
    """Laws of some places: row ``of[r, i]`` of ``table`` [n, vocab] is that of place i of row r. Many rows may share one."""

    table: torch.Tensor  # float32 or float64
    of: torch.Tensor  # int64 [rows, places]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """What is verified at once. ``positions``: the index in prompt + output of the token that a row's first draft stands for.
    ``drafts`` int64 [rows, width] and ``num_drafts`` int64 [rows]: row r has the first ``num_drafts[r]``, what follows is not
    looked at. ``target`` has width + 1 places a row, ``proposed`` width; None: every draft came with certainty.
    """

    seeds: npt.NDArray[np.uint64]
    choices: npt.NDArray[np.uint32]
    positions: npt.NDArray[np.uint32]
    drafts: torch.Tensor
    num_drafts: torch.Tensor
    target: Law
    proposed: Law | None = None

    @property
    def vocab_size(self) -> int:
        return int(self.target.table.shape[1])


class Verdicts(NamedTuple):
    """int64 [rows] each: how many drafts are kept, and the token behind them."""

    num_accepted: torch.Tensor
    tokens: torch.Tensor


class BackEnd(NamedTuple):
    """What computes the two halves. Every back end comes to the same bits from equal noise."""

    accept: Callable[[Rows, torch.Tensor], torch.Tensor]  # with uniforms [rows, width]: how many are kept
    pick: Callable[[Rows, torch.Tensor, torch.Tensor, Pick], torch.Tensor]  # with the number kept, and noise of one draw a row


def verify(rows: Rows, noise: Noise, pick: Pick = RACE, back_end: BackEnd | None = None) -> Verdicts:
    """Drafts kept and the token added, for each row. Nothing that is handed in is changed."""
    _check(rows)
    if back_end is None:
        back_end = choose_back_end(rows)
    kept = back_end.accept(rows, _accept_noise(rows, noise))
    return Verdicts(kept, back_end.pick(rows, kept, _pick_noise(rows, kept, noise, pick.num_lanes(rows.vocab_size)), pick))


def draw(law: Law, seeds: npt.NDArray[np.uint64], choices: npt.NDArray[np.uint32], positions: npt.NDArray[np.uint32],
         noise: Noise, pick: Pick = RACE) -> torch.Tensor:  # fmt: skip
    """One draft a row, int64 [rows], from the law of its only place: how whoever knows q draws from it."""
    uniforms = noise.uniform(seeds, choices, positions, Purpose.DRAFT, pick.num_lanes(law.table.shape[1]))
    return pick(law.table[law.of[:, 0]], torch.from_numpy(uniforms).to(law.table.device))


# Noise


def _accept_noise(rows: Rows, noise: Noise) -> torch.Tensor:
    """[rows, width]: one number for each draft that is there; 1 beside them."""
    width = rows.drafts.shape[1]
    places = np.arange(width, dtype=np.uint32)
    row, place = np.nonzero(places < rows.num_drafts.cpu().numpy()[:, None])
    found = np.ones((len(rows.seeds), width))
    if len(row):
        positions = rows.positions[row] + places[place]
        found[row, place] = noise.uniform(rows.seeds[row], rows.choices[row], positions, Purpose.ACCEPT, 1)[:, 0]
    return torch.from_numpy(found).to(rows.drafts.device)


def _pick_noise(rows: Rows, kept: torch.Tensor, noise: Noise, num_lanes: int) -> torch.Tensor:
    """[rows, lanes]: of the token behind the drafts kept. A draft fell there, or it is the bonus."""
    at = rows.positions + kept.cpu().numpy().astype(np.uint32)
    is_bonus = (kept == rows.num_drafts).cpu().numpy()
    found = np.empty((len(at), num_lanes))
    for purpose, which in ((Purpose.SAMPLE, is_bonus), (Purpose.RECOVER, ~is_bonus)):
        if which.any():
            found[which] = noise.uniform(rows.seeds[which], rows.choices[which], at[which], purpose, num_lanes)
    return torch.from_numpy(found).to(rows.drafts.device)


# The rule, in torch


def accept(rows: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    """How many drafts of each row are kept: those in front of the first whose q(d) * U is not below p(d). In float64, so that
    a number of 32 bits does not round to 1."""
    width = rows.drafts.shape[1]
    places = torch.arange(width, device=rows.drafts.device)
    is_there = places < rows.num_drafts[:, None]
    drafts = torch.where(is_there, rows.drafts, 0)
    allowed = rows.target.table[rows.target.of[:, :width], drafts].double()
    given = 1.0 if rows.proposed is None else rows.proposed.table[rows.proposed.of, drafts].double()
    is_kept = is_there & (uniforms * given < allowed)
    return is_kept.to(torch.int64).cumprod(1).sum(1)


def weights_behind(rows: Rows, kept: torch.Tensor) -> torch.Tensor:
    """[rows, vocab], not normalised: the law of the token behind the drafts kept. Where a draft fell, the positive part of
    p - q; if nothing is positive there (p and q differ by rounding alone), p."""
    places = torch.arange(len(kept), device=kept.device)
    target = rows.target.table[rows.target.of[places, kept]]
    fell = torch.nonzero(kept < rows.num_drafts)[:, 0]
    if not len(fell):
        return target
    at, law = kept[fell], target[fell]
    if rows.proposed is None:
        left = law.scatter(1, rows.drafts[fell, at][:, None], 0.0)
    else:
        left = (law - rows.proposed.table[rows.proposed.of[fell, at]]).clamp_(min=0)
    empty = torch.nonzero(~(left.amax(1) > 0))[:, 0]
    if len(empty):
        left[empty] = law[empty]
    target[fell] = left
    return target


def pick_behind(rows: Rows, kept: torch.Tensor, uniforms: torch.Tensor, pick: Pick) -> torch.Tensor:
    """The token behind the drafts kept."""
    return pick(weights_behind(rows, kept), uniforms)


TORCH = BackEnd(accept, pick_behind)


def _accept_by_kernel(rows: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    from engine_under_test.execution.kernels.verify import accepted

    return accepted(rows, uniforms)


def _pick_by_kernel(rows: Rows, kept: torch.Tensor, uniforms: torch.Tensor, pick: Pick) -> torch.Tensor:
    """The race in the kernel; any other way to pick is torch's."""
    from engine_under_test.execution.kernels.verify import recover_or_bonus

    if not isinstance(pick, Race):
        return pick_behind(rows, kept, uniforms, pick)
    return recover_or_bonus(rows, kept, speeds(uniforms).to(rows.target.table.dtype))


TRITON = BackEnd(_accept_by_kernel, _pick_by_kernel)


def choose_back_end(rows: Rows) -> BackEnd:
    """Triton where it is compiled, torch elsewhere."""
    return TRITON if rows.drafts.device.type == "cuda" else TORCH


# The door


def rows_of(asks: Sequence[Ask], proposal: Proposal, target: torch.Tensor) -> Rows:
    """The rows of one step, from columns that lie one after the other: for each ask a row of `target` for every draft and one
    more, of `proposal.probabilities` for every draft."""
    place = target.device
    widths = torch.tensor(proposal.widths, dtype=torch.int64)
    width = int(widths.max()) if len(widths) else 0
    drafts = torch.zeros((len(asks), width), dtype=torch.int64)
    for row, tokens in enumerate(proposal.drafts):
        drafts[row, : len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
    if drafts.numel() and not 0 <= int(drafts.min()) <= int(drafts.max()) < target.shape[1]:
        raise ProtocolError(
            f"drafts are tokens of a vocabulary of {target.shape[1]}, found {drafts.tolist()}; correct the proposer"
        )
    if len(target) != int(widths.sum()) + len(asks):
        raise ConfigError(
            f"verification takes the target's law at {int(widths.sum())} drafts and behind each of {len(asks)} rows, found "
            f"{len(target)} laws; hand over one for each"
        )
    known = proposal.probabilities
    return Rows(
        np.array([ask.params.seed for ask in asks], dtype=np.uint64),
        np.array([ask.row.choice for ask in asks], dtype=np.uint32),
        np.array([len(ask.tokens) for ask in asks], dtype=np.uint32),
        drafts.to(place),
        widths.to(place),
        Law(target, _places(widths + 1, width + 1).to(place)),
        None if known is None else Law(torch.as_tensor(known, device=place), _places(widths, width).to(place)),
    )


def _places(counts: torch.Tensor, width: int) -> torch.Tensor:
    """[rows, width]: where the places of each row lie, row after row; beyond its count some place that is there."""
    begins = (counts.cumsum(0) - counts)[:, None]
    return torch.minimum(begins + torch.arange(width), (counts.sum() - 1).clamp(min=0))


def _check(rows: Rows) -> None:
    num, width = rows.drafts.shape
    laws = [("target", rows.target, width + 1), *([("proposed", rows.proposed, width)] if rows.proposed is not None else [])]
    for name, law, places in laws:
        if tuple(law.of.shape) != (num, places):
            raise ConfigError(f"{name} has {places} laws for each of {num} rows, found shape {list(law.of.shape)}; correct it")
        if law.table.dtype not in (torch.float32, torch.float64) or law.table.dtype != rows.target.table.dtype:
            raise ConfigError(f"probabilities are float32 or float64, p and q alike, found {law.table.dtype}; convert them")
