"""The memory of one step: the one place through which a runner asks for it.

Owns: the default of the `Memory` seam, and the words of a refusal. Never: an allocation itself, or the store of keys and
values, which is taken once when a runner is built.
"""

from __future__ import annotations

from engine_under_test.errors import RunnerError
from engine_under_test.seams import Memory, Space


class AmpleMemory:
    """The default of the `Memory` seam: there is always enough, until the device itself says no."""

    __slots__ = ()

    def admit(self, num_bytes: int, space: Space = Space.DEVICE) -> bool:
        """See `seams.Memory`."""
        del num_bytes, space
        return True


class StepMemory:
    """Asks the seam before each allocation of a step."""

    __slots__ = ("_memory",)

    def __init__(self, memory: Memory | None) -> None:
        self._memory: Memory = AmpleMemory() if memory is None else memory

    def take(self, what: str, num_bytes: int, space: Space = Space.DEVICE) -> None:
        """Raises RunnerError if these bytes are refused."""
        if not self._memory.admit(num_bytes, space):
            raise RunnerError(f"out of {space} memory: {num_bytes} bytes for {what} were refused; run fewer rows at once")
