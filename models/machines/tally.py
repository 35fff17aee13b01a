"""What a machine's examples added up to, and the counterexample if there is one.

Owns the sums and the last failing world and operations: Hypothesis runs its shrunk example last, so that the last failure
seen is the shortest. Knows nothing of rules or settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from models.machines.driving import Driver
from properties.op import Op
from properties.sums import Sums
from properties.verdict import Violation


class InvariantBroken(Exception):
    """Ends an example: the World found a violation."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(f"{violation.invariant} {violation.name}: {violation.sentence}")
        self.violation = violation


class Tally(Sums):
    """The sums over examples. ``failure`` is (world, operations, violation) of the last failing one."""

    def __init__(self, on_example: Callable[[int], None] = lambda _done: None) -> None:
        super().__init__()
        self.failure: tuple[dict[str, Any], tuple[Op, ...], Violation] | None = None
        self.longest = 0  # operations of the first failure found, before shrinking
        self._on_example = on_example

    def add(self, driver: Driver) -> None:
        """Adds a world at its end."""
        if driver.violation is not None:
            self.failure = (driver.spec, tuple(driver.ops), driver.violation)
            self.longest = self.longest or len(driver.ops)
            return
        world = driver.world
        self.examples += 1
        self.ops += world.ops
        self.noops += world.noops
        self.evaluations.update(world.evaluations)
        self.evaluations.update(driver.evidence)
        reached, differences = driver.reached()
        self.reached.update(reached)
        self.missed += (*differences, *driver.crashed_checkers)
        self._on_example(self.examples)
