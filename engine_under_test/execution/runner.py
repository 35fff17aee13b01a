"""What executes a step: the protocols between the engine and whatever computes tokens.

Owns: the words `Runner`, `Launch` and `Mover`. Never: how a step is computed, or what happens to a plan that failed.
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


class Move(Protocol):
    """One block on its way between the store and the host."""

    @property
    def fence(self) -> Fence:
        """Passes once nothing of this move touches the store any more."""

    def data(self) -> bytes | None:
        """Of a read whose fence has passed: the block's content. None: the device lost it, or it holds what is no number."""


class Mover(Protocol):
    """A runner whose blocks can be read and written from outside, for transfers. Either may raise OutOfMemory, and then nothing
    of the move was put on the device."""

    @property
    def block_bytes(self) -> int:
        """Bytes of every block."""

    def read_block(self, block: int) -> Move:
        """The content of a committed block that is held until the fence has passed."""

    def write_block(self, block: int, data: bytes) -> Move:
        """Fills a block that nobody can see, behind everything that was launched before; held until the fence has passed."""
