"""The messages of the KV protocol as values, and their encoding: MessagePack arrays, `[kind, field, field, ...]`.

Owns sizes, types and ranges of every field: what `decode` returns holds what its annotations and limits say, whoever sent it.
Never knows whether a message may be said now (`protocol`), nor how it is framed and checked on the wire (`frames`).

    MessagePack: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack
import xxhash

from engine_under_test.distributed.protocol import Kind
from engine_under_test.errors import ProtocolError

MAX_KEYS: Final = 4096  # blocks of one transfer
MAX_KEY_BYTES: Final = 64
MAX_TEXT: Final = 256
MAX_BLOCK_BYTES: Final = 64 << 20
DIGEST_BYTES: Final = 16
_LARGEST: Final = (1 << 63) - 1


class Hello(NamedTuple):
    """``client``: 16 bytes that name an engine; ``generation``: how often it was restarted."""

    version: int
    client: bytes
    generation: int


class Challenge(NamedTuple):
    version: int
    nonce: bytes


class Proof(NamedTuple):
    """HMAC-SHA256 of the challenge under the shared token."""

    mac: bytes


class Welcome(NamedTuple):
    """``store``: 16 bytes, new with every start of the store. The others are its limits."""

    store: bytes
    max_blocks: int
    max_block_bytes: int
    lease_ms: int


class Bye(NamedTuple):
    pass


class Fault(NamedTuple):
    """The connection ends, and why."""

    text: str


class Open(NamedTuple):
    """A transfer of the blocks with these content keys, in prefix order, each of exactly ``block_bytes`` bytes."""

    transfer: int
    is_store: bool
    block_bytes: int
    keys: tuple[bytes, ...]


class Offer(NamedTuple):
    """The first ``num_blocks`` are here, pinned for ``lease_ms`` behind every message of the client."""

    transfer: int
    num_blocks: int
    lease_ms: int


class Refuse(NamedTuple):
    transfer: int
    reason: str


class Credit(NamedTuple):
    """``total_bytes`` of blocks may be sent since the transfer began, all in all."""

    transfer: int
    total_bytes: int


class Block(NamedTuple):
    """``digest`` was taken by the engine that computed the block, and travels with it (`digest_of`)."""

    transfer: int
    number: int
    digest: bytes
    data: bytes


class End(NamedTuple):
    """Every one of ``num_blocks`` has been sent; a store becomes visible with this, and not before."""

    transfer: int
    num_blocks: int


class Ack(NamedTuple):
    """``num_blocks``, from the first on, arrived whole. The source may let go."""

    transfer: int
    num_blocks: int


class Abort(NamedTuple):
    transfer: int
    reason: str


class Aborted(NamedTuple):
    """Nothing more of the transfer will be sent."""

    transfer: int


Message = (
    Hello | Challenge | Proof | Welcome | Bye | Fault | Open | Offer | Refuse | Credit | Block | End | Ack | Abort | Aborted
)
TransferMessage = Open | Offer | Refuse | Credit | Block | End | Ack | Abort | Aborted

_Check = Callable[[Any], bool]


def _int(least: int = 0, most: int = _LARGEST) -> _Check:
    return lambda value: type(value) is int and least <= value <= most


def _bytes(least: int, most: int) -> _Check:
    return lambda value: type(value) is bytes and least <= len(value) <= most


def _text(value: Any) -> bool:
    return type(value) is str and len(value) <= MAX_TEXT


def _bool(value: Any) -> bool:
    return type(value) is bool


def _keys(value: Any) -> bool:
    is_key = _bytes(1, MAX_KEY_BYTES)
    return type(value) is tuple and 1 <= len(value) <= MAX_KEYS and all(map(is_key, value)) and len(set(value)) == len(value)


_COUNT, _ID = _int(1, MAX_KEYS), _int(1)
_SPEC: Final[dict[Kind, tuple[type[Any], tuple[_Check, ...]]]] = {
    Kind.HELLO: (Hello, (_int(0, 1 << 16), _bytes(16, 16), _int())),
    Kind.CHALLENGE: (Challenge, (_int(0, 1 << 16), _bytes(32, 32))),
    Kind.PROOF: (Proof, (_bytes(32, 32),)),
    Kind.WELCOME: (Welcome, (_bytes(16, 16), _COUNT, _int(1, MAX_BLOCK_BYTES), _int(1))),
    Kind.BYE: (Bye, ()),
    Kind.FAULT: (Fault, (_text,)),
    Kind.OPEN: (Open, (_ID, _bool, _int(1, MAX_BLOCK_BYTES), _keys)),
    Kind.OFFER: (Offer, (_ID, _COUNT, _int(1))),
    Kind.REFUSE: (Refuse, (_ID, _text)),
    Kind.CREDIT: (Credit, (_ID, _int(1))),
    Kind.BLOCK: (Block, (_ID, _int(0, MAX_KEYS - 1), _bytes(DIGEST_BYTES, DIGEST_BYTES), _bytes(1, MAX_BLOCK_BYTES))),
    Kind.END: (End, (_ID, _COUNT)),
    Kind.ACK: (Ack, (_ID, _int(0, MAX_KEYS))),
    Kind.ABORT: (Abort, (_ID, _text)),
    Kind.ABORTED: (Aborted, (_ID,)),
}
_KIND_OF: Final = {message: kind for kind, (message, _) in _SPEC.items()}
KINDS: Final = tuple(_SPEC)


def kind_of(message: Message) -> Kind:
    return _KIND_OF[type(message)]


def encode(message: Message) -> bytes:
    return bytes(msgpack.packb((_KIND_OF[type(message)].value, *message), use_bin_type=True))


def decode(data: bytes) -> Message:
    """The inverse of `encode`. Raises ProtocolError on anything else, whatever it is."""
    try:
        found = msgpack.unpackb(data, use_list=False, raw=False, max_array_len=MAX_KEYS, max_map_len=0, max_ext_len=0)
    except Exception as error:  # the library raises many kinds; every one means the same here
        raise ProtocolError(f"a message is one MessagePack array, found {len(data)} bytes that are not ({error})") from error
    if type(found) is not tuple or not found or type(found[0]) is not int or found[0] not in _NUMBERS:
        raise ProtocolError(f"a message begins with the number of its kind, found {str(found)[:60]}")
    kind = Kind(found[0])
    message, checks = _SPEC[kind]
    fields = found[1:]
    if len(fields) != len(checks):
        raise ProtocolError(f"{kind.name} has {len(checks)} fields, found {len(fields)}")
    for name, value, check in zip(message._fields, fields, checks, strict=True):
        if not check(value):
            raise ProtocolError(f"{name} of {kind.name} is out of its range or type, found {str(value)[:60]}")
    made: Message = message(*fields)
    return made


def digest_of(data: bytes) -> bytes:
    """The digest of a block's content, taken where it was computed. Against accidents, not against forgery."""
    return xxhash.xxh3_128_digest(data)


_NUMBERS: Final = frozenset(kind.value for kind in Kind)
