"""The harness's fingerprint runner whose rows are kept from step to step, and what must be kept of them (SC-13).

Owns what of a row's output is due, by the law's account of the choice, and that each step is looked at as it ran: a device with
streams may be ahead of what is judged. The sentence stands in `properties.kept_rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine_under_test.execution.fingerprint import Rows
from engine_under_test.execution.landing import Outcome
from engine_under_test.execution.rows import RowFields
from engine_under_test.types import Plan, PlannedStep, Reservation, StepResult
from models.kept_fingerprints import KeptFingerprints
from models.law import Track
from properties.kept_rows import due_fields, rows_are_what_the_plan_says
from properties.verdict import Violation


class WatchedRows(KeptFingerprints):
    """Remembers how the rows of each plan stood when it had run, until that is judged."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int, **more: Any) -> None:
        super().__init__(num_blocks, block_size, vocab_size, **more)
        self._kept: dict[int, list[RowFields]] = {}  # by plan, as they stood when it had run

    def _run(self, inputs: tuple[Plan, Reservation, Rows]) -> Outcome:
        outcome = super()._run(inputs)
        if outcome.tokens is not None:
            self._kept[inputs[0].plan_id] = [self.rows.fields(row) for row in range(len(self.rows))]
        return outcome

    def judge(self, step: PlannedStep, result: StepResult, tracks: Sequence[Track]) -> Violation | None:
        """What is kept of the rows of a plan that is wrong, if anything is. ``tracks``: of its rows, with its tokens."""
        found = self._kept.pop(step.plan.plan_id)
        size = self._block_size
        due = [
            due_fields(step.plan, step.reservation, row, size, *_due(step.plan, row, track, result))
            for row, track in enumerate(tracks)
        ]
        return rows_are_what_the_plan_says(found, due)


def _due(plan: Plan, row: int, track: Track, result: StepResult) -> tuple[tuple[int, ...] | None, int]:
    """The output of a row, if it is kept, and how many positions of it do not stand."""
    tokens = result.tokens[row]
    num_drafts = plan.num_drafts[row] if plan.num_drafts else 0
    num_gone = num_drafts - len(tokens) + 1 if num_drafts and plan.samples[row] else 0
    if not plan.requests[row].sampling.needs_history:
        return None, num_gone
    known = (plan.outputs[row] if plan.outputs else None) or ()
    first = plan.starts[row] + plan.num_tokens[row] - num_drafts
    begin = len(plan.requests[row].prompt) + len(known)
    return (*known, *track.tokens[begin:first], *tokens), num_gone
