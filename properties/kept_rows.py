"""What a worker keeps of the rows of its batch, beside what the plan says of them (SC-13).

Owns the sentence, field by field. Never how rows are kept, or who asks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from engine_under_test.execution.rows import RowFields
from engine_under_test.types import Plan, Reservation, SamplingParams
from properties.invariants.predicate import row_named, violation
from properties.verdict import Violation

Output = tuple[int, ...] | None


def due_fields(plan: Plan, reservation: Reservation, row: int, block_size: int, output: Output, num_gone: int = 0) -> RowFields:
    """What must be kept of a row. ``num_gone``: positions that the plan computed and that do not stand."""
    request = plan.requests[row]
    length = plan.starts[row] + plan.num_tokens[row] - num_gone
    return RowFields(
        plan.row_id(row),
        length,
        reservation.tables[row][: -(-length // block_size)],
        plan.choices[row],
        request.prompt,
        request.sampling,
        request.adapter,
        request.media,
        output,
    )


def rows_are_what_the_plan_says(found: Sequence[RowFields], due: Sequence[RowFields]) -> Violation | None:
    """SC-13: every field of every row, in the plan's order.

    Source: vllm pull 3009 (an index behind a finished row), sglang #1290 (penalties of a batch that was merged).
    """
    if len(found) != len(due):
        return violation("SC-13", "the batch", f"{len(found)} rows", f"{len(due)}, as the plan has")
    for place, (row, told) in enumerate(zip(found, due, strict=True)):
        if row == told:
            continue
        subject = f"{row_named(told.row_id)} at place {place}"
        for name in RowFields._fields:
            is_value, due_value = getattr(row, name), getattr(told, name)
            if is_value == due_value:
                continue
            what, is_value, due_value = _part(is_value, due_value) if name == "sampling" else (name, is_value, due_value)
            return violation("SC-13", subject, f"{what} {is_value}", f"{due_value}, as the plan says")
    return None


def _part(found: SamplingParams, due: SamplingParams) -> tuple[str, object, object]:
    names = [each.name for each in fields(SamplingParams) if getattr(found, each.name) != getattr(due, each.name)]
    return names[0], getattr(found, names[0]), getattr(due, names[0])
