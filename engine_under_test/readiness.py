"""Waits for descriptors, whatever their numbers: `select` takes none from 1,024 on, which a server of many connections has.

Owns the one place where that is said. Linux and macOS.
"""

from __future__ import annotations

import math
import select
from typing import Protocol


class HasDescriptor(Protocol):
    """A socket, a file or a pipe."""

    def fileno(self) -> int: ...


def is_ready(
    to_read: HasDescriptor | int | None = None, to_write: HasDescriptor | int | None = None, timeout_s: float | None = None
) -> bool:
    """Whether something can be read, or written, within that time (None: for ever), an end or an error included."""
    waiting, wanted = select.poll(), dict[int, int]()
    for each, mask in ((to_read, select.POLLIN), (to_write, select.POLLOUT)):
        if each is not None:
            descriptor = each if isinstance(each, int) else each.fileno()
            wanted[descriptor] = wanted.get(descriptor, 0) | mask
    for descriptor, mask in wanted.items():
        waiting.register(descriptor, mask)
    return bool(waiting.poll(None if timeout_s is None else math.ceil(max(timeout_s, 0.0) * 1000)))
