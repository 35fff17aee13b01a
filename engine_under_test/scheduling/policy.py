"""Orders waiting and running sequences. Never decides whether one may enter."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Items

from engine_under_test.config import Order
from engine_under_test.sequence import Sequence

Key = tuple[int, int, int, int]

_FIRST_COME = Order.FIRST_COME


def first_come(seq: Sequence) -> Key:
    """By acceptance; a preempted sequence keeps its place."""
    return (0, 0, seq.ordinal, seq.choice)


def by_priority(seq: Sequence) -> Key:
    """Aged ones by acceptance, then by priority and acceptance."""
    if seq.is_aged:
        return (0, 0, seq.ordinal, seq.choice)
    return (1, seq.request.priority, seq.ordinal, seq.choice)


def key_for(order: Order) -> Callable[[Sequence], Key]:
    """Smaller goes first. The key of a sequence changes only when it ages."""
    return first_come if order is Order.FIRST_COME else by_priority


def next_waiting(order: Order, waiting: Items[Sequence], admitted: Items[Sequence], max_overtakes: int) -> Sequence | None:
    """Who is next, given that `admitted` (the first ones of this plan) are no longer waiting.

    In first-come order the cost does not depend on the queue. In priority order one that would have been overtaken
    `max_overtakes` times, those of this very plan counted, goes before everybody else (SC-8).
    """
    if order is _FIRST_COME:
        return waiting[len(admitted)] if len(admitted) < len(waiting) else None
    left = [seq for seq in waiting if seq not in admitted]
    due = [
        seq
        for seq in left
        if seq.is_aged or seq.overtaken + sum(each.ordinal > seq.ordinal for each in admitted) >= max_overtakes
    ]
    if due:
        return min(due, key=first_come)
    return left[0] if left else None
