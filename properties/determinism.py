"""Compares two runs of one seed: the same operations, events, outputs and findings, or the first difference.

Owns the comparison only. Who runs the second one, in a fresh process with another hash seed, is the gate's business.
"""

from __future__ import annotations

from itertools import zip_longest

from properties.history import History, Record, to_json
from properties.verdict import Violation


def first_difference(one: History, other: History) -> Violation | None:
    """Where two histories of the same seed part, with both sides and the record before it; None if they never do."""
    previous: Record | None = None
    for index, (left, right) in enumerate(zip_longest(one.records, other.records)):
        if left is not None and right is not None and (left == right or _shown(left) == _shown(right)):  # NaN is not itself
            previous = left
            continue
        return Violation(
            "DET",
            "determinism",
            f"record {index} of {len(one)} and {len(other)}",
            f"{_shown(right)} in the second run",
            f"{_shown(left)}, as in the first run",
            () if previous is None else (f"the record before it, in both: {_shown(previous)}",),
        )
    return None


def _shown(record: Record | None) -> str:
    return "the end of the history" if record is None else str(to_json(record))
