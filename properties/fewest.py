"""The fewest of some things with which something still fails: delta debugging by leaving out (Zeller, Hildebrandt: Simplifying
and Isolating Failure-Inducing Input, TSE 2002).

Owns the order in which runs of things are left out. Never what the things are, and never what it is to fail: that is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TypeVar

T = TypeVar("T")


def fewest(
    items: Sequence[T], fails: Callable[[tuple[T, ...]], bool], may_try: Callable[[], bool] = lambda: True
) -> tuple[T, ...]:
    """Those that are left: runs go, from halves down to single ones and from the end to the beginning, as long as the rest
    fails, until no single one can go. ``may_try`` is asked before each try; with its first no it is over."""
    kept = tuple(items)
    size = max(1, len(kept) // 2)
    while size:
        end, has_changed = len(kept), False
        while end > 0:
            if not may_try():
                return kept
            start = max(0, end - size)
            rest = kept[:start] + kept[end:]
            if fails(rest):
                kept, has_changed = rest, True
            end = start
        size = 1 if has_changed and size == 1 else size // 2
    return kept


def at_most(tries: int) -> Callable[[], bool]:
    """A ``may_try`` that says yes so often."""
    so_far = count()
    return lambda: next(so_far) < tries
