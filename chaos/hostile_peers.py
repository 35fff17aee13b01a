"""Peers of a KV store that mean no good, one function a kind; each costs them their connection and nothing else.

    python -m chaos.hostile_peers --connections 100000        # of each kind, against an `assay kv-store` started for it

Owns the attacks and the count of how they ended. While they go on, an engine of good will stores and loads through the same
store, and every byte that it loads is compared. Judged from outside: connections, the memory of the store's process, content.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector, ConnectorConfig
from engine_under_test.distributed.frames import HEADER_BYTES, MAGIC, FrameReader, FrameWriter
from engine_under_test.distributed.protocol import VERSION, State
from engine_under_test.distributed.store_session import proof_of
from engine_under_test.distributed.tcp import TcpConfig, TcpTransport
from engine_under_test.seams import Clock

TOKEN: Final = b"a token for these tests"
_PATIENCE_S: Final = 10.0


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
        return m.decode(found)

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


def slow_loris(peer: Peer, chance: random.Random) -> None:
    """A byte at a time, and never the last one."""
    frame = FrameWriter().frame(m.encode(m.Hello(VERSION, b"h" * 16, 0)))
    peer.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in frame[: chance.randint(2, 8)]:
        peer.raw(bytes([byte]))


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
    """``ends``: the store ends the connection at once. The others leave, or are ended when their time is up or their place is
    needed."""

    attack: Attack
    ends: bool = True

    @property
    def name(self) -> str:
        return self.attack.__name__.replace("_", " ")


KINDS: Final = (
    Kind(random_bytes),
    Kind(oversized_length),
    Kind(oversized_length_behind_the_greeting),
    Kind(half_a_frame, ends=False),
    Kind(half_a_block, ends=False),
    Kind(silence, ends=False),
    Kind(slow_loris, ends=False),
    Kind(repeated_frame),
    Kind(replayed_session),
    Kind(spoiled_frame),
    Kind(no_message),
    Kind(out_of_turn),
    Kind(more_than_its_credit),
    Kind(wrong_token),
    Kind(stores_and_leaves, ends=False),
    Kind(loads_and_leaves, ends=False),
)


class GoodEngine:
    """Stores and loads eight blocks over and over, and compares every byte."""

    def __init__(self, address: tuple[str, int], clock: Clock, *, token: bytes = TOKEN) -> None:
        self.transport = TcpTransport(TcpConfig(*address), clock)
        config = ConnectorConfig(4096, token=token, load_deadline_s=_PATIENCE_S, store_deadline_s=_PATIENCE_S)
        self.connector = Connector(config, self, self.transport, clock, b"good" * 4)
        self.pages = {number: self.content(number) for number in range(8)}
        self.keys = [b"good %d" % number for number in range(8)]
        self.num_rounds = 0

    @staticmethod
    def content(number: int) -> bytes:
        return hashlib.sha256(b"%d" % number).digest() * 128

    def pin(self, _blocks: Sequence[int]) -> None: ...
    def unpin(self, _blocks: Sequence[int]) -> None: ...
    def read(self, block: int) -> bytes:
        return self.pages[block]

    def write(self, block: int, data: bytes) -> None:
        self.pages[block] = data

    def until(self, is_done: Callable[[], object]) -> None:
        ends = time.monotonic() + _PATIENCE_S
        while not is_done():
            self.connector.step()
            self.transport.wait(0.01)
            if time.monotonic() > ends:
                raise AssertionError(f"the good engine got no answer within {_PATIENCE_S} s ({self.transport.last_error})")

    def go_round(self) -> None:
        """Raises AssertionError if a byte is wrong, a block is missing, or its connection was ever lost."""
        connector = self.connector
        self.until(lambda: connector.session is State.OPEN)
        connector.store(self.keys, range(8))
        self.until(lambda: not connector.transfers)
        self.pages.update(dict.fromkeys(range(8, 16), b""))
        asked = connector.ask("good", self.keys)
        assert asked is not None
        self.until(lambda: any(connector.accept(hit.transfer, range(8, 16)) for hit in connector.take_hits()))
        self.until(lambda: not connector.transfers)
        (answer,) = connector.take_answers()
        assert answer.num_blocks == 8, answer
        assert [self.pages[number + 8] for number in range(8)] == [self.content(number) for number in range(8)]
        assert connector.counters.connections_lost == 0, self.transport.last_error
        self.num_rounds += 1


@dataclass(slots=True)
class Outcome:
    """``not_ended``: connections that the store should have ended and did not."""

    kind: str
    connections: int = 0
    not_ended: int = 0
    errors: Counter[str] = field(default_factory=Counter)


def attack(address: tuple[str, int], kind: Kind, count: int, seed: int, good: GoodEngine | None = None) -> Outcome:
    """`count` connections of one kind, up to 64 of those that are not ended held open together."""
    chance = random.Random(f"{seed} {kind.name}")
    outcome = Outcome(kind.name)
    held: list[Peer] = []
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
            if len(held) > 64:
                held.pop(0).close()
        if good is not None and number % max(count // 20, 50) == 0:
            good.go_round()
    for peer in held:
        peer.close()
    return outcome


class _Clock:
    def now(self) -> float:
        return time.monotonic()


def _resident_mib(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / (1 << 20)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line a kind; exit 1 if the store did not end what it should, lost the good engine or grew."""
    parser = argparse.ArgumentParser(
        prog="python -m chaos.hostile_peers", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--connections", type=int, default=1000, help="of each kind")
    parser.add_argument("--kind", help="only the kinds whose name contains this")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    command = [sys.executable, "-m", "ci", "kv-store", "--json", "--until-eof", "--capacity-mib", "64", "--lease", "5"]
    environment = {**os.environ, "ASSAY_KV_TOKEN": TOKEN.decode()}
    bad = 0
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True) as store:
        assert store.stdout is not None
        assert store.stdin is not None
        found = json.loads(store.stdout.readline())
        address = (str(found["host"]), int(found["port"]))
        good = GoodEngine(address, _Clock())
        good.go_round()
        start_mib = _resident_mib(store.pid)
        for kind in KINDS:
            if options.kind and options.kind not in kind.name:
                continue
            began = time.monotonic()
            outcome = attack(address, kind, options.connections, options.seed, good)
            good.go_round()
            grown_mib = _resident_mib(store.pid) - start_mib
            is_bad = outcome.not_ended > 0 or grown_mib > 64 or outcome.connections < options.connections
            bad += is_bad
            sys.stdout.write(
                f"{'BAD ' if is_bad else 'ok  '} {kind.name:38} {outcome.connections} connections, "
                f"{outcome.not_ended} not ended, "
                f"store {grown_mib:+.1f} MiB, {good.num_rounds} rounds of the good engine, {time.monotonic() - began:.1f} s\n"
            )
            sys.stdout.flush()
        store.stdin.close()
        sys.stdout.write(f"{store.stdout.read().strip()[:300]}\n")
        bad += store.wait(timeout=_PATIENCE_S) != 0
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
