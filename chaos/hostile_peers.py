"""Peers of a KV store that mean no good, one function a kind; each costs them their connection and nothing else.

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
import socket
import struct
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chaos.good_engine import TOKEN, GoodEngine, Serving
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.frames import HEADER_BYTES, MAGIC, FrameReader, FrameWriter
from engine_under_test.distributed.protocol import VERSION
from engine_under_test.distributed.store_session import proof_of

_PATIENCE_S: Final = 10.0
_HELD_STRANGERS: Final = 300  # more than the 256 connections of a store: the oldest is in the way, and is ended
_HELD: Final = 64  # of those who have the token: nobody makes room for another
_DRIPS: Final = 6  # bytes of slow peers for each new one, so that most get theirs while they are held
_MOST_GROWTH_MIB: Final = 16.0  # in the second half of the connections: less than 350 bytes for each of 50,000


class Peer:
    """One connection that speaks frames, and bytes that are none."""

    def __init__(self, address: tuple[str, int], source: str = "", *, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(_PATIENCE_S)
        # An abortive close leaves no TIME_WAIT behind; a source address of its own per block of peers spares port numbers.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if source:
            self.socket.bind((source, 0))
        self.socket.connect(address)
        self.writer = FrameWriter()
        self.reader = FrameReader(1 << 24)
        self.sent = bytearray()
        self.slow = b""  # what is left of a frame that it sends a byte at a time
        self.is_welcomed = False

    def raw(self, data: bytes) -> None:
        self.sent += data
        self.socket.sendall(data)

    def say(self, message: m.Message) -> None:
        self.raw(self.writer.frame(m.encode(message)))

    def hear(self) -> m.Message:
        """The next message. Raises ConnectionError if the store ended the connection."""
        while (found := self.reader.next_message()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                raise ConnectionResetError("the store ended the connection")
            self.reader.feed(data)
        message = m.decode(found)
        self.is_welcomed |= isinstance(message, m.Welcome)
        return message

    def greet(self, token: bytes = TOKEN, name: bytes = b"h" * 16) -> m.Welcome:
        self.say(m.Hello(VERSION, name, 0))
        challenge = self.hear()
        assert isinstance(challenge, m.Challenge)
        self.say(m.Proof(proof_of(token, challenge.nonce, name, 0)))
        welcome = self.hear()
        assert isinstance(welcome, m.Welcome), welcome
        return welcome

    def is_ended(self) -> bool:
        """True if the store ends the connection, perhaps behind a last word; False if nothing comes for long."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except OSError:
            return True
        return True

    def close(self) -> None:
        self.socket.close()


Attack = Callable[[Peer, random.Random], None]


def random_bytes(peer: Peer, chance: random.Random) -> None:
    peer.raw(chance.randbytes(chance.randint(4, 300)))


def oversized_length(peer: Peer, chance: random.Random) -> None:
    peer.raw(struct.pack(">4sIIQ", MAGIC, 0, chance.randint(1 << 16, (1 << 32) - 1), 0))


def oversized_length_behind_the_greeting(peer: Peer, chance: random.Random) -> None:
    peer.greet()
    peer.raw(struct.pack(">4sIIQ", MAGIC, 2, chance.randint(1 << 26, (1 << 32) - 1), 0))


def half_a_frame(peer: Peer, chance: random.Random) -> None:
    frame = FrameWriter().frame(m.encode(m.Hello(VERSION, b"h" * 16, 0)))
    peer.raw(frame[: chance.randint(1, len(frame) - 1)])


def half_a_block(peer: Peer, chance: random.Random) -> None:
    """A store that never gets further than half of its first block."""
    peer.greet()
    peer.say(m.Open(1, True, 4096, (chance.randbytes(16), chance.randbytes(16))))
    peer.hear()
    data = chance.randbytes(4096)
    frame = peer.writer.frame(m.encode(m.Block(1, 0, m.digest_of(data), data)))
    peer.raw(frame[: HEADER_BYTES + chance.randint(0, 2000)])


def silence(_peer: Peer, _chance: random.Random) -> None:
    """A connection and nothing else."""


def half_a_frame_behind_the_greeting(peer: Peer, chance: random.Random) -> None:
    """Nothing but time ends it: it was welcomed, and no transfer of it is open."""
    peer.greet()
    frame = peer.writer.frame(m.encode(m.Open(1, False, 4096, (chance.randbytes(16),))))
    peer.raw(frame[: chance.randint(1, len(frame) - 1)])


def slow_loris(peer: Peer, _chance: random.Random) -> None:
    """A byte at a time, and never the last one; the others follow by `drip`."""
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.slow = FrameWriter().frame(m.encode(m.Hello(VERSION, b"h" * 16, 0)))
    drip(peer)


def slow_loris_behind_the_greeting(peer: Peer, chance: random.Random) -> None:
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.greet()
    peer.slow = peer.writer.frame(m.encode(m.Open(1, False, 4096, (chance.randbytes(60),))))
    drip(peer)


def drip(peer: Peer) -> None:
    """The next byte of its frame, unless it is the last one."""
    if len(peer.slow) > 1:
        peer.raw(peer.slow[:1])
        peer.slow = peer.slow[1:]


def repeated_frame(peer: Peer, _chance: random.Random) -> None:
    peer.say(m.Hello(VERSION, b"h" * 16, 0))
    peer.raw(bytes(peer.sent))


def replayed_session(peer: Peer, chance: random.Random) -> None:
    """What another connection said, proof included, word for word."""
    writer = FrameWriter()
    old_proof = proof_of(TOKEN, chance.randbytes(32), b"h" * 16, 0)
    for message in (m.Hello(VERSION, b"h" * 16, 0), m.Proof(old_proof), m.Open(1, False, 4096, (b"good 0",))):
        peer.raw(writer.frame(m.encode(message)))


def spoiled_frame(peer: Peer, chance: random.Random) -> None:
    frame = bytearray(FrameWriter().frame(m.encode(m.Hello(VERSION, b"h" * 16, 0))))
    frame[chance.randrange(12, len(frame))] ^= 1 << chance.randrange(8)
    peer.raw(bytes(frame))


def no_message(peer: Peer, chance: random.Random) -> None:
    """Frames that are right around something that is no message."""
    peer.raw(peer.writer.frame(chance.randbytes(chance.randint(0, 100))))


def out_of_turn(peer: Peer, _chance: random.Random) -> None:
    peer.greet()
    peer.say(m.End(7, 1))


def more_than_its_credit(peer: Peer, chance: random.Random) -> None:
    """Blocks of a store for which nothing was granted: of another transfer's size and number."""
    peer.greet()
    peer.say(m.Open(1, True, 64, (chance.randbytes(16),)))
    for number in range(3):
        peer.say(m.Block(1, number, bytes(16), bytes(64)))


def wrong_token(peer: Peer, chance: random.Random) -> None:
    with contextlib.suppress(AssertionError, ConnectionError):
        peer.greet(token=chance.randbytes(20))


def no_token(peer: Peer, _chance: random.Random) -> None:
    """The proof of a store that needs none."""
    with contextlib.suppress(AssertionError, ConnectionError):
        peer.greet(token=b"")


def no_proof(peer: Peer, _chance: random.Random) -> None:
    """The greeting is left off in the middle, as if it were over."""
    peer.say(m.Hello(VERSION, b"h" * 16, 0))
    peer.hear()
    peer.say(m.Open(1, False, 4096, (b"good 0",)))


def stores_and_leaves(peer: Peer, chance: random.Random) -> None:
    """A store that is cut off in the middle of everything: nothing of it may become visible."""
    peer.greet()
    data = chance.randbytes(4096)
    peer.say(m.Open(1, True, 4096, (b"never " + chance.randbytes(8), b"never " + chance.randbytes(8))))
    if isinstance(peer.hear(), m.Credit):
        peer.say(m.Block(1, 0, m.digest_of(data), data))


def loads_and_leaves(peer: Peer, _chance: random.Random) -> None:
    """A load whose blocks nobody takes."""
    peer.greet()
    peer.say(m.Open(1, False, 4096, (b"good 0", b"good 1")))
    if isinstance(peer.hear(), m.Offer):
        peer.say(m.Credit(1, 8192))


@dataclass(frozen=True, slots=True)
class Kind:
    """``ends``: the store ends the connection at once. Of the others up to ``held`` stay. Who was never welcomed is ended when
    its place is needed or its time is up; who was leaves. ``drips``: those who stay go on, a byte at a time."""

    attack: Attack
    ends: bool = True
    held: int = 0
    drips: bool = False

    @property
    def name(self) -> str:
        return self.attack.__name__.replace("_", " ")


KINDS: Final = (
    Kind(random_bytes),
    Kind(oversized_length),
    Kind(oversized_length_behind_the_greeting),
    Kind(half_a_frame, ends=False, held=_HELD_STRANGERS),
    Kind(half_a_block, ends=False, held=_HELD),
    Kind(half_a_frame_behind_the_greeting, ends=False, held=_HELD),
    Kind(silence, ends=False, held=_HELD_STRANGERS),
    Kind(slow_loris, ends=False, held=_HELD_STRANGERS, drips=True),
    Kind(slow_loris_behind_the_greeting, ends=False, held=_HELD, drips=True),
    Kind(repeated_frame),
    Kind(replayed_session),
    Kind(spoiled_frame),
    Kind(no_message),
    Kind(out_of_turn),
    Kind(more_than_its_credit),
    Kind(wrong_token),
    Kind(no_token),
    Kind(no_proof),
    Kind(stores_and_leaves, ends=False, held=_HELD),
    Kind(loads_and_leaves, ends=False, held=_HELD),
)


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
        outcome.not_ended += kind.held == _HELD_STRANGERS and not peer.is_ended()
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
        deadline = time.monotonic() + _PATIENCE_S
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
        is_left_well = store.wait(timeout=_PATIENCE_S) == 0
    return 1 if bad or not is_left_well else 0


if __name__ == "__main__":
    raise SystemExit(main())
