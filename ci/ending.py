"""A run that is ended from outside: Ctrl-C on a terminal, SIGTERM from a server that cancels, a reader that has left.

Owns the words for it and the reaction to SIGTERM and to a pipe without a reader. Never decides what is kept of the run.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TextIO

READER_LEFT = 128 + signal.SIGPIPE
INTERRUPTED = 130  # the exit code behind Ctrl-C and SIGTERM


class ReaderLeft(BaseException):
    """Nobody reads what is written any more, as behind `| head`: nothing is left to say or to do. It is no error of a run, and
    passes whoever answers for those."""


class Terminated(KeyboardInterrupt):
    """SIGTERM came: whatever answers a Ctrl-C answers it too, and can name it."""


_IMPORTS = "<frozen importlib._bootstrap>"
_RETRY_S = 0.005  # shorter than what stands between two imports of a command
_heard: list[KeyboardInterrupt] = []  # signals are the process's own, and so is what was heard of them
_waiting: list[KeyboardInterrupt] = []  # came during an import, to be raised behind it


def interrupts_wait_for_imports() -> None:
    """A Ctrl-C while a module is being loaded is raised when that is done: an exception in the midst of it can end the whole
    process in libraries that are written in C++."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody ignores it on purpose
        signal.signal(signal.SIGINT, _raise)


def raise_on_sigterm() -> None:
    signal.signal(signal.SIGTERM, _raise)


def heard() -> KeyboardInterrupt | None:
    """The Ctrl-C or SIGTERM that was raised, or is about to be, and that nobody has answered yet. Libraries in C make another
    error of one that is raised in a call of theirs, or throw it away: what goes wrong behind it is no fault of a file or of a
    flag."""
    return next(iter((*_heard, *_waiting)), None)


def heed() -> None:
    """Raises it again, if a library has thrown it away."""
    if _heard:
        raise _heard[0]


def forget() -> None:
    """Nothing was heard so far, or it has been answered. What waits for the end of an import is still to come."""
    _heard.clear()


@contextmanager
def interrupts_heeded() -> Iterator[None]:
    """Whatever a Ctrl-C or SIGTERM has become in here, it leaves as itself."""
    try:
        yield
    except Exception:
        heed()
        raise
    heed()


@contextmanager
def readers_may_leave() -> Iterator[None]:
    """A pipe that breaks in here means `ReaderLeft`, if it is the one behind the output; else it is an error like others."""
    try:
        yield
    except BrokenPipeError as error:
        if any(map(_has_no_reader, (sys.stdout, sys.stderr))):
            raise ReaderLeft from error
        raise RuntimeError(f"a pipe broke that is not the output: {error}") from error  # click would end with 1 again


def leave_readers() -> None:
    """What is still buffered would break the pipe again at the exit."""
    for stream in (sys.stdout, sys.stderr):
        if _has_no_reader(stream):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _has_no_reader(stream: TextIO) -> bool:
    try:
        number = stream.fileno()
    except (OSError, ValueError):  # not a file: somebody reads it in this process
        return False
    waiting = select.poll()
    waiting.register(number, 0)  # POLLERR is always told
    return any(events & select.POLLERR for _number, events in waiting.poll(0))


def ignore_further_signals() -> None:
    """A second Ctrl-C must not cut off the report of what was learned."""
    for sign in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sign, signal.SIG_IGN)
    forget()
    _waiting.clear()


def in_words(end: BaseException | None) -> str:
    return "terminated by SIGTERM" if isinstance(end, Terminated) else "interrupted by Ctrl-C"


def _raise(number: int, frame: FrameType | None) -> None:
    interrupt = KeyboardInterrupt() if number == signal.SIGINT else Terminated()
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTS:
            signal.signal(signal.SIGALRM, lambda _again, at: _raise(number, at))
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
            _waiting[:] = [interrupt]
            return
        frame = frame.f_back
    _waiting.clear()
    _heard.append(interrupt)
    raise interrupt
