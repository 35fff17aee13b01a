"""A run that is ended from outside: Ctrl-C on a terminal, SIGTERM from a server that cancels.

Owns the words for it and the reaction to SIGTERM. Never decides what is kept of the run.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM came: whatever answers a Ctrl-C answers it too, and can name it."""


def raise_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, _raise)


def ignore_further_signals() -> None:
    """A second Ctrl-C must not cut off the report of what was learned."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)


def in_words(end: BaseException | None) -> str:
    return "terminated by SIGTERM" if isinstance(end, Terminated) else "interrupted by Ctrl-C"


def _raise(_number: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated
