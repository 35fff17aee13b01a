"""What a trace run did to the target, read from the moments of its World, and the check against the infinite cache.

Owns the counts of one run; knows no target but by plans and snapshots. It is handed to a World as one more predicate, so
that a hit above the bound stops the run like any other violation.
"""

from __future__ import annotations

from collections.abc import Mapping

from engine_under_test.types import PlannedStep
from models.trace.infinite_cache import count
from models.trace.requests import TraceRequest
from properties.invariants.predicate import Predicate
from properties.moment import Happening, Moment
from properties.verdict import Violation

IDENTIFIER = "TR-1"
NAME = "bounded by an infinite cache"
STATEMENT = "a request, when it is first admitted, finds at most what a cache without end would have kept of earlier prompts"


class Tally:
    """Counts of one run. ``found``: for each request, the tokens it found in the prefix cache when it was first planned."""

    def __init__(self, bounds: Mapping[str, int]) -> None:
        self.bounds = bounds
        self.found: dict[str, int] = {}
        self.num_steps = 0
        self.num_preempted = 0
        self.num_evicted = 0
        self.num_computed = 0
        self.max_running = 0
        self.max_waiting = 0

    def predicate(self) -> Predicate:
        return Predicate(
            IDENTIFIER, NAME, STATEMENT, "models/trace/infinite_cache.py", self.see, happenings=frozenset({Happening.PLANNED})
        )

    def see(self, moment: Moment) -> Violation | None:
        """Counts the moment's plan; a violation if one of its rows found more than an infinite cache holds."""
        self.max_running = max(self.max_running, len(moment.after.running))
        self.max_waiting = max(self.max_waiting, len(moment.after.waiting))
        step = moment.planned
        if step is None:
            return None
        self.num_steps += 1
        self.num_preempted += len(step.preempted)
        self.num_evicted += len(moment.before.cached.keys() - moment.after.cached.keys())
        self.num_computed += sum(step.plan.num_tokens)
        return self._judge(step)

    def _judge(self, step: PlannedStep) -> Violation | None:
        for request, start in zip(step.plan.requests, step.plan.starts, strict=True):
            if request.request_id in self.found:
                continue
            self.found[request.request_id] = start
            bound = self.bounds.get(request.request_id, 0)
            if start > bound:
                found, expected = f"{start} tokens found in the prefix cache", f"at most {bound} (derived from the trace)"
                return Violation(IDENTIFIER, NAME, f"request {request.request_id}", found, expected)
        return None


def bounds_of(trace: tuple[TraceRequest, ...], block_size: int, page_size: int) -> dict[str, int]:
    """The infinite cache's count in scaled tokens, by the names that `Scale.requests` gives.

    A target whose pages are smaller than the trace's blocks may also find a part of the block at which the count ends.
    """
    part = 0 if page_size == block_size else block_size - 1
    return {f"t{number}": blocks * block_size + part for number, blocks in enumerate(count(trace).hit_blocks)}
