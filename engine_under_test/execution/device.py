"""A device without delay: every operation runs while it is submitted.

Owns: the default of the `Device` seam. Never: streams, or an order other than that of submission.
"""

from __future__ import annotations

from engine_under_test.seams import DeviceOp, Fence


class PassedFence:
    """A fence behind work that had ended when the fence was made."""

    __slots__ = ()

    def has_passed(self) -> bool:
        return True


_PASSED = PassedFence()


class ImmediateDevice:
    """Runs each operation at once, so that every fence has passed and there is never anything to wait for."""

    __slots__ = ()

    def submit(self, op: DeviceOp) -> None:
        op.run()

    def fence(self) -> Fence:
        return _PASSED

    def synchronize(self) -> None:
        """Returns at once: an error of an operation was raised by `submit`."""
