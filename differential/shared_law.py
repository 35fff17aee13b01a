"""The engine's verification on laws that many rows share, at a million a second: what depends on a law alone is computed once.

What is the engine's here: every noise address (`verify`, `draw`), which place of a row looks at which law, acceptance of each
draft of each row (`accept`), the positive part and what stands in for it (`weights_behind`). What is shared: rows whose token
comes from the same law, behind the same one of the proposer, differ in nothing but their number; so `weights_behind` is asked
of one row of each kind, and the sum along a law, which a walk takes per row, is taken once. Each row still draws with its own
number. So a number used twice, a wrong row, a wrong weight show as they do without sharing; what can not show is a mistake in
gathering the weights of many rows at once: for that, `num_differing` compares one batch with the engine's way, bit by bit.
Never: a law of its own, or a verdict.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from differential.verification_cases import Addresses, Case, Speculator, steps
from differential.well_formed import whole_numbers
from engine_under_test.sampling.picking import WALK, Pick
from engine_under_test.sampling.verification import BackEnd, Law, Rows, Verdicts, accept, draw, verify, weights_behind
from engine_under_test.seams import Noise

Numbers = npt.NDArray[np.int64]


def walk_along(laws: torch.Tensor, of: Numbers, uniforms: torch.Tensor) -> torch.Tensor:
    """int64 [rows]: `Walk` from law ``of[r]`` of ``laws`` [kinds, vocab], with the bits that it has row by row."""
    sums = laws.cumsum(1, dtype=torch.float64).numpy()
    whole = sums[:, -1]
    at = uniforms[:, 0].numpy() * whole[of]
    order = np.argsort(of.astype(np.int16 if len(laws) < 1 << 15 else np.int64), kind="stable")
    ends = np.cumsum(np.bincount(of, minlength=len(laws))).tolist()
    at = at[order]
    sorted_tokens = np.empty(len(of), np.int64)
    for kind, (begin, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if begin < end:
            sorted_tokens[begin:end] = sums[kind].searchsorted(at[begin:end], side="right")
    found = np.empty_like(sorted_tokens)
    found[order] = sorted_tokens
    beyond = np.flatnonzero(found == laws.shape[1])
    if len(beyond):  # rounded up to the whole, or nothing can be picked: as the walk of one row says
        found[beyond] = WALK(laws[torch.from_numpy(of[beyond])], uniforms[torch.from_numpy(beyond)]).numpy()
    return torch.from_numpy(found)


class _Along:
    """A `Pick` whose weights are the numbers of laws, [rows, 1]."""

    def __init__(self, laws: torch.Tensor) -> None:
        self._laws = laws

    def num_lanes(self, vocab_size: int) -> int:
        """See `Pick`."""
        return WALK.num_lanes(vocab_size)

    def __call__(self, weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
        """See `Pick`."""
        return walk_along(self._laws, weights[:, 0].numpy(), uniforms)


def draw_shared(
    law: Law,
    seeds: npt.NDArray[np.uint64],
    choices: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.uint32],
    noise: Noise,
    _pick: Pick = WALK,
) -> torch.Tensor:
    """The engine's `draw`, which is handed the numbers of laws in place of the laws."""
    numbers = torch.arange(len(law.table))[:, None]
    return draw(Law(numbers, law.of), seeds, choices, positions, noise, _Along(law.table))


def pick_shared(rows: Rows, kept: torch.Tensor, uniforms: torch.Tensor, _pick: Pick) -> torch.Tensor:
    """`verification.pick_behind`, with the weights of each kind of row asked for once."""
    one, of = kinds(rows, kept)
    some = torch.from_numpy(one)
    alike = replace(
        rows,
        seeds=rows.seeds[one],
        choices=rows.choices[one],
        positions=rows.positions[one],
        drafts=rows.drafts[some],
        num_drafts=rows.num_drafts[some],
        target=rows.target._replace(of=rows.target.of[some]),
        proposed=None if rows.proposed is None else rows.proposed._replace(of=rows.proposed.of[some]),
    )
    return walk_along(weights_behind(alike, kept[some]), of, uniforms)


def kinds(rows: Rows, kept: torch.Tensor) -> tuple[Numbers, Numbers]:
    """Rows whose token behind the drafts kept has the same law: one of each kind, and the kind of each [rows]. That is told by
    the row of the target's table and, where a draft fell, by that of the proposer's, or by the draft if it was certain."""
    places, behind = np.arange(len(kept)), whole_numbers(kept, "drafts kept", len(rows.seeds), 0, rows.num_drafts.numpy())
    code = rows.target.of.numpy()[places, behind]
    num = len(rows.target.table)
    fell = np.flatnonzero(behind < rows.num_drafts.numpy())
    against = rows.drafts if rows.proposed is None else rows.proposed.of
    code[fell] += num * (1 + against.numpy()[fell, behind[fell]])
    one = np.full(int(code.max()) + 1, -1)
    one[code] = places
    present = np.flatnonzero(one >= 0)
    number = np.zeros(len(one), np.int64)
    number[present] = np.arange(len(present))
    return one[present], number[code]


def verify_shared(rows: Rows, noise: Noise, pick: Pick = WALK) -> Verdicts:
    """The engine's `verify` with its own `accept`, and `pick_shared`."""
    return verify(rows, noise, pick, BackEnd(accept, pick_shared))


SHARED = Speculator(draw_shared, verify_shared, WALK)


def num_differing(case: Case, noise: Noise, rows: int, shared: Speculator, plain: Speculator) -> int:
    """How many rows of one batch come to something else if what they share is computed once."""
    at = Addresses.first(rows)
    return int((steps(case, shared, noise, at) != steps(case, plain, noise, at)).any(axis=1).sum())
