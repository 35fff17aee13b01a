"""Verification of drafts: how many stand, and which token follows them. The rule of `sampling/verification.py`, bit for bit.

Owns: one program a row for each of the two halves. Never: an address of noise, or the rule's reasons.

Nothing here is rounded in another way than in torch: a draft is kept by one product of float64 and a comparison; the race is
won by the greatest weight times speed, one difference and one product in the type of the laws, and among equals by the
lowest token. So both come to the same from equal noise, and nothing of it need be sampled a second time.

What was last run where stands in `docs/last-seen.json`: suites ``kernels-interpreter``, ``kernels-cuda``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from triton import language as tl

from engine_under_test.execution.kernels.launch import MAX, kernel

if TYPE_CHECKING:
    from engine_under_test.sampling.verification import Rows

_MOST_LANES = 1024  # of the vocabulary at once


def accepted(rows: Rows, uniforms: torch.Tensor) -> torch.Tensor:
    """int64 [rows]: drafts in front of the first that falls. `uniforms` float64 [rows, width]; all on one device."""
    num, width = rows.drafts.shape
    kept = torch.zeros(num, dtype=torch.int64, device=rows.drafts.device)
    if num and width:
        accept_kernel.launch(
            kept.device, (num,), *_columns(rows), uniforms.contiguous(), kept, width, rows.vocab_size,
            IS_KNOWN=rows.proposed is not None, num_warps=1,
        )  # fmt: skip
    return kept


def recover_or_bonus(rows: Rows, kept: torch.Tensor, speeds: torch.Tensor) -> torch.Tensor:
    """int64 [rows]: the token behind the drafts kept. `speeds` [rows, vocabulary], in the type of the laws: reciprocals of
    exponential variables."""
    num, width = rows.drafts.shape
    tokens = torch.zeros(num, dtype=torch.int64, device=rows.drafts.device)
    if num:
        lanes = min(_MOST_LANES, 1 << max(rows.vocab_size - 1, 1).bit_length())
        race_kernel.launch(
            tokens.device, (num,), *_columns(rows), kept.contiguous(), speeds.contiguous(), tokens, width, rows.vocab_size,
            LANES=lanes, IS_KNOWN=rows.proposed is not None, num_warps=4,
        )  # fmt: skip
    return tokens


def _columns(rows: Rows) -> tuple[torch.Tensor, ...]:
    """Laws of the target and of the proposer, drafts and their number. Where the proposer tells no laws, the target's stand in
    their place and are not read."""
    proposed = rows.target if rows.proposed is None else rows.proposed
    columns = (*rows.target, *proposed, rows.drafts, rows.num_drafts)
    return tuple(column.contiguous() for column in columns)


@kernel("width", "vocab_size")
def accept_kernel(
    target: tl.tensor, target_of: tl.tensor, proposed: tl.tensor, proposed_of: tl.tensor, drafts: tl.tensor,
    num_drafts: tl.tensor, uniforms: tl.tensor, kept: tl.tensor, width: tl.tensor, vocab_size: tl.tensor,
    IS_KNOWN: tl.constexpr,
) -> None:  # fmt: skip
    """One program a row, draft after draft.

    Last run: `docs/last-seen.json`, ``kernels-interpreter`` (CPU), ``kernels-cuda``.
    """
    row = tl.program_id(0).to(tl.int64)
    num = tl.load(num_drafts + row)
    stands = num > 0
    count = tl.full((), 0, tl.int64)
    for place in range(width):
        is_there = stands & (place < num)
        draft = tl.load(drafts + row * width + place, mask=is_there, other=0)
        law = tl.load(target_of + row * (width + 1) + place, mask=is_there, other=0)
        allowed = tl.load(target + law * vocab_size + draft, mask=is_there, other=0.0).to(tl.float64)
        uniform = tl.load(uniforms + row * width + place, mask=is_there, other=1.0)
        if IS_KNOWN:
            drawn = tl.load(proposed_of + row * width + place, mask=is_there, other=0)
            given = tl.load(proposed + drawn * vocab_size + draft, mask=is_there, other=1.0).to(tl.float64)
            uniform = uniform * given
        stands = is_there & (uniform < allowed)
        count += stands.to(tl.int64)
    tl.store(kept + row, count)


@kernel("width", "vocab_size")
def race_kernel(
    target: tl.tensor, target_of: tl.tensor, proposed: tl.tensor, proposed_of: tl.tensor, drafts: tl.tensor,
    num_drafts: tl.tensor, kept: tl.tensor, speeds: tl.tensor, tokens: tl.tensor, width: tl.tensor, vocab_size: tl.tensor,
    LANES: tl.constexpr, IS_KNOWN: tl.constexpr,
) -> None:  # fmt: skip
    """One program a row: a race over its vocabulary, LANES at a time; a second one over p alone if p - q is positive nowhere.

    Last run: `docs/last-seen.json`, ``kernels-interpreter`` (CPU), ``kernels-cuda``.
    """
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(kept + row)
    fell = at < tl.load(num_drafts + row)
    law = target + tl.load(target_of + row * (width + 1) + at) * vocab_size
    draft = tl.load(drafts + row * width + at, mask=fell, other=-1)
    other = proposed + tl.load(proposed_of + row * width + at, mask=fell, other=0) * vocab_size
    known_end = tl.where(fell, vocab_size, 0)
    speed = speeds + row * vocab_size
    lanes = tl.arange(0, LANES)
    best = tl.full((), -1.0, target.dtype.element_ty)
    token = tl.full((), 0, tl.int64)
    for begin in range(0, vocab_size, LANES):
        found = begin + lanes
        is_token = found < vocab_size
        weight = tl.load(law + found, mask=is_token, other=0.0)
        if IS_KNOWN:
            weight -= tl.load(other + found, mask=found < known_end, other=0.0)
        else:
            weight = tl.where(found == draft, 0.0, weight)
        score = tl.where(weight > 0, weight * tl.load(speed + found, mask=is_token, other=0.0), -1.0)
        top = tl.reduce(score, 0, MAX)
        first = LANES - tl.reduce(tl.where(score == top, LANES - lanes, 0), 0, MAX)
        token = tl.where(top > best, (begin + first).to(tl.int64), token)
        best = tl.maximum(best, top)
    if fell & (best < 0):
        for begin in range(0, vocab_size, LANES):
            found = begin + lanes
            is_token = found < vocab_size
            weight = tl.load(law + found, mask=is_token, other=0.0)
            score = tl.where(weight > 0, weight * tl.load(speed + found, mask=is_token, other=0.0), -1.0)
            top = tl.reduce(score, 0, MAX)
            first = LANES - tl.reduce(tl.where(score == top, LANES - lanes, 0), 0, MAX)
            token = tl.where(top > best, (begin + first).to(tl.int64), token)
            best = tl.maximum(best, top)
    tl.store(tokens + row, token)
