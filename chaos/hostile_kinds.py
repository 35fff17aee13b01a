"""The kinds of peers that mean no good to a KV store, one function a kind; each costs them their connection and nothing else.

Owns what such a peer says, and what is to become of it (`Kind`). Never how many there are, or a judgement: `hostile_peers.py`
attacks with thousands of each, `hostile_suite.py` with a few, in a gate.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chaos.good_engine import TOKEN
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.frames import HEADER_BYTES, MAGIC, FrameReader, FrameWriter
from engine_under_test.distributed.protocol import VERSION
from engine_under_test.distributed.store_session import proof_of

PATIENCE_S: Final = 10.0
HELD_STRANGERS: Final = 300  # more than the 256 connections of a store: the oldest is in the way, and is ended
_HELD: Final = 64  # of those who have the token: nobody makes room for another


class Peer:
    """One connection that speaks frames, and bytes that are none."""

    def __init__(self, address: tuple[str, int], source: str = "", *, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(PATIENCE_S)
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


def half_a_conversation(peer: Peer, _chance: random.Random) -> None:
    """It will say nothing more, and goes on to listen: it holds a load."""
    peer.greet()
    peer.say(m.Open(1, False, 4096, (b"good 0",)))
    peer.hear()
    peer.socket.shutdown(socket.SHUT_WR)


@dataclass(frozen=True, slots=True)
class Kind:
    """``ends``: the store ends the connection at once. Of the others up to ``held`` stay. Who was never welcomed is ended when
    its place is needed or its time is up; who was leaves. ``drips``: those who stay go on, a byte at a time. ``is_fault``: whom
    it ends is counted among its faults."""

    attack: Attack
    ends: bool = True
    held: int = 0
    drips: bool = False
    is_fault: bool = True

    @property
    def name(self) -> str:
        return self.attack.__name__.replace("_", " ")


KINDS: Final = (
    Kind(random_bytes),
    Kind(oversized_length),
    Kind(oversized_length_behind_the_greeting),
    Kind(half_a_frame, ends=False, held=HELD_STRANGERS),
    Kind(half_a_block, ends=False, held=_HELD),
    Kind(half_a_frame_behind_the_greeting, ends=False, held=_HELD),
    Kind(silence, ends=False, held=HELD_STRANGERS),
    Kind(slow_loris, ends=False, held=HELD_STRANGERS, drips=True),
    Kind(slow_loris_behind_the_greeting, ends=False, held=_HELD, drips=True),
    Kind(repeated_frame),
    Kind(replayed_session),
    Kind(spoiled_frame),
    Kind(no_message),
    Kind(out_of_turn),
    Kind(half_a_conversation, is_fault=False),
    Kind(more_than_its_credit),
    Kind(wrong_token),
    Kind(no_token),
    Kind(no_proof),
    Kind(stores_and_leaves, ends=False, held=_HELD),
    Kind(loads_and_leaves, ends=False, held=_HELD),
)
