"""What a replay of a language model shows with --verbose: each row of a plan, and the logits of all parties beside each other.

Owns these lines and which tokens stand in them. Never a judgement (`differential.judging`). Imports torch only through the
values that it is handed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ci.wording import count
from engine_under_test.types import Plan, Request

if TYPE_CHECKING:
    import torch

    from differential.compare import Divergence, Emitted
    from differential.judging import Judged, Oracles

_BEST = 3  # of each party
_MOST_INPUTS = 16
_COLUMN = 15


def name_of(request: Request, choice: int) -> str:
    """ "a", or "a.1" for a further choice."""
    return f"{request.request_id}.{choice}" if choice else request.request_id


def input_lines(plan: Plan) -> Iterator[str]:
    """ "a (epoch 0): tokens 17 5 at positions 0..1, 2 blocks found in the cache, samples"."""
    begin = 0
    for row, request in enumerate(plan.requests):
        known = plan.num_tokens[row] - plan.num_pending[row]
        tokens = plan.token_ids[begin : begin + known]
        begin += known
        start, end = plan.starts[row], plan.starts[row] + plan.num_tokens[row]
        parts = [
            f"{_listed(tokens)}{' and the one in flight' if plan.num_pending[row] else ''} at positions {start}..{end - 1}",
            f"{count(len(plan.hit_blocks[row]), 'block')} found in the cache" if plan.hit_blocks[row] else "",
            "samples" if plan.samples[row] else "does not sample",
        ]
        name = name_of(request, plan.choices[row])
        yield f"{name} (epoch {plan.epochs[row]}): {', '.join(part for part in parts if part)}"


def logit_lines(plan: Plan, judged: Judged, oracles: Oracles) -> Iterator[str]:
    """For each token that the plan sampled: the logits of the best tokens as engine, reference and transformers see them."""
    emitted = {(each.request.request_id, each.choice): each for each in judged.ran.emitted}
    for row, request in enumerate(plan.requests):
        each = emitted.get((request.request_id, plan.choices[row]))
        index = plan.starts[row] + plan.num_tokens[row] - len(request.prompt)
        if each is not None and plan.samples[row] and index < min(len(each.tokens), len(each.logits)):
            yield from _table(each, index, oracles, judged.divergence)


def _table(each: Emitted, index: int, oracles: Oracles, divergence: Divergence | None) -> Iterator[str]:
    request = each.request
    views = {"engine": each.logits[index]}
    views |= {oracle.name: oracle.logits(each.forced, len(request.prompt) - 1)[index] for oracle in oracles}
    token = each.tokens[index]
    chosen = [token, *(one for view in views.values() for one in _best(view))]
    is_here = divergence is not None and (divergence.request_id, divergence.choice, divergence.index) == (
        request.request_id,
        each.choice,
        index,
    )
    if divergence is not None and is_here:
        chosen += [divergence.token, divergence.other]
    place = f"{name_of(request, each.choice)}, token {index} (position {len(request.prompt) + index})"
    yield f"{place}{', diverges' if is_here else ''}"
    yield f"{'  logit of':<{_COLUMN}}{''.join(f'{name:>{_COLUMN}}' for name in views)}"
    for one in sorted(set(chosen), key=lambda one: (-float(views["reference"][one]), one)):
        row = "".join(f"{float(view[one]):>{_COLUMN}.6f}" for view in views.values())
        yield f"{f'  token {one}':<{_COLUMN}}{row}{'   emitted' if one == token else ''}"


def _best(view: torch.Tensor) -> list[int]:
    found: list[int] = view.topk(min(_BEST, len(view))).indices.tolist()
    return found


def _listed(tokens: Sequence[int]) -> str:
    shown = " ".join(map(str, tokens[:_MOST_INPUTS]))
    left = len(tokens) - _MOST_INPUTS
    return (
        f"{'token' if len(tokens) == 1 else 'tokens'} {shown}{f' and {left} more' if left > 0 else ''}"
        if tokens
        else "no token"
    )
