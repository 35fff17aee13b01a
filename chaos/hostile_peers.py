"""Thousands of peers of a KV store that mean no good, kind by kind (`hostile_kinds.py`), against a store that goes on serving.

    python -m chaos.hostile_peers --connections 100000        # of each kind, against an `assay kv-store` started for it

Owns the attacks and the count of how they ended. While they go on, an engine of good will stores and loads through the same
store, and every byte that it loads is compared. Judged from outside: connections, content, and of the store's process its
memory, which must not grow with their number, and its descriptors, of which none may be left.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.good_engine import TOKEN, GoodEngine, Serving
from chaos.hostile_kinds import HELD_STRANGERS, KINDS, PATIENCE_S, Kind, Peer, drip

_DRIPS: Final = 6  # bytes of slow peers for each new one, so that most get theirs while they are held
_MOST_GROWTH_MIB: Final = 16.0  # in the second half of the connections: less than 350 bytes for each of 50,000


@dataclass(slots=True)
class Outcome:
    """``not_ended``: connections that the store should have ended and did not. ``errors``: of peers to whom it was faster."""

    kind: str
    connections: int = 0
    not_ended: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def attack(
    address: tuple[str, int], kind: Kind, count: int, seed: int, each: Callable[[int], None] = lambda _number: None
) -> Outcome:
    """`count` connections of one kind; `each` is called behind every one with its number."""
    chance = random.Random(f"{seed} {kind.name}")
    outcome = Outcome(kind.name)
    held: deque[Peer] = deque()
    for number in range(count):
        source = f"127.0.{1 + number // 20000 % 100}.{1 + chance.randrange(200)}" if sys.platform == "linux" else ""
        try:
            peer = Peer(address, source)
        except OSError as error:
            outcome.errors[f"could not connect: {error}"] += 1
            continue
        outcome.connections += 1
        try:
            kind.attack(peer, chance)
        except OSError as error:
            outcome.errors[type(error).__name__] += 1  # the store was faster
        if kind.ends:
            outcome.not_ended += not peer.is_ended()
            peer.close()
        else:
            held.append(peer)
            _go_on(kind, held, chance, outcome)
        each(number)
    for peer in held:
        peer.close()
    return outcome


def _go_on(kind: Kind, held: deque[Peer], chance: random.Random, outcome: Outcome) -> None:
    """Those who are held do what they do; the oldest leaves, and has been ended by now if it was in the way."""
    for _ in range(_DRIPS if kind.drips else 0):
        with contextlib.suppress(OSError):  # it has been ended
            drip(held[chance.randrange(len(held))])
    if len(held) > kind.held:
        peer = held.popleft()
        outcome.not_ended += kind.held == HELD_STRANGERS and not peer.is_ended()
        peer.close()


class _Clock:
    def now(self) -> float:
        return time.monotonic()


@dataclass(slots=True)
class Gauge:
    """Memory and descriptors of a process, as Linux shows them."""

    pid: int
    peak_mib: float = 0.0
    peak_descriptors: int = 0

    def mib(self) -> float:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def look(self) -> None:
        self.peak_mib = max(self.peak_mib, self.mib())
        self.peak_descriptors = max(self.peak_descriptors, self.descriptors())

    def descriptors_in_the_end(self, expected: int) -> int:
        """Once what is behind a last word has been closed, or should have been."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := self.descriptors()) > expected and time.monotonic() < deadline:
            time.sleep(0.1)
        return found


def assail(address: tuple[str, int], pid: int, kind: Kind, count: int, seed: int, good: GoodEngine) -> bool:
    """One kind, told in a line. True if all went as it should."""
    gauge, began, rounds = Gauge(pid), time.monotonic(), good.num_rounds
    first_mib, first_descriptors = gauge.mib(), gauge.descriptors()
    half_mib = first_mib

    def look(number: int) -> None:
        nonlocal half_mib
        if number % 500 == 0:
            gauge.look()
            if serving.has_failed:
                raise AssertionError(f"the good engine was not served any more at connection {number} of {kind.name}")
        if number == count // 2:
            half_mib = gauge.mib()

    with Serving(good) as serving:
        outcome = attack(address, kind, count, seed, look)
    good.go_round()
    left = gauge.descriptors_in_the_end(first_descriptors) - first_descriptors
    mib = gauge.mib()
    is_good = not outcome.not_ended and outcome.connections == count and left <= 0 and mib - half_mib < _MOST_GROWTH_MIB
    faster = f" ({', '.join(f'{number} {name}' for name, number in outcome.errors.items())})" if outcome.errors else ""
    sys.stdout.write(
        f"{'ok  ' if is_good else 'BAD '} {kind.name:36} {outcome.connections} connections{faster}, "
        f"{outcome.not_ended} not ended; "
        f"store {first_mib:.1f} MiB before, {half_mib:.1f} at half, {mib:.1f} after, at most {gauge.peak_mib:.1f}; "
        f"{first_descriptors} descriptors before, at most {gauge.peak_descriptors}, {left:+d} after; "
        f"{good.num_rounds - rounds} rounds of the good engine, the longest {serving.longest_s:.2f} s; "
        f"{time.monotonic() - began:.0f} s\n"
    )
    sys.stdout.flush()
    return is_good


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line a kind; exit 1 if the store did not end what it should, lost the good engine, grew, or kept descriptors."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.hostile_peers", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--connections", type=int, default=1000, help="of each kind")
    parser.add_argument("--kind", help="only the kinds whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    kinds = [kind for kind in KINDS if not options.kind or options.kind in kind.name]
    if not kinds:
        parser.error(f"no kind has {options.kind!r} in its name; there are: {', '.join(kind.name for kind in KINDS)}")
    command = [sys.executable, "-m", "ci", "kv-store", "--json", "--until-eof", "--capacity-mib", "64", "--lease", "5"]
    environment = {**os.environ, "ASSAY_KV_TOKEN": TOKEN.decode()}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as store:
        assert store.stdout is not None
        assert store.stdin is not None
        found = json.loads(store.stdout.readline())
        address = (str(found["host"]), int(found["port"]))
        good = GoodEngine(address, _Clock())
        good.go_round()
        bad = [kind.name for kind in kinds if not assail(address, store.pid, kind, options.connections, options.seed, good)]
        store.stdin.close()
        ended = json.loads(store.stdout.read())
        sys.stdout.write(
            f"the store took {ended['accepted']} connections, turned {ended['turned_away']} away for want of place, "
            f"and ended {ended['ended']} for a fault\n"
        )
        is_left_well = store.wait(timeout=PATIENCE_S) == 0
    return 1 if bad or not is_left_well else 0


if __name__ == "__main__":
    raise SystemExit(main())
