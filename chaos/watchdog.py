"""An end for what may hang: real processes, real sockets, and a driver that waits for either.

Owns the interruption, again and again until whoever hangs has let go. Never says what a hang breaks.
"""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_AGAIN_S = 1.0  # cleaning up behind an interruption may hang as well


class Hang(BaseException):
    """Not over in time. ``where``: the line that was reached then. No `Exception`, which somebody might take for a fault of the
    other side."""

    def __init__(self, seconds: float, where: str) -> None:
        super().__init__(f"not over after {seconds:g} s of waiting, at {where}")
        self.where = where


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Interrupts the block with `Hang`. Signals reach the main thread only: in any other nothing is watched."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    first = ""

    def ring(_number: int, frame: FrameType | None) -> None:
        nonlocal first
        here = traceback.extract_stack(frame)[-1]
        first = first or f"{here.name} ({here.filename.rpartition('/')[2]}:{here.lineno})"
        raise Hang(seconds, first)  # where it hung, and not where its cleaning up does

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGALRM) is ring:  # else somebody who ends the process has set an alarm of his own
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
