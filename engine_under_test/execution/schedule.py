"""When the operations of a simulated device run: by written delays, by chance, or by priorities that change.

Owns: the words of a schedule and the choice of what runs next. Never: what is on a stream or what an operation does.

Time is counted in turns: one passes each time the host calls the device or waits for it. A delay is a whole number of turns
and a place within the turn (`TURN` places), so that whatever one chooser did can be written down as delays and done again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Protocol

from engine_under_test.events import DeviceChoice
from engine_under_test.seams import Stream

TURN = 1024  # places in a turn
HOST = "host"


class Waiting(Protocol):
    """An operation that could run now: at the head of its stream, with everything that it waits for done."""

    @property
    def stream(self) -> Stream: ...

    @property
    def number(self) -> int: ...  # in the order of submission

    @property
    def due(self) -> int: ...  # in places


class Chooser(Protocol):
    """Chooses for one device. Told of each operation as it is submitted, then asked as often as something could run."""

    def choose(self, cause: str, stream: Stream, kth: int) -> tuple[int, int]:
        """(delay, late) of an operation that is being submitted."""

    def next(self, ready: Sequence[Waiting], end: int, host_waits: bool) -> Waiting | None:
        """Which of these runs next, before the place `end`; None: nothing does until the host has had its turn. A host that
        waits asks turn after turn, so `next` must not refuse for ever then."""


class Delays:
    """Whatever was written down; what was not runs as soon as it can."""

    def __init__(self, choices: Mapping[tuple[str, str, int], tuple[int, int]] | None = None) -> None:
        self._choices = dict(choices or {})

    def expect(self, cause: str, choices: Iterable[DeviceChoice]) -> None:
        """The choices for what `cause` is going to submit."""
        for choice in choices:
            self._choices[cause, choice.stream, choice.kth] = (choice.delay, choice.late)

    def choose(self, cause: str, stream: Stream, kth: int) -> tuple[int, int]:
        return self._choices.get((cause, stream, kth), (0, 0))

    def next(self, ready: Sequence[Waiting], end: int, host_waits: bool) -> Waiting | None:
        del host_waits
        first = min(ready, key=lambda each: (each.due, each.number))
        return first if first.due < end else None


class Chance(Delays):
    """Delays drawn for each operation from (seed, cause, stream, k-th) alone: leaving out one cause leaves the rest as it was.

    About `1 - prompt` of the operations are late, by up to `most` turns, each length of delay as likely as another.
    """

    def __init__(self, seed: int, most: int = 6, prompt: float = 0.5) -> None:
        super().__init__()
        self._seed, self._most, self._prompt = seed, most, prompt

    def choose(self, cause: str, stream: Stream, kth: int) -> tuple[int, int]:
        key = f"{self._seed}/{cause}/{stream}/{kth}".encode()
        chance = random.Random(blake2b(key, digest_size=8).digest())
        if chance.random() < self._prompt:
            return 0, 0
        delay = chance.randrange(1, self._most + 1) * TURN
        return delay, chance.choice((0, 0, 1, self._most))


class Priorities:
    """Probabilistic concurrency testing (Burckhardt, Kothari, Musuvathi, Nagarakatte: "A randomized scheduler with
    probabilistic guarantees of finding bugs", ASPLOS 2010).

    The threads are the streams and the host, in a random order of priority; whoever is first and can run, runs. At each of
    ``depth - 1`` random places among the first ``num_steps`` steps (operations, and turns of the host while something could
    run) the thread that is about to run becomes the last. A bug
    of that depth is met with a probability of at least ``bound`` in one run of at most ``num_steps`` operations.
    """

    def __init__(self, seed: int, num_steps: int, depth: int = 3) -> None:
        chance = random.Random(f"pct/{seed}")
        threads = [HOST, *Stream]
        chance.shuffle(threads)
        self._rank = {thread: depth + place for place, thread in enumerate(threads)}  # higher goes first
        self._changes = {chance.randrange(num_steps): rank for rank in range(1, depth)}
        self._num_steps, self._depth = num_steps, depth
        self._done = 0

    @property
    def bound(self) -> float:
        """1 / (n * k ** (d - 1)) for n threads, k steps and depth d."""
        return 1.0 / (len(self._rank) * float(self._num_steps) ** (self._depth - 1))

    def choose(self, cause: str, stream: Stream, kth: int) -> tuple[int, int]:
        del cause, stream, kth
        return 0, 0

    def next(self, ready: Sequence[Waiting], end: int, host_waits: bool) -> Waiting | None:
        del end
        while True:
            first = max(ready, key=lambda each: self._rank[each.stream])
            is_host = not host_waits and self._rank[HOST] > self._rank[first.stream]
            lowered = self._changes.pop(self._done, None)
            if lowered is None:
                self._done += 1
                return None if is_host else first
            self._rank[HOST if is_host else first.stream] = lowered
