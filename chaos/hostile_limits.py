"""The declared limits of a KV store as one table: each is asked for up to it, which is given, and one beyond, which is not.

Owns what a peer says to ask. Never judges (`properties/invariants/peers.py`), and knows the store by its configuration alone.
Who has not been welcomed asks for the same, and gets nothing.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from chaos.hostile_kinds import Peer
from chaos.store_in_thread import LIMITS
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.kv_store import LEAST_TOKEN_BYTES, ServerConfig
from engine_under_test.distributed.protocol import VERSION
from engine_under_test.errors import ConfigError

_KNOWN: Final = b"good 0"  # what the engine of good will has stored
_BLOCK: Final = LIMITS.max_block_bytes
_PER_STORE: Final = LIMITS.window_bytes // _BLOCK
_STORES: Final = LIMITS.max_staged_bytes // LIMITS.window_bytes  # of a window each, which fill what may be staged

Ask = Callable[[Peer, bool], bool]  # the second: one beyond the limit. Whether it was given; ConnectionError: not given


@dataclass(frozen=True, slots=True)
class Limit:
    """``has_beyond``: something lies beyond it."""

    name: str
    ask: Ask
    has_beyond: bool = True


def _is_given(peer: Peer, message: m.Message) -> bool:
    peer.say(message)
    return not isinstance(peer.hear(), m.Refuse | m.Fault)


def _keys(name: str, count: int) -> tuple[bytes, ...]:
    return tuple([b"limit %s %d" % (name.encode(), number) for number in range(count)])


def _store(peer: Peer, number: int, count: int = 1, block_bytes: int = _BLOCK) -> bool:
    return _is_given(peer, m.Open(number, True, block_bytes, _keys(f"of {number}", count)))


def _goes_on(peer: Peer) -> bool:
    """What it says next is answered."""
    return isinstance(_after(peer, m.Open(99, False, _BLOCK, (b"nobody has this",))), m.Refuse)


def _after(peer: Peer, message: m.Message) -> m.Message:
    peer.say(message)
    return peer.hear()


def transfers_at_a_time(peer: Peer, beyond: bool) -> bool:
    opened = [
        _is_given(peer, m.Open(number, False, _BLOCK, (_KNOWN,))) for number in range(1, LIMITS.max_transfers + 1 + beyond)
    ]
    return all(opened[: LIMITS.max_transfers]) and opened[-1]


def blocks_of_a_transfer(peer: Peer, beyond: bool) -> bool:
    return _is_given(peer, m.Open(1, False, _BLOCK, (_KNOWN, *_keys("more", LIMITS.max_blocks - 1 + beyond))))


def bytes_of_a_block(peer: Peer, beyond: bool) -> bool:
    return _store(peer, 1, block_bytes=_BLOCK + beyond)


def bytes_of_stores_at_a_time(peer: Peer, beyond: bool) -> bool:
    """The stores that fill it, one after the other; then one of a byte."""
    opened = [_store(peer, number, _PER_STORE) for number in range(1, _STORES + 1)]
    return all(opened) and (not beyond or _store(peer, _STORES + 1, block_bytes=1))


def bytes_of_stores_come_back(peer: Peer, _beyond: bool) -> bool:
    """Stores that are given up in the middle leave their room to others."""
    for number in range(1, _STORES + 1):
        _store(peer, number, _PER_STORE)
        data = bytes([number]) * _BLOCK
        peer.say(m.Block(number, 0, m.digest_of(data), data))
        _after(peer, m.Abort(number, ""))
    return all(_store(peer, number, _PER_STORE) for number in range(11, 11 + _STORES))


def blocks_that_an_end_names(peer: Peer, beyond: bool) -> bool:
    _store(peer, 1, 2)
    data = bytes(_BLOCK)
    for number in range(2):
        peer.say(m.Block(1, number, m.digest_of(data), data))
    return isinstance(_after(peer, m.End(1, 2 - beyond)), m.Ack)


def content_under_its_digest(peer: Peer, beyond: bool) -> bool:
    _store(peer, 1)
    data = bytes(_BLOCK)
    peer.say(m.Block(1, 0, m.digest_of(data[beyond:]), data))
    found = _after(peer, m.End(1, 1))
    return isinstance(found, m.Ack) and found.num_blocks == 1


def one_content_of_a_transfer(peer: Peer, beyond: bool) -> bool:
    _store(peer, 1)
    peer.say(m.Open(1, True, _BLOCK, _keys("of 1" if not beyond else "of another", 1)))
    return _goes_on(peer)


def each_key_once(peer: Peer, beyond: bool) -> bool:
    return _is_given(peer, m.Open(1, False, _BLOCK, (_KNOWN, _KNOWN if beyond else b"good 1")))


def bytes_of_a_key(peer: Peer, beyond: bool) -> bool:
    return _is_given(peer, m.Open(1, True, _BLOCK, (b"k" * (m.MAX_KEY_BYTES + beyond),)))


def bytes_of_a_reason(peer: Peer, beyond: bool) -> bool:
    _store(peer, 1)
    return isinstance(_after(peer, m.Abort(1, "r" * (m.MAX_TEXT + beyond))), m.Aborted)


GUESTS: Final = (
    Limit("transfers at a time", transfers_at_a_time),
    Limit("blocks of a transfer", blocks_of_a_transfer),
    Limit("bytes of a block", bytes_of_a_block),
    Limit("bytes of stores at a time", bytes_of_stores_at_a_time),
    Limit("bytes of stores that were given up", bytes_of_stores_come_back, has_beyond=False),
    Limit("blocks that an END names", blocks_that_an_end_names),
    Limit("content under its digest", content_under_its_digest),
    Limit("one content of a transfer", one_content_of_a_transfer),
    Limit("each key once", each_key_once),
    Limit("bytes of a key", bytes_of_a_key),
    Limit("bytes of a reason", bytes_of_a_reason),
)
STORED: Final = dict.fromkeys(_keys("of 1", 2), bytes(_BLOCK))  # what guests may leave behind
GREETING_BYTES: Final = 256


def begin_message(peer: Peer, num_bytes: int) -> None:
    """The begin of a message that says it has so many bytes."""
    header = struct.pack(">4sIIQ", b"AKV1", peer.writer._sequence, num_bytes, 0)
    peer.raw(header + bytes(16))


def hello(peer: Peer) -> None:
    peer.say(m.Hello(VERSION, b"h" * 16, 0))
    peer.hear()


def congest(peer: Peer, is_stalled: Callable[[], bool], most: int = 400) -> bool:
    """Loads that nobody reads, each given up at once, until the store has to wait: then no transfer of it is open."""
    peer.greet()
    keys = tuple([b"good %d" % number for number in range(8)])
    for number in range(1, most):
        frames = (m.Open(number, False, _BLOCK, keys), m.Credit(number, 8 * _BLOCK), m.Abort(number, ""))
        peer.raw(b"".join([peer.writer.frame(m.encode(each)) for each in frames]))
        if is_stalled():
            return True
    return False


def is_configured(host: str, token: bytes) -> bool:
    try:
        ServerConfig(host, token=token)
    except ConfigError:
        return False
    return True


CONFIGURATIONS: Final = (  # who may listen where
    ("without a token, on loopback", True, "127.0.0.1", b""),
    ("without a token, on every address", False, "0.0.0.0", b""),  # nobody listens: it must be refused
    ("without a token, on another host", False, "10.1.2.3", b""),
    ("with a token, on every address", True, "0.0.0.0", b"t" * LEAST_TOKEN_BYTES),  # nobody listens
    ("with a short token", False, "127.0.0.1", b"t" * (LEAST_TOKEN_BYTES - 1)),
)
