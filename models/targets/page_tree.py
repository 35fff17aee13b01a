"""A radix tree over single-token pages, with locks on paths, and the pool of pages behind it.

Owns which page is free and which stands in the tree, the locks, and the order of eviction; knows no request's state. A node
stands for one committed token behind its parent's; its page is that token's KV slot.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from engine_under_test.seams import Hasher
from engine_under_test.types import PrefixEntry, Request

Label = tuple[int, tuple[tuple[str, int, int], ...]]  # what a node stands for: its token and the media items over it


@dataclass(slots=True, eq=False)
class Node:
    """One page of the tree; a root has neither page nor entry. ``locks``: running sequences at or below this node."""

    namespace: bytes
    parent: Node | None = None
    page: int = 0
    entry: PrefixEntry | None = None
    depth: int = 0
    locks: int = 0
    released_at: int = 0
    children: dict[Label, Node] = field(default_factory=dict)


class PageTree:
    """Pages 1 .. num_pages, each free, in the tree, or taken by a step that is not committed yet."""

    def __init__(self, num_pages: int, model_revision: str, hasher: Hasher | None) -> None:
        self.num_pages = num_pages
        self.free = deque(range(1, num_pages + 1))
        self.num_unlocked = 0  # pages that eviction could reach
        self._revision = model_revision
        self._hash = hasher or (lambda data: hashlib.blake2b(data, digest_size=16).digest())
        self._roots: dict[bytes, Node] = {}
        self._nodes: dict[int, Node] = {}  # by page
        self._emptied: list[int] = []
        self._num_releases = 0

    def root(self, request: Request) -> Node:
        namespace = _namespace(self._revision, request)
        return self._roots.setdefault(namespace, Node(namespace))

    def insert(self, parent: Node, label: Label, page: int) -> Node:
        """The child of `parent` for `label`, locked: the one that the tree has (then `page` is freed), or a new one."""
        child = parent.children.get(label)
        if child is None:
            entry = PrefixEntry(self._hash(_block(parent, label)), parent.namespace, parent.entry, (label[0],), label[1])
            child = Node(parent.namespace, parent, page, entry, parent.depth + 1)
            parent.children[label] = self._nodes[page] = child
            self.num_unlocked += 1
        else:
            self.give_back((page,))
        self.lock(child)
        return child

    def lock(self, node: Node) -> None:
        """Locks `node`; its ancestors are locked by the same sequence already."""
        self.num_unlocked -= node.locks == 0
        node.locks += 1

    def unlock_path(self, deepest: Node) -> None:
        self._num_releases += 1
        node: Node | None = deepest
        while node is not None and node.entry is not None:
            node.locks -= 1
            node.released_at = self._num_releases
            self.num_unlocked += node.locks == 0
            node = node.parent

    def take(self, num_pages: int) -> tuple[int, ...]:
        return tuple(self.free.popleft() for _ in range(num_pages))

    def give_back(self, pages: tuple[int, ...]) -> None:
        self.free.extend(pages)
        self._emptied.extend(pages)

    def take_emptied(self) -> tuple[int, ...]:
        """Pages that became empty since the last call: they are to be poisoned."""
        emptied, self._emptied = tuple(self._emptied), []
        return emptied

    def make_room(self, num_pages: int) -> tuple[int, ...]:
        """If fewer pages are free, evicts what is missing or an eighth of the pool; the evicted pages in order.

        Unlocked leaves go first by the time of their last unlocking. A parent's is never before its child's, so taking
        the oldest leaf again and again is least recently used order over the whole tree, tail before head.
        """
        missing = num_pages - len(self.free)
        goal = max(missing, self.num_pages // 8) if missing > 0 else 0
        evicted: list[int] = []
        while len(evicted) < goal and (leaf := min(self._unlocked_leaves(), key=_age, default=None)) is not None:
            self._evict(leaf)
            evicted.append(leaf.page)
        self.give_back(tuple(evicted))
        return tuple(evicted)

    def _unlocked_leaves(self) -> Iterator[Node]:
        return (node for node in self._nodes.values() if node.locks == 0 and not node.children)

    def _evict(self, leaf: Node) -> None:
        del self._nodes[leaf.page]
        self.num_unlocked -= 1
        if leaf.parent is not None and leaf.entry is not None:
            del leaf.parent.children[leaf.entry.tokens[0], leaf.entry.media]

    def entries(self) -> dict[int, PrefixEntry]:
        return {page: node.entry for page, node in self._nodes.items() if node.entry is not None}


def _age(node: Node) -> tuple[int, int]:
    return node.released_at, -node.depth


# The key, by docs/prefix-key.md, for a block of one token and without adapters.


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _field(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return _u32(len(data)) + data


def _namespace(revision: str, request: Request) -> bytes:
    return b"assay/namespace/1" + b"".join(map(_field, (revision, request.tenant, request.cache_salt))) + b"\x00"


def _block(parent: Node, label: Label) -> bytes:
    token, media = label
    tag, before = (b"\x00", parent.namespace) if parent.entry is None else (b"\x01", parent.entry.key)
    items = b"".join(_field(digest) + offset.to_bytes(8, "little", signed=True) + _u32(n) for digest, offset, n in media)
    return b"assay/block/1" + tag + _u32(len(before)) + before + _u32(1) + _u32(token) + _u32(len(media)) + items
