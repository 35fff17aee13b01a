"""What executes a step: the two protocols between the engine and whatever computes tokens.

Owns: the words `Runner` and `Launch`. Never: how a step is computed, or what happens to a plan that failed.
"""

from __future__ import annotations

from typing import Protocol

from engine_under_test.seams import Fence
from engine_under_test.types import Plan, Reservation, StepResult


class Launch(Protocol):
    """One plan that was handed to the device. It may have run already, or run when `result` asks for it."""

    @property
    def plan_id(self) -> int: ...

    @property
    def fence(self) -> Fence:
        """Passes once nothing of this launch touches the store any more, whether or not it succeeded."""

    def result(self) -> StepResult:
        """Waits for the step and returns its tokens, each time the same. Raises RunnerError if the step failed."""


class Runner(Protocol):
    """Whatever computes tokens for plans: fingerprints, a transformer, a set of ranks."""

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """Puts fills, copies and rows on the device, in this order. Raises RunnerError if plan and reservation do not fit,
        or if the device takes no work; then its rows were not executed and never will be."""
