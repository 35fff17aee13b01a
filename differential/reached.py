"""What plans and events say that a run reached, under the names by which floors ask for it. Never: how often is enough."""

from __future__ import annotations

from collections import Counter

from engine_under_test.events import Event, EventKind
from engine_under_test.types import Plan


def count_plan(reached: Counter[str], plan: Plan) -> None:
    """Of a plan that is launched."""
    reached["chunks"] += len(plan.samples) - sum(plan.samples)
    reached["rows beside others"] += plan.num_rows if plan.num_rows > 1 else 0
    reached["tokens in flight"] += sum(plan.num_pending)


def count_event(reached: Counter[str], event: Event) -> None:
    """Most events are of none of these kinds."""
    if event.kind is EventKind.PREEMPTED:
        reached["preempted"] += 1
    elif event.kind is EventKind.HIT:
        reached["tokens from the cache"] += event.tokens
    elif event.kind is EventKind.FORKED:
        reached["forked"] += 1
