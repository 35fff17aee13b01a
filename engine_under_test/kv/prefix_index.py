"""Owns hash -> block: which content can be found, and in which blocks it stands.

Never counts holders and never decides that a block may go. Keys are specified in docs/prefix-key.md. Look-ups compare
content at every level, so a poor hash costs time, never correctness.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence as Items

from engine_under_test.seams import Hasher
from engine_under_test.types import Media, PrefixEntry, Request


def blake2b_16(data: bytes, /) -> bytes:
    """The default hash: BLAKE2b (RFC 7693) with a digest of 16 bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


def _field(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return struct.pack("<I", len(raw)) + raw


def namespace_of(request: Request, model_revision: str) -> bytes:
    """Everything, apart from tokens and media, that content depends upon (KV-8)."""
    adapter = request.adapter
    named = b"\x00" if adapter is None else b"\x01" + _field(adapter.name) + struct.pack("<q", adapter.version)
    return b"assay/namespace/1" + _field(model_revision) + _field(request.tenant) + _field(request.cache_salt) + named


def media_in(media: Items[Media], start: int, end: int) -> tuple[tuple[str, int, int], ...]:
    """The items that overlap positions ``start .. end - 1``, as a `PrefixEntry` keeps them, by rising start."""
    overlapping = [item for item in media if item.start < end and item.start + item.length > start]
    overlapping.sort(key=lambda item: item.start)
    return tuple((item.digest, item.start - start, item.length) for item in overlapping)


class PrefixIndex:
    """Buckets of entries by key, and for each entry the blocks that hold its content, oldest first.

    The first block of an entry answers look-ups; when it is forgotten, the next one (a live duplicate) takes over. An
    entry without blocks is gone. ``version`` rises with every change, for memos of look-ups.
    """

    __slots__ = ("_blocks", "_buckets", "_hasher", "entry_of", "version")

    def __init__(self, hasher: Hasher = blake2b_16) -> None:
        self._hasher = hasher
        self.version = 0
        self.entry_of: dict[int, PrefixEntry] = {}
        self._buckets: dict[bytes, list[PrefixEntry]] = {}
        self._blocks: dict[PrefixEntry, list[int]] = {}

    def key(
        self, namespace: bytes, parent_key: bytes | None, tokens: Items[int], media: tuple[tuple[str, int, int], ...]
    ) -> bytes:
        """The chained key of a block (docs/prefix-key.md)."""
        if parent_key is None:
            parent = b"\x00" + struct.pack("<I", len(namespace)) + namespace
        else:
            parent = b"\x01" + struct.pack("<I", len(parent_key)) + parent_key
        count = len(tokens)
        body = struct.pack(f"<{count + 1}I", count, *tokens)
        if not media:
            return self._hasher(b"assay/block/1" + parent + body + b"\x00\x00\x00\x00")
        items = b"".join([_field(digest) + struct.pack("<qI", offset, length) for digest, offset, length in media])
        return self._hasher(b"assay/block/1" + parent + body + struct.pack("<I", len(media)) + items)

    def find(
        self,
        key: bytes,
        namespace: bytes,
        parent: PrefixEntry | None,
        tokens: tuple[int, ...],
        media: tuple[tuple[str, int, int], ...],
    ) -> PrefixEntry | None:
        """The entry with exactly this content, among those that share its key."""
        for entry in self._buckets.get(key, ()):
            if entry.tokens == tokens and entry.parent is parent and entry.media == media and entry.namespace == namespace:
                return entry
        return None

    def first_block(self, entry: PrefixEntry) -> int:
        """The block that answers for an entry of the index."""
        return self._blocks[entry][0]

    def publish(
        self,
        block: int,
        key: bytes,
        namespace: bytes,
        parent: PrefixEntry | None,
        tokens: tuple[int, ...],
        media: tuple[tuple[str, int, int], ...],
    ) -> PrefixEntry:
        """Names a committed full block. Content that is indexed already keeps its first block; this one stands behind it."""
        entry = self.find(key, namespace, parent, tokens, media)
        if entry is None:
            entry = PrefixEntry(key, namespace, parent, tokens, media)
            self._buckets.setdefault(key, []).append(entry)
            self._blocks[entry] = []
        self._blocks[entry].append(block)
        self.entry_of[block] = entry
        self.version += 1
        return entry

    def forget(self, block: int) -> tuple[PrefixEntry, int, int]:
        """The block no longer holds its content. Returns what `restore` needs to undo it."""
        entry = self.entry_of.pop(block)
        blocks = self._blocks[entry]
        place = blocks.index(block)
        del blocks[place]
        place_in_bucket = -1
        if not blocks:
            del self._blocks[entry]
            bucket = self._buckets[entry.key]
            place_in_bucket = next(i for i, each in enumerate(bucket) if each is entry)
            del bucket[place_in_bucket]
            if not bucket:
                del self._buckets[entry.key]
        self.version += 1
        return entry, place, place_in_bucket

    def restore(self, block: int, entry: PrefixEntry, place: int, place_in_bucket: int) -> None:
        """Undoes the latest `forget` that has not been undone."""
        if entry not in self._blocks:
            self._buckets.setdefault(entry.key, []).insert(place_in_bucket, entry)
            self._blocks[entry] = []
        self._blocks[entry].insert(place, block)
        self.entry_of[block] = entry
        self.version += 1

    def __contains__(self, entry: PrefixEntry) -> bool:
        """Whether some block is found under the entry."""
        return entry in self._blocks

    def behind(self, blocks: Items[int]) -> list[int]:
        """The blocks with the content of these, and with whatever stands behind that in any prefix."""
        doubted = {self.entry_of[block] for block in blocks if block in self.entry_of}
        trusted: set[PrefixEntry] = set()
        for entry in self._blocks:
            way = []
            each: PrefixEntry | None = entry
            while each is not None and each not in doubted and each not in trusted:
                way.append(each)
                each = each.parent
            (doubted if each is not None and each in doubted else trusted).update(way)
        return [block for block, entry in self.entry_of.items() if entry in doubted]

    def clear(self) -> None:
        """Forgets everything."""
        self.entry_of.clear()
        self._buckets.clear()
        self._blocks.clear()
        self.version += 1
