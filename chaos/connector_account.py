"""What happened to the connections of a storm, sight by sight: the account of a run that can not be repeated bit for bit.

Owns the words of a sight and the window between a strike and its heal, from which is read what a fault really did. Never what a
fault is, nor what must hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from engine_under_test.seams import Clock


class Sight(StrEnum):
    """What can be seen from outside, at the ends of the connections and of the processes."""

    STRUCK = "struck"
    HEALED = "healed"
    CONNECTED = "connected"
    REFUSED = "connection refused"
    ENDED = "connection ended"  # by the other end; amount: questions that were never answered on it
    RESET = "connection reset"  # the same, with a reset
    HUNG_UP = "connection closed here"
    WELCOMED = "welcomed by a store that is new"
    ANSWERED = "answered"  # amount: seconds since the question
    SENT = "bytes went up"  # of one transfer, all acknowledged; amount: bytes per second
    CAME = "bytes came down"  # the same, of a load
    IN_PIECES = "half a frame at the end of a poll"
    KILLED = "store killed"
    STARTED = "store started"
    STOPPED = "store frozen"
    CONTINUED = "store continued"
    GIVEN_UP = "the store gave up a transfer"
    LINGERS = "connection outlives its other end"  # at the store; amount: seconds so far
    ACTED = "client"  # an operation of the workload
    TOLD = "request ended"


class Seen(NamedTuple):
    """``at_s``: on the monotonic clock. ``who``: an engine, the store, or the fault."""

    at_s: float
    who: str
    what: Sight
    amount: float = 0.0
    words: str = ""


class Account:
    """All sights of a run, in order."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.began_s = clock.now()
        self.seen: list[Seen] = []
        self.broke_at: int | None = None  # how much had been seen when something did not hold

    def note(self, who: str, what: Sight, amount: float = 0.0, words: str = "") -> None:
        self.seen.append(Seen(self.clock.now(), who, what, amount, words))

    def facts(self, most: int = 30) -> tuple[str, ...]:
        """The last sights before something broke, or at all, but those that come by the hundred, as lines."""
        often = (Sight.ANSWERED, Sight.SENT, Sight.CAME, Sight.IN_PIECES, Sight.TOLD)
        told = [each for each in self.seen[: self.broke_at] if each.what not in often]
        return tuple(
            f"{each.at_s - self.began_s:8.3f} s  {each.who}: {each.what}{f' ({each.words})' if each.words else ''}"
            for each in told[-most:]
        )

    def lines(self, **about: object) -> Iterator[str]:
        """As JSON lines; ``about`` first."""
        yield json.dumps({"is_repeatable": False, **about})
        for each in self.seen:
            line = {"at_s": round(each.at_s - self.began_s, 4), "who": each.who, "what": each.what.value}
            line |= {"amount": round(each.amount, 4)} if each.amount else {}
            line |= {"words": each.words} if each.words else {}
            yield json.dumps(line)


@dataclass(frozen=True, slots=True)
class Window:
    """From a strike to now. ``waiting_s``: for each question that was asked behind the strike and has no answer, since when.
    ``block_bytes``: of a block, by which the attributes of toxics go."""

    struck_s: float
    now_s: float
    seen: tuple[Seen, ...]
    block_bytes: int
    waiting_s: tuple[float, ...] = ()

    def of(self, *what: Sight) -> list[Seen]:
        return [each for each in self.seen if each.what in what]

    def late_answers(self, least_s: float) -> int:
        """To questions that were asked behind the strike, as late as that."""
        return sum(each.amount >= least_s and each.at_s - each.amount >= self.struck_s for each in self.of(Sight.ANSWERED))

    def slowed(self, what: Sight, most_bytes_per_s: float) -> int:
        """Transfers that moved no faster than that."""
        return sum(each.amount <= most_bytes_per_s for each in self.of(what))
