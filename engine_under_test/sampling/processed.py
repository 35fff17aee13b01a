"""The distribution that a row is drawn from: all steps of `torch_sampler.py` up to the draw, as probabilities.

Owns a pure function for whoever needs whole distributions, as the verification of drafts does. Never: noise, or a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from engine_under_test.sampling.adjustments import NO_PROCESSORS, Processors, stuck_after
from engine_under_test.seams import Grammars
from engine_under_test.types import History, SamplingParams


class RowState(NamedTuple):
    """All that a row's distribution depends on beside its logits. A draft's later rows have the tokens in front of them in
    their output, whether or not these will be accepted."""

    params: SamplingParams
    history: History


def processed(
    logits: torch.Tensor,
    rows: Sequence[RowState],
    processors: Processors = NO_PROCESSORS,
    grammars: Grammars | None = None,
) -> torch.Tensor:
    """[rows, vocabulary] float64 probabilities, on the place of `logits` [rows, vocabulary], which stay as they are.

    A greedy row, and one of which nothing is left (token 0), has all of it on one token. Sums may differ from those of
    `sampler.py` in their last digits, so a token at the edge of top-p may (docs/fingerprint.md, "Next token").
    """
    values = logits.to(torch.float64, copy=True)
    for row, state in enumerate(rows):
        if state.params.is_adjusted:
            _adjust(values[row], state, processors, grammars)
    _mask_early_stops(values, rows)
    top = values.amax(dim=1, keepdim=True)
    is_drawn = torch.tensor([state.params.temperature > 0 for state in rows], device=values.device)[:, None]
    is_drawn = is_drawn & (top > -torch.inf)
    temperatures = torch.tensor([state.params.temperature or 1.0 for state in rows], dtype=torch.float64, device=values.device)
    scaled = torch.where(is_drawn, (values - top) / temperatures[:, None], 0.0)
    _drop(scaled, [state.params for state in rows])
    one = torch.zeros_like(values).scatter_(1, values.argmax(dim=1, keepdim=True), 1.0)
    return torch.where(is_drawn, scaled.softmax(dim=1), one)


def _adjust(row: torch.Tensor, state: RowState, processors: Processors, grammars: Grammars | None) -> None:
    """The steps in front of `min_tokens`, by the same code as everywhere: in place on the host, or there and back."""
    on_host = row.cpu()
    stuck_after(on_host.numpy(), state.params, state.history, processors, grammars)
    if on_host.data_ptr() != row.data_ptr():
        row.copy_(on_host)


def _mask_early_stops(values: torch.Tensor, rows: Sequence[RowState]) -> None:
    masked = [
        (row, token)
        for row, (params, history) in enumerate(rows)
        if params.min_tokens > len(history.output)
        for token in params.stop_token_ids
        if 0 <= token < values.shape[1]
    ]
    if masked:
        places, tokens = torch.tensor(masked, device=values.device).T
        values[places, tokens] = -torch.inf


def _drop(scaled: torch.Tensor, params: Sequence[SamplingParams]) -> None:
    """Min-p, then top-k and top-p over the order of falling values, among equals of rising tokens; in place."""
    least = torch.tensor([each.min_p for each in params], dtype=torch.float64, device=scaled.device).log()
    scaled.masked_fill_(scaled < least[:, None], -torch.inf)
    wanted = [row for row, each in enumerate(params) if each.top_k > 0 or each.top_p < 1]
    if not wanted:
        return
    chosen = torch.tensor(wanted, device=scaled.device)
    size = scaled.shape[1]
    most = torch.tensor([min(params[row].top_k or size, size) for row in wanted], device=scaled.device)[:, None]
    share = torch.tensor([params[row].top_p for row in wanted], dtype=torch.float64, device=scaled.device)[:, None]
    ordered, order = scaled[chosen].sort(dim=1, descending=True, stable=True)
    is_kept = torch.arange(size, device=scaled.device)[None] < most
    shares = torch.where(is_kept, ordered.exp(), 0.0)
    sums = shares.cumsum(dim=1)
    ahead = torch.cat((torch.zeros_like(share), sums[:, :-1]), dim=1)
    is_kept &= (ahead < share * sums[:, -1:]) | (share >= 1)
    ordered.masked_fill_(~is_kept, -torch.inf)
    scaled[chosen] = torch.empty_like(ordered).scatter_(1, order, ordered)
