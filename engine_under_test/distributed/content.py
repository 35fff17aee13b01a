"""The name of a block's content beyond one engine: a key that only equal content can have.

Owns the encoding. An engine's own index may use any hash, since it compares tokens too; a remote pool compares keys alone, so
that here the digest is wide (BLAKE2b, 256 bits, RFC 7693) and the encoding injective: every piece stands behind its length.
``layout`` says how the bytes are to be read (data type, layers, heads, block size): engines that differ in it share nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

from engine_under_test.types import PrefixEntry

KEY_BYTES: Final = 32
_NUMBER: Final = struct.Struct(">q")
_PERSON: Final = b"assay kv block 1"


def content_key(
    layout: bytes, namespace: bytes, parent: bytes, tokens: Sequence[int], media: Sequence[tuple[str, int, int]] = ()
) -> bytes:
    """The key of a full block behind the block whose key is `parent` (empty: it is the first). ``namespace`` and ``media`` as
    in `PrefixEntry`."""
    hasher = hashlib.blake2b(digest_size=KEY_BYTES, person=_PERSON)
    for piece in (layout, namespace, parent, b"".join(map(_NUMBER.pack, tokens))):
        hasher.update(_NUMBER.pack(len(piece)) + piece)
    for digest, offset, length in media:
        name = digest.encode("utf-8", "surrogatepass")
        hasher.update(_NUMBER.pack(len(name)) + name + _NUMBER.pack(offset) + _NUMBER.pack(length))
    return hasher.digest()


def keys_of(layout: bytes, entries: Sequence[PrefixEntry]) -> tuple[bytes, ...]:
    """The keys of a prefix's blocks, given their entries from the first one on."""
    keys: list[bytes] = []
    for entry in entries:
        keys.append(content_key(layout, entry.namespace, keys[-1] if keys else b"", entry.tokens, entry.media))
    return tuple(keys)
