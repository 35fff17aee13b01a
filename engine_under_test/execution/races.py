"""Data races between streams and the host, found by vector clocks over what operations declare.

Owns: who is ordered after whom, the last accesses of each page, and the races seen. Never: when an operation runs; a race is
one even if the values came out right this time. The method is that of FastTrack (Flanagan and Freund, PLDI 2009): one epoch
for the last write of a page, and one for the last read by each thread since.

Threads are the host and the streams. What orders: being on one stream, a wait for a fence, submission (after everything that
the host knew), and the host having *seen* a fence pass. That something had in fact ended when another began orders nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from engine_under_test.events import Race, RaceKind
from engine_under_test.seams import DeviceOp, Page, Stream

HOST = "host"
_THREADS: tuple[str, ...] = (HOST, *Stream)
_NUMBER = {thread: number for number, thread in enumerate(_THREADS)}
_HOST = _NUMBER[HOST]

Clock = list[int]  # of each thread, how much of it is known to lie before


@dataclass(slots=True)
class _Access:
    """The `count`-th piece of work of a thread touched a page."""

    thread: int
    count: int
    name: str
    cause: str


class _Touched:
    """The last accesses of one page."""

    __slots__ = ("reads", "write")

    def __init__(self) -> None:
        self.write: _Access | None = None
        self.reads: dict[int, _Access] = {}  # by thread, since the write


class RaceDetector:
    """Told of every submission, every host access and every fence that the host saw pass, in the order of the host's calls.

    ``races``: each one found since somebody took them. ``num_accesses``: pages looked at so far. ``cause``: what the host is
    about, for whoever reads of a race.
    """

    def __init__(self) -> None:
        self._clocks: list[Clock] = [[0] * len(_THREADS) for _ in _THREADS]
        self._pages: defaultdict[Page, _Touched] = defaultdict(_Touched)
        self._races: list[Race] = []
        self.num_accesses = 0
        self.cause = ""

    def submitted(self, stream: Stream, op: DeviceOp, after: Iterable[Clock]) -> Clock:
        """An operation joins a stream, behind what the `after` clocks stand for. The clock of whoever waits for it."""
        thread = _NUMBER[stream]
        clock = self._clocks[thread]
        known = [clock, self._clocks[_HOST], *after]
        clock = self._clocks[thread] = list(map(max, *known))
        clock[thread] += 1
        self._touch(thread, clock, op.title, op.reads, op.writes)
        return clock

    def host_touched(self, reads: Iterable[Page], writes: Iterable[Page], name: str = "host") -> None:
        """The host reads and writes pages itself, now."""
        clock = self._clocks[_HOST]
        clock[_HOST] += 1
        self._touch(_HOST, clock, name, reads, writes)

    def host_saw(self, clock: Clock) -> None:
        """The host has seen the end of what this clock stands for."""
        self._clocks[_HOST] = list(map(max, self._clocks[_HOST], clock))

    def everything(self) -> Clock:
        """The clock of whoever waits for all that was submitted so far."""
        return join(self._clocks[1:])

    def take_races(self) -> tuple[Race, ...]:
        """Those found since the last call."""
        found = tuple(self._races)
        self._races.clear()
        return found

    def _touch(self, thread: int, clock: Clock, name: str, reads: Iterable[Page], writes: Iterable[Page]) -> None:
        pages = self._pages
        now = _Access(thread, clock[thread], name, self.cause)
        for page in reads:
            self.num_accesses += 1
            touched = pages[page]
            write = touched.write
            if write is not None and clock[write.thread] < write.count:
                self._found(RaceKind.READ_AFTER_WRITE, page, write, now)
            touched.reads[thread] = now
        for page in writes:
            self.num_accesses += 1
            touched = pages[page]
            write = touched.write
            if write is not None and clock[write.thread] < write.count:
                self._found(RaceKind.WRITE_AFTER_WRITE, page, write, now)
            touched.write = now
            if touched.reads:
                for read in touched.reads.values():  # one of its own, of a page that it also reads, is no later than it
                    if clock[read.thread] < read.count:
                        self._found(RaceKind.WRITE_AFTER_READ, page, read, now)
                touched.reads = {}

    def _found(self, kind: RaceKind, page: Page, first: _Access, second: _Access) -> None:
        one, other = _THREADS[first.thread], _THREADS[second.thread]
        self._races.append(Race(kind, page.buffer, page.unit, first.name, one, second.name, other, first.cause, second.cause))


def join(clocks: Sequence[Clock]) -> Clock:
    """The clock that is behind each of these."""
    return list(map(max, *clocks)) if len(clocks) > 1 else list(clocks[0])
