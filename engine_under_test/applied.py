"""What a result does to sequences before their tokens are told: drafts that stand, and what is said of prompts.

Owns this step alone; the engine, which calls it, confirms blocks and tells tokens.
"""

from __future__ import annotations

from typing import NamedTuple

from engine_under_test.flights import InFlight
from engine_under_test.types import FinishReason, StepResult


class Applied(NamedTuple):
    """What a row's verified tokens came to: those kept, why the choice ends with them if it does, and up to where its slots
    are confirmed: all tokens but the last one."""

    kept: tuple[int, ...]
    reason: FinishReason | None
    end: int


def apply_drafts(flight: InFlight, result: StepResult) -> tuple[list[int], dict[int, Applied]]:
    """Applies the tokens of the rows with drafts; up to where every row of the plan is confirmed."""
    plan = flight.step.plan
    ends, applied = [], {}
    columns = zip(flight.seqs, plan.epochs, plan.starts, plan.num_tokens, plan.num_drafts, result.tokens, strict=True)
    for row, (seq, epoch, start, count, num_drafts, tokens) in enumerate(columns):
        end = start + count
        if num_drafts and seq.epoch == epoch:
            kept, reason = seq.append(tokens)
            end = len(seq.tokens) - 1
            applied[row] = Applied(kept, reason, end)
        ends.append(end)
    return ends, applied


def tell_of_prompts(flight: InFlight, result: StepResult) -> None:
    """What a result says of prompt tokens goes to the choices that are still under the plan's epoch."""
    plan = flight.step.plan
    columns = zip(flight.seqs, plan.epochs, plan.starts, result.prompt_logprobs, strict=True)
    for seq, epoch, start, told in columns:
        if told and seq.epoch == epoch:
            seq.tell_of_prompt(start, told)
