"""Where the prefix cache goes on in a remote pool: who waits for a load, and for how long the blocks of a transfer are held.

Owns the loads of waiting sequences, what is stored behind a commit, and the moves of blocks between the store of the runner and
the host. Never orders requests and never says what travels: that is the connector's business. Made by whoever composes an
engine, so that an engine without a remote pool imports none of this.

A block of a load is held twice, by its request (from the offer until it is published or given up) and by its transfer (until
the other end can no longer write it); neither lets go before the device's own reads and writes of it have been seen to end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Protocol

from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.content import content_key
from engine_under_test.distributed.transfers import KvPages, LoadAnswer, RemoteHit
from engine_under_test.errors import RunnerError
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.runner import Move, Mover
from engine_under_test.kv.prefix_index import media_in
from engine_under_test.kv.record import BlockTable
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.seams import Fence, Observer
from engine_under_test.sequence import Sequence

_STORED_SHARE, _HELD_SHARE = 0.375, 0.5  # of the pool: what stores hold at most, and loads together with them
_MOST_SOUGHT = 8  # waiting sequences, from the first on, that are asked for at a time


class View(Protocol):
    """What a search for remote prefixes may look at."""

    @property
    def waiting(self) -> Items[Sequence]: ...
    @property
    def running(self) -> Items[Sequence]: ...
    def hits(self, seq: Sequence) -> tuple[int, ...]: ...


@dataclass(slots=True, eq=False)
class Load:
    """One sequence's wait. ``first``: the place of the first block asked for. ``heads``: what stands before it, and ``blocks``:
    what it is loaded into, both held for the request. ``num_whole``: how many have arrived, once that is known."""

    seq: Sequence
    transfer: int
    first: int
    num_asked: int
    heads: tuple[int, ...] = ()
    blocks: tuple[int, ...] = ()
    num_whole: int | None = None


class RemotePrefixes:
    """See the module; also the connector's `KvPages`. ``layout``: how bytes of a block are to be read; engines that differ in
    it share nothing. ``view``: the engine's own."""

    def __init__(
        self,
        kv: KvTransaction,
        view: View,
        mover: Mover,
        connect: Callable[[KvPages], Connector],
        layout: bytes,
        observer: Observer | None = None,
    ) -> None:
        self._kv = kv
        self._view = view
        self._mover = mover
        self._layout = layout
        self._observe = observer
        self._loads: dict[int, Load] = {}  # by transfer; of sequences that wait
        self._published: list[tuple[BlockTable, int, int]] = []  # since the last commit
        self._reads: dict[int, Move] = {}  # by block, of stores that wait for its content
        self._moves: dict[int, list[Fence]] = {}  # by block: reads and writes that have not been seen to end
        self._leaving: deque[tuple[int, ...]] = deque()  # blocks that are to be let go of behind their moves
        self._heads: tuple[int, ...] = ()  # what stands before the blocks that are about to be stored or loaded
        self._wholes: dict[tuple[int, ...], list[tuple[int, ...]]] = {}  # what was pinned for what the connector pins
        self.connector = connect(self)
        kv.on_published = self._note

    # ---- for the engine ---------------------------------------------------------------------------------------------------

    @property
    def num_loading(self) -> int:
        """Sequences that wait for a load."""
        return len(self._loads)

    def step(self) -> int:
        """Lets transfers move, applies what has come, and asks for what the first waiting sequences, each once while it waits,
        could find there; the number of cached blocks that made room."""
        self.connector.step()
        self._settle()
        evicted = sum([self._accept(hit) for hit in self.connector.take_hits()])
        for answer in self.connector.take_answers():
            self._answer(answer)
        for load in [load for load in self._loads.values() if load.num_whole is not None]:
            if not any(block in self._moves for block in load.blocks[: load.num_whole]):
                self._publish(load)
        for seq in self._view.waiting[:_MOST_SOUGHT]:
            if not seq.has_asked and not seq.computes_whole_prompt:
                self._ask(seq)
        return evicted

    def leave(self, seq: Sequence) -> None:
        """The sequence does not wait any more, whatever the phase of its load."""
        if seq.load is not None:
            load = self._loads[seq.load]
            self.connector.abort(load.transfer)
            self._give_up(load)

    def store_published(self) -> None:
        """What the last commit made visible is stored behind, as far as there is room for it."""
        published, self._published = self._published, []
        for table, first, last in published:
            if self._kv.num_pinned + last > self._kv.pool.num_blocks * _STORED_SHARE:
                continue  # a link that stands still must not keep requests out
            keys = self._keys(table, last)[first:last]
            self._heads = table.blocks[:first]
            self.connector.store(keys, table.blocks[first:last])
        self._heads = ()

    def reset(self) -> None:
        """The cache was emptied: no load that was asked for before may become visible, and who waits may ask once more, as
        whoever comes from now on; so may who entered a plan that may still be lost, if it waits again."""
        for load in list(self._loads.values()):
            self.connector.abort(load.transfer)
            self._give_up(load)
        for seq in (*self._view.waiting, *self._view.running):
            seq.has_asked = False

    def restart(self) -> None:
        """Memory starts anew, pins included: what came for those that wait is gone, and they may ask once more."""
        for seq in self._view.waiting:
            seq.load, seq.has_asked = None, False
        self._loads.clear()
        self._published.clear()
        self._reads.clear()
        self._moves.clear()
        self._leaving.clear()
        self._wholes.clear()
        self.connector.restart()

    # ---- KvPages ----------------------------------------------------------------------------------------------------------

    def pin(self, blocks: Items[int]) -> None:
        """With what stands before them in their prefix: a head is not evicted before its tail."""
        whole = (*self._heads, *blocks)
        self._kv.pin(whole)
        self._wholes.setdefault(tuple(blocks), []).append(whole)

    def unpin(self, blocks: Items[int]) -> None:
        wholes = self._wholes[tuple(blocks)]
        self._let_go(wholes.pop())
        if not wholes:
            del self._wholes[tuple(blocks)]

    def read(self, block: int) -> bytes | None:
        """See `KvPages`."""
        move = self._reads.get(block)
        if move is None:
            move = self._reads[block] = self._mover.read_block(block)
            self._moves.setdefault(block, []).append(move.fence)
        if not move.fence.has_passed():
            return None
        del self._reads[block]
        data = move.data()
        if data is None:
            raise RunnerError(f"the store of block {block} is left out: what it holds is no number")
        return data

    def write(self, block: int, data: bytes) -> None:
        self._moves.setdefault(block, []).append(self._mover.write_block(block, data).fence)

    # ---- inside -----------------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Moves that were seen to end, and whoever waited for that."""
        for block, fences in list(self._moves.items()):
            left = [fence for fence in fences if not fence.has_passed()]
            if left:
                self._moves[block] = left
            else:
                del self._moves[block]
        for _ in range(len(self._leaving)):
            self._let_go(self._leaving.popleft())

    def _let_go(self, blocks: tuple[int, ...]) -> None:
        """A hold ends: at once, or behind the moves of these blocks that are under way."""
        for block in blocks:
            self._reads.pop(block, None)  # whoever holds it next wants what it holds then
        if any(block in self._moves for block in blocks):
            self._leaving.append(blocks)
        else:
            self._kv.unpin(blocks)

    def _ask(self, seq: Sequence) -> None:
        size = self._kv.block_size
        most = (seq.goal_len - 1) // size
        first = len(self._view.hits(seq))
        if first >= most:
            return
        transfer = self.connector.ask(seq.row_id, self._keys(seq.table, most)[first:])
        if transfer is not None:
            seq.has_asked = True
            seq.load = transfer
            self._loads[transfer] = Load(seq, transfer, first, most - first)
            self._tell(Event(EventKind.LOADING, seq.row_id, tokens=(most - first) * size))

    def _accept(self, hit: RemoteHit) -> int:
        """Takes blocks for what is offered: as many as leave one to each sequence that runs. The cached ones among them."""
        load = self._loads[hit.transfer]
        kv = self._kv
        room = min(kv.num_free - len(self._view.running), int(kv.pool.num_blocks * _HELD_SHARE) - kv.num_pinned)
        count = min(hit.num_blocks, load.num_asked)
        heads = self._view.hits(load.seq)[: load.first]
        claim = None
        if len(heads) == load.first and room - len(heads) >= 1:
            kv.pin(heads)  # or the load would evict what it stands behind
            load.heads = heads
            claim = kv.claim(min(count, room - len(heads)))
        if claim is None:
            self.connector.abort(hit.transfer)
            self._give_up(load)
            return 0
        load.blocks, evicted = claim
        self._heads = heads  # the transfer may hold its blocks for longer than the request does
        if not self.connector.accept(hit.transfer, load.blocks):
            self._give_up(load)  # its answer, none of it, has come or will
        self._heads = ()
        return evicted

    def _answer(self, answer: LoadAnswer) -> None:
        load = self._loads.get(answer.transfer)
        if load is None:
            return
        load.num_whole = answer.num_blocks
        if not answer.num_blocks:
            self._give_up(load)

    def _publish(self, load: Load) -> None:
        """What has arrived is found from now on."""
        assert load.num_whole is not None  # asked only then
        if not self._kv.publish_pinned(load.seq.table, load.first, load.blocks[: load.num_whole], load.seq.row_id):
            load.num_whole = 0
        self._give_up(load)

    def _give_up(self, load: Load) -> None:
        """The request's hold of the blocks ends; what was not published comes back empty."""
        del self._loads[load.transfer]
        load.seq.load = None
        self._tell(Event(EventKind.LOAD_ENDED, load.seq.row_id, tokens=(load.num_whole or 0) * self._kv.block_size))
        if load.heads or load.blocks:
            self._let_go((*load.heads, *load.blocks))

    def _note(self, table: BlockTable, first: int, last: int) -> None:
        self._published.append((table, first, last))

    def _tell(self, event: Event) -> None:
        if self._observe is not None:
            self._observe(event)

    def _keys(self, table: BlockTable, count: int) -> list[bytes]:
        """The content keys of the table's first ``count`` blocks, each computed once."""
        keys, size = table.content_keys, self._kv.block_size
        while len(keys) < count:
            start = len(keys) * size
            media = media_in(table.media, start, start + size) if table.media else ()
            tokens = table.tokens[start : start + size]
            keys.append(content_key(self._layout, table.namespace, keys[-1] if keys else b"", tokens, media))
        return keys
