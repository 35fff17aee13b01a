"""Time that passes only when somebody waits for it, and what happens in it.

Owns the order of what is due: by time, then by a given turn, then as it was put down. Never who waits, or for what.
"""

from __future__ import annotations

import heapq
import selectors
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count


class NeverOver(Exception):
    """More time has passed than anything needs. No `AssayError`, which a driver might outlive."""


@dataclass(slots=True, eq=False)
class _Due:
    at_s: float
    turn: int
    number: int
    action: Callable[[], None]

    def __lt__(self, other: _Due) -> bool:
        return (self.at_s, self.turn, self.number) < (other.at_s, other.turn, other.number)


class VirtualTime:
    """A `Clock`. ``most_s``: when it is taken for granted that nobody comes to an end any more."""

    def __init__(self, most_s: float) -> None:
        self._now = 0.0
        self._most_s = most_s
        self._due: list[_Due] = []
        self._numbers = count()
        self.attend: Callable[[], None] = lambda: None  # called before time passes: who was told something hears it

    def now(self) -> float:
        return self._now

    def later(self, delay_s: float, action: Callable[[], None], turn: int = -1) -> None:
        heapq.heappush(self._due, _Due(self._now + delay_s, turn, next(self._numbers), action))

    def next_until(self, until_s: float) -> bool:
        """Goes on to what is due next and does it; False if nothing is due until then, and it is then."""
        self.attend()
        is_due = bool(self._due) and self._due[0].at_s <= until_s
        self._now = self._due[0].at_s if is_due else until_s
        if self._now > self._most_s:
            raise NeverOver(f"not over after {self._most_s:g} virtual seconds")
        if is_due:
            heapq.heappop(self._due).action()
        return is_due

    def go_on(self, seconds: float) -> None:
        """Time passes, and all that is due in it happens."""
        until_s = self._now + seconds
        while self.next_until(until_s):
            pass

    def stand_still(self, seconds: float) -> None:
        """The clock goes on and nobody does anything meanwhile: the whole machine was suspended."""
        self.attend()
        for each in self._due:  # all alike, so they stay in order
            each.at_s += seconds
        self._now += seconds


class VirtualSelector(selectors.PollSelector):
    """Waits in virtual time until one of the registered can be read; those that can at that instant are told in the order in
    which ``last_said`` says that they spoke."""

    def __init__(self, time: VirtualTime, last_said: Callable[[selectors.SelectorKey], int]) -> None:
        super().__init__()
        self._time = time
        self._last_said = last_said

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector`."""
        until_s = self._time.now() + (timeout or 0.0)
        while not super().select(0) and self._time.next_until(until_s):
            pass
        self._time.go_on(0.0)
        return sorted(super().select(0), key=lambda ready: self._last_said(ready[0]))
