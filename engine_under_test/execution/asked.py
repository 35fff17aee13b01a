"""What rows bring to the sampler beside their parameters, and what is told back of them: histories and log-probabilities.

Owns: putting together a row's tokens from what its plan names and what is still in flight, so that nothing has to be kept for a
row from step to step (SE-2); which positions of a prompt are told of; the columns of a result. Never: a step of the sampler.
Both runners use it, and only for plans in which some row asks (`Plan.outputs`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import RunnerError
from engine_under_test.execution.verifying import Places
from engine_under_test.sampling.logprobs import told
from engine_under_test.types import History, Logprobs, Plan, RowId

TokenInFlight = Callable[[RowId, int], int]
Told = tuple[tuple[tuple[Logprobs, ...], ...], tuple[tuple[Logprobs, ...], ...]]

NOTHING_TOLD: Told = ((), ())


class PromptPart(NamedTuple):
    """Positions of a row whose following tokens, all of the prompt, are to be told of, with so many others each."""

    row: int
    positions: range
    num_others: int


def histories(plan: Plan, places: Places, in_flight: TokenInFlight) -> list[History | None] | tuple[()]:
    """For these places what `Draws.histories` wants. ``in_flight``: the token that a row sampled for a position, which the host
    did not know when it planned. A draft counts as output for the places behind it."""
    if not plan.outputs:
        return ()
    found: list[History | None] = []
    drafts = plan.drafts()
    for row, end in zip(places.rows, places.positions, strict=True):
        output, prompt = plan.outputs[row], plan.requests[row].prompt
        if output is None:
            found.append(None)
            continue
        first = plan.starts[row] + plan.num_tokens[row] - len(drafts[row])  # the position of the first draft
        missing = range(len(prompt) + len(output), min(end, first))
        known = output + tuple([in_flight(plan.row_id(row), position) for position in missing])
        found.append(History(prompt, known + drafts[row][: max(end - first, 0)]))
    return found


def require_drawn(stuck: Mapping[int, str], rows: Sequence[int], kept: Iterable[int]) -> None:
    """Raises RunnerError, with the rows to blame, if a draw that is kept was none (`Sampled.stuck`). ``rows``: of each draw."""
    found = [number for number in kept if number in stuck] if stuck else ()
    if found:
        raise RunnerError(stuck[found[0]], tuple(dict.fromkeys(rows[number] for number in found)))


def prompt_parts(plan: Plan) -> list[PromptPart]:
    """Where log-probabilities of prompt tokens are asked for: the first choice computes the whole prompt but for its last
    token, whose logits are those of the output."""
    parts = []
    for row, output in enumerate(plan.outputs):
        request = plan.requests[row]
        count = request.sampling.prompt_logprobs
        if output is None or count is None or plan.choices[row] != 0:
            continue
        start = plan.starts[row]
        positions = range(start, min(start + plan.num_tokens[row], len(request.prompt) - 1))
        if positions:
            parts.append(PromptPart(row, positions, count))
    return parts


def columns(
    plan: Plan,
    rows: Sequence[int],
    logprobs: Sequence[Logprobs | None],
    parts: Sequence[PromptPart],
    prompt_logits: Iterable[npt.NDArray[np.float64]],
) -> Told:
    """The two columns of a result: ``logprobs`` of the tokens of `rows`, one row as often as it has tokens, and of the prompt
    tokens of the parts, whose logits come one after the other."""
    of_tokens: list[tuple[Logprobs, ...]] = [()] * plan.num_rows if logprobs else []
    for row, one in zip(rows, logprobs, strict=False):
        if one is not None:
            of_tokens[row] += (one,)
    of_prompts: list[tuple[Logprobs, ...]] = [()] * plan.num_rows if parts else []
    logits = iter(prompt_logits)
    for row, positions, num_others in parts:
        prompt = plan.requests[row].prompt
        of_prompts[row] = tuple([told(next(logits), prompt[position + 1], num_others) for position in positions])
    return tuple(of_tokens), tuple(of_prompts)
