"""A sum, to be mutated."""

from __future__ import annotations

from collections.abc import Sequence


def total(numbers: Sequence[int]) -> int:
    """The sum of the numbers."""
    found = 0
    for number in numbers:
        found += number
    return found
