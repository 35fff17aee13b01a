"""What a language model's runner keeps of its rows beside what plans and results say of them, after each launch (SC-13).

Owns what of a row's output is due: what the host knew when it planned, and what the runner itself has said since. The sentence
stands in `properties.kept_rows`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

from differential.setting import Setting
from engine_under_test.errors import RunnerError
from engine_under_test.execution.rows import KeptRows
from engine_under_test.types import Plan, Reservation, RowId, StepResult
from properties.invariants.predicate import violation
from properties.kept_rows import due_fields, rows_are_what_the_plan_says
from properties.verdict import Violation


@runtime_checkable
class HasRows(Protocol):
    """A runner that keeps its rows from step to step, and has run whatever it was handed."""

    rows: KeptRows


class RowsWatch:
    """``num_compared``: rows so far. ``violation``: the first."""

    def __init__(self, runner: HasRows, block_size: int, setting: Setting) -> None:
        self._runner = runner
        self._may_fail = setting.has_faults
        self._block_size = block_size
        self._said: dict[tuple[RowId, int], int] = {}
        self.num_compared = 0
        self.violation: Violation | None = None

    def after(self, plan: Plan, reservation: Reservation, result: StepResult) -> None:
        """The launch has ended well."""
        if self.violation is not None:
            return
        due = []
        for row, (row_id, tokens) in enumerate(zip(plan.row_ids(), result.tokens, strict=True)):
            num_drafts = plan.num_drafts[row] if plan.num_drafts else 0
            first = plan.starts[row] + plan.num_tokens[row] - num_drafts
            self._said.update({(row_id, first + place): token for place, token in enumerate(tokens)})
            output = self._output(plan, row, row_id, first, tokens)
            num_gone = num_drafts - len(tokens) + 1 if num_drafts else 0
            due.append(due_fields(plan, reservation, row, self._block_size, output, num_gone))
        rows = self._runner.rows
        found = [rows.fields(row) for row in range(len(rows))]
        self.num_compared += len(due)
        differing = rows_are_what_the_plan_says(found, due)
        if differing is not None:
            self.violation = replace(differing, facts=(f"{'after':<13} plan {plan.plan_id}",))

    def failed(self, plan: Plan, error: RunnerError) -> None:
        """The launch has ended badly, and no row of it is to blame."""
        if self.violation is None and not self._may_fail:
            found = f"a failure: {error}"
            self.violation = violation("SC-13", f"plan {plan.plan_id}", found, "rows that a runner can execute")

    def _output(self, plan: Plan, row: int, row_id: RowId, first: int, tokens: tuple[int, ...]) -> tuple[int, ...] | None:
        if not plan.requests[row].sampling.needs_history:
            return None
        known = (plan.outputs[row] if plan.outputs else None) or ()
        begin = len(plan.requests[row].prompt) + len(known)
        return (*known, *(self._said[row_id, position] for position in range(begin, first)), *tokens)
