"""The key of a prefix-cache entry, written from docs/prefix-key.md alone: the checker's side of KV-7 and KV-8.

Owns the encoding; never looks at an engine's index and never compares tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from struct import pack

from engine_under_test.types import Media, Request

_NAMESPACE_TAG = b"assay/namespace/1"
_BLOCK_TAG = b"assay/block/1"

HashFunction = Callable[[bytes], bytes]
BlockMedia = tuple[tuple[str, int, int], ...]


def blake2b(data: bytes) -> bytes:
    """The default hash: BLAKE2b with 16 bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


def two_bit(data: bytes) -> bytes:
    """A poor hash, for which almost every look-up meets a stranger under its key."""
    return bytes([hashlib.blake2b(data, digest_size=1).digest()[0] & 3])


def constant(_data: bytes) -> bytes:
    """The poorest hash: all content under one key."""
    return b"\0"


HASHERS: dict[str, HashFunction] = {"blake2b": blake2b, "two_bit": two_bit, "constant": constant}


def field(text: str) -> bytes:
    """The length of the text in bytes, then the bytes."""
    encoded = text.encode("utf-8", "surrogatepass")
    return pack("<I", len(encoded)) + encoded


def namespace(model_revision: str, request: Request) -> bytes:
    """What must be equal for two requests to share anything: revision, tenant, salt, adapter and its version."""
    parts = [_NAMESPACE_TAG, field(model_revision), field(request.tenant), field(request.cache_salt)]
    adapter = request.adapter
    parts.append(b"\0" if adapter is None else b"\1" + field(adapter.name) + pack("<q", adapter.version))
    return b"".join(parts)


def block_media(media: tuple[Media, ...], block_start: int, block_size: int) -> BlockMedia:
    """(digest, offset, length) of the items that overlap the block, by rising start."""
    end = block_start + block_size
    found = [item for item in media if item.start < end and item.start + item.length > block_start]
    return tuple((item.digest, item.start - block_start, item.length) for item in sorted(found, key=lambda item: item.start))


def block_encoding(parent: bytes, is_first: bool, tokens: tuple[int, ...], media: BlockMedia) -> bytes:
    """What is hashed. ``parent`` is the namespace for the first block of a prompt, else the key of the block before."""
    count = len(tokens)
    head = _BLOCK_TAG + (b"\0" if is_first else b"\1") + pack("<I", len(parent)) + parent
    body = head + pack(f"<{count + 1}I", count, *tokens) + pack("<I", len(media))
    if not media:
        return body
    return body + b"".join(field(digest) + pack("<qI", offset, length) for digest, offset, length in media)
