"""What committed content each block holds, and what the prefix cache owes: an infinite memory, judged in dicts.

Owns contents (interned), which block holds which, and which of them a look-up must find. Knows nothing of hashes inside an
engine: keys are recomputed from docs/prefix-key.md. It learns from plans and results that were committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from engine_under_test.caps import Caps
from engine_under_test.types import PrefixEntry, Request
from models.allocator_model import Key
from models.prefix_key import BlockMedia, block_encoding, block_media, namespace
from properties.moment import ChoiceFacts, Content

_MEMO_LIMIT = 50_000
_ContentKey = tuple[bytes, Content | None, tuple[int, ...], BlockMedia]


class PrefixModel:
    """Contents and obligations.

    A block is *obliged* while its content must be found: committed by a choice that began after the last reset, and it and
    each of its ancestors held by some block that was neither evicted nor reset since (KV-15). A target that evicts on demand
    does not show when, so nothing is owed there.
    """

    def __init__(self, caps: Caps, hasher: Callable[[bytes], bytes] | None) -> None:
        self._caps = caps
        self._hasher = hasher
        self._owes = caps.has_prefix_cache and not caps.evicts_on_demand
        self._interned: dict[_ContentKey, Content] = {}
        self._children: dict[Content, list[Content]] = {}
        self._namespaces: dict[tuple[object, ...], bytes] = {}
        self._chains: dict[Key, tuple[bytes, list[Content]]] = {}  # of a choice: its namespace, and its blocks so far
        self._memo: dict[PrefixEntry, Content] = {}
        self._keys: dict[tuple[bytes, bool, tuple[int, ...], BlockMedia], bytes] = {}
        self.content_by_block: dict[int, Content] = {}
        self.hittable: dict[int, Content] = {}
        self._bases: dict[Content, list[int]] = {}  # the obliged blocks of a content, first committed first
        self._resets = 0
        self._born: dict[Key, int] = {}
        self._inherits: set[Key] = set()  # forked in their present epoch: they begin with their parent's blocks
        self.outdated: set[int] = set()  # blocks with content of a choice that began before the last reset

    # -- what happens ------------------------------------------------------------------------------------------

    def began(self, key: Key) -> None:
        """A choice begins (again): its later commits belong to the present cache generation; a fork's to its parent's, also
        where its first plan was lost and it is planned once more."""
        if key not in self._inherits:
            self._born[key] = self._resets

    def owes_hits(self, key: Key, facts: ChoiceFacts) -> int:
        """How many blocks a choice must find that begins its epoch now: as far as its content is owed, and something is left
        to compute. One that may still have to be forked stops one short of its prompt's end."""
        if not self._owes or not self._bases or key in self._inherits:
            return 0
        request = facts.request
        tokens = (*request.prompt, *facts.emitted)
        length = len(tokens) - 1 - (request.sampling.n > 1 and not facts.emitted)
        found = self.prompt_contents(request, tokens[: max(length, 0)])
        return next((number for number, content in enumerate(found) if content not in self._bases), len(found))

    def lacks_blocks(self, facts: ChoiceFacts) -> bool:
        """Whether a choice that waits could find more blocks than are found here, and something be left."""
        tokens = (*facts.request.prompt, *facts.emitted)
        length = len(tokens) - 1 - (facts.request.sampling.n > 1 and not facts.emitted)
        held = self.hittable.values()
        return any(content not in held for content in self.prompt_contents(facts.request, tokens[: max(length, 0)]))

    def forked(self, child: Key) -> None:
        self._inherits.add(child)
        self._born[child] = self._born.get((child[0], 0, child[2]), -1)

    def committed(self, key: Key, facts: ChoiceFacts, table: tuple[int, ...], start: int, end: int) -> None:
        """A row of a choice was confirmed: the blocks that became full with it hold committed content."""
        size = self._caps.block_size
        first, last = start // size, end // size
        if last <= first:
            return
        chain = self._chain(key, facts, last)
        is_present = self._born.get(key, -1) == self._resets
        is_owed = self._owes and is_present
        if not is_present:
            self.outdated.update(table[first:last])
        for place in range(first, last):
            self._put(table[place], chain[place], is_owed)

    def loaded(self, key: Key, facts: ChoiceFacts, blocks: tuple[int, ...], first: int) -> None:
        """These hold a choice's blocks from its `first` on, and came from elsewhere: they can be found from now on."""
        chain = self._chain(key, facts, first + len(blocks))
        for place, block in enumerate(blocks, start=first):
            self._put(block, chain[place], self._owes)

    def taken(self, blocks: tuple[int, ...]) -> None:
        """Blocks left the free queue to be written: whatever they held is gone."""
        for block in blocks:
            if block in self.content_by_block:
                del self.content_by_block[block]
                if block in self.hittable:
                    self._forgive(block)
                self.outdated.discard(block)

    def doubted(self, blocks: Collection[int], tables: Mapping[Key, tuple[int, ...]]) -> None:
        """What one of them holds is no good, and nobody knows which: nothing is owed for their contents any more, nor for what
        is committed behind them by whoever holds some of it."""
        owed = set(self.hittable)
        for content in {self.hittable[block] for block in blocks if block in self.hittable}:
            for block in tuple(self._bases.get(content, ())):
                self._forgive(block)
        forgiven = owed.difference(self.hittable)
        for key, table in tables.items():
            if not forgiven.isdisjoint(table):
                self._born[key] = -1

    def released(self, blocks: list[int], cached: Mapping[int, PrefixEntry]) -> None:
        """Nobody holds these any more. One of several equal blocks may be dropped, as long as another keeps the content."""
        for block in blocks:
            content = self.hittable.get(block)
            if content is not None and block not in cached and len(self._bases[content]) > 1:
                self._forgive(block)

    def emptied(self, blocks: list[int]) -> None:
        """For a target whose free list holds empty blocks only."""
        for block in blocks:
            self.content_by_block.pop(block, None)
            self.outdated.discard(block)

    def reset(self) -> None:
        self._resets += 1
        self.outdated.update(self.content_by_block)
        self.hittable.clear()
        self._bases.clear()

    def restarted(self) -> None:
        self.reset()
        self.content_by_block.clear()
        self.outdated.clear()
        self._born.clear()
        self._inherits.clear()

    def suspended(self, key: Key) -> None:
        self._inherits.discard(key)

    def ended(self, key: Key) -> None:
        self._chains.pop(key, None)
        self._born.pop(key, None)
        self._inherits.discard(key)

    # -- what is known -----------------------------------------------------------------------------------------

    def translate(self, entry: PrefixEntry) -> Content | None:
        known = self._memo.get(entry)
        if known is not None:
            return known
        parent = None
        if entry.parent is not None:
            parent = self.translate(entry.parent)
            if parent is None:
                return None
        content = self._interned.get((entry.namespace, parent, entry.tokens, entry.media))
        if content is not None:
            if len(self._memo) > _MEMO_LIMIT:
                self._memo.clear()
            self._memo[entry] = content
        return content

    def expected_key(self, entry: PrefixEntry) -> bytes | None:
        if self._hasher is None:
            return None
        parent = entry.parent
        content = (entry.namespace if parent is None else parent.key, parent is None, entry.tokens, entry.media)
        key = self._keys.get(content)
        if key is None:
            if len(self._keys) > _MEMO_LIMIT:
                self._keys.clear()
            key = self._keys[content] = self._hasher(block_encoding(*content))
        return key

    def prompt_contents(self, request: Request, tokens: tuple[int, ...]) -> tuple[Content, ...]:
        size = self._caps.block_size
        space = self._namespace(request)
        found: list[Content] = []
        parent: Content | None = None
        for start in range(0, len(tokens) - size + 1, size):
            media = block_media(request.media, start, size) if request.media else ()
            piece = (space, parent, tokens[start : start + size], media)
            parent = self._interned.get(piece)
            if parent is None:
                break
            found.append(parent)
        return tuple(found)

    # -- inside ------------------------------------------------------------------------------------------------

    def _namespace(self, request: Request) -> bytes:
        key = (request.tenant, request.cache_salt, request.adapter)
        space = self._namespaces.get(key)
        if space is None:
            space = self._namespaces[key] = namespace(self._caps.model_revision, request)
        return space

    def _chain(self, key: Key, facts: ChoiceFacts, length: int) -> list[Content]:
        """The contents of the first ``length`` blocks of a choice, interned as far as they are new."""
        request, size = facts.request, self._caps.block_size
        known = self._chains.get(key)
        if known is None:
            known = self._chains[key] = self._namespace(request), []
        space, chain = known
        if len(chain) >= length:
            return chain
        tokens = request.prompt if length * size <= len(request.prompt) else (*request.prompt, *facts.emitted)
        for start in range(len(chain) * size, length * size, size):
            parent = chain[-1] if chain else None
            media = block_media(request.media, start, size) if request.media else ()
            chain.append(self._intern((space, parent, tokens[start : start + size], media)))
        return chain

    def _intern(self, piece: _ContentKey) -> Content:
        content = self._interned.get(piece)
        if content is None:
            content = self._interned[piece] = Content(*piece)
            if content.parent is not None:
                self._children.setdefault(content.parent, []).append(content)
        return content

    def _put(self, block: int, content: Content, is_owed: bool) -> None:
        if self.content_by_block.get(block) is content and block in self.hittable:
            return
        if block in self.hittable:
            self._forgive(block)
        self.content_by_block[block] = content
        if is_owed and (content.parent is None or content.parent in self._bases):
            self.hittable[block] = content
            self._bases.setdefault(content, []).append(block)

    def _forgive(self, block: int) -> None:
        """Nothing is owed for the block any more; when it was the last of its content, nothing for the descendants."""
        content = self.hittable.pop(block, None)
        if content is None:
            return
        blocks = self._bases[content]
        blocks.remove(block)
        if not blocks:
            del self._bases[content]
            for child in self._children.get(content, ()):
                for below in tuple(self._bases.get(child, ())):
                    self._forgive(below)
