"""A small engine's memory around a real connector and a real store, with everything in sight.

Owns a pool of blocks that requests and transfers hold, requests that wait for a load or compute, and the `TransferMoment` of
every instant. Content is a law of its key, so that any wrong byte that becomes visible is seen. It has no scheduler: a request
computes in one go.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector, ConnectorConfig
from engine_under_test.distributed.protocol import Machine, State
from engine_under_test.distributed.store_pool import StoredBlock, StorePool
from engine_under_test.distributed.store_session import StoreLimits, StoreShelf
from properties.invariants.predicate import violation
from properties.invariants.transfers import (
    ClientTransfer,
    RemoteTransfer,
    Told,
    TransferMoment,
    Write,
    first_violation,
    writes_land_in_blocks_of_their_transfer,
)
from properties.kv_link import Direction, Fate, KvLink, Lane
from properties.verdict import Violation

BLOCK_BYTES = 24
_POISON = b"\xff" * BLOCK_BYTES
LIMITS = StoreLimits(
    max_blocks=8,
    max_block_bytes=BLOCK_BYTES,
    max_transfers=6,
    window_bytes=2 * BLOCK_BYTES,
    max_staged_bytes=16 * BLOCK_BYTES,
    lease_s=10.0,
    abort_grace_s=4.0,
    completed_remembered=8,
)
CONFIG = ConnectorConfig(
    BLOCK_BYTES,
    window_bytes=3 * BLOCK_BYTES,
    max_loads=4,
    max_stores=3,
    load_deadline_s=20.0,
    store_deadline_s=40.0,
    handshake_s=6.0,
    abort_grace_s=4.0,
    blocks_per_step=2,
)


def key_of(family: int, place: int) -> bytes:
    return f"family {family} block {place}".encode()


def content_of(key: bytes) -> bytes:
    """The law: what computing the block of this key gives."""
    return hashlib.sha256(key).digest()[:BLOCK_BYTES]


class HandClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """``blocks``: those it holds. ``transfer``: the load that it waits for."""

    name: str
    keys: tuple[bytes, ...]
    blocks: list[int] = field(default_factory=list)
    transfer: int | None = None


class KvWorld:
    """See the module; also the connector's `KvPages`. Every verb ends with the sentences on the instant that it made."""

    def __init__(self, *, num_blocks: int = 14, capacity_blocks: int = 10, token: bytes = b"") -> None:
        self.clock = HandClock()
        self.pool = StorePool(capacity_blocks * BLOCK_BYTES)
        self.shelf = StoreShelf(self.pool, b"s" * 16, LIMITS, token)
        self.link = KvLink(self.shelf, self.clock)
        self.connector = Connector(replace(CONFIG, token=token), self, self.link, self.clock, b"e" * 16)
        self.free = list(range(1, num_blocks + 1))
        self.content = dict.fromkeys(range(1, num_blocks + 1), _POISON)
        self.holds: Counter[int] = Counter()  # block -> requests
        self.pins: Counter[int] = Counter()
        self.visible: dict[bytes, int] = {}  # key -> block, held by the cache until `forget`
        self.requests: dict[str, WaitingRequest] = {}
        self.told: list[Told] = []
        self.answers: Counter[int] = Counter()
        self.aborted: set[int] = set()
        self.committed: set[bytes] = set()
        self.rotten: set[bytes] = set()  # keys whose bytes the store's memory lost
        self.num_loaded = 0
        self.evaluations: Counter[str] = Counter()
        self.has_lost = False  # a message was lost, so that only time ends its transfer
        self._writes: list[Write] = []
        self._accepted: dict[int, tuple[int, ...]] = {}  # load -> its blocks

    # ---- KvPages ----------------------------------------------------------------------------------------------------------

    def pin(self, blocks: Sequence[int]) -> None:
        self.pins.update(blocks)

    def unpin(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            if self.pins[block] <= 0:
                raise KvViolation(violation("DI-3", f"block {block}", "an unpin", "a pin before it"))
            self.pins[block] -= 1
            self._let_go(block)

    def read(self, block: int) -> bytes:
        return self.content[block]

    def write(self, block: int, data: bytes) -> None:
        writer = next(
            (each.number for each in self.connector.transfers.values() if block in each.blocks and not each.opened.is_store), 0
        )
        self._writes = [Write(writer, self.connector.generation, block)]
        if found := writes_land_in_blocks_of_their_transfer(self.moment()):  # now: its transfer may end within this step
            raise KvViolation(found)
        self._writes.clear()
        self.content[block] = data

    # ---- memory -----------------------------------------------------------------------------------------------------------

    def take(self, count: int) -> list[int]:
        """Up to `count` blocks for a request."""
        taken, self.free = self.free[:count], self.free[count:]
        self.holds.update(taken)
        return taken

    def _drop(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self.holds[block] -= 1
            self._let_go(block)

    def _let_go(self, block: int) -> None:
        if not self.holds[block] and not self.pins[block] and block not in self.free:
            self.content[block] = _POISON
            self.free.append(block)

    def forget(self) -> None:
        """The engine's own cache is emptied."""
        blocks = list(self.visible.values())
        self.visible.clear()
        self._drop(blocks)
        self.judge()

    # ---- requests ---------------------------------------------------------------------------------------------------------

    def begin(self, name: str, family: int, num_blocks: int) -> None:
        """A request comes: it waits for a remote hit, if the connector says so, or computes."""
        request = WaitingRequest(name, tuple(key_of(family, place) for place in range(num_blocks)))
        self.requests[name] = request
        if any(key not in self.visible for key in request.keys):
            request.transfer = self.connector.ask(name, request.keys)
        if request.transfer is None:
            self._compute(request)
        self.judge()

    def abort(self, name: str) -> None:
        request = self.requests.pop(name)
        if request.transfer is not None:
            if not self.answers[request.transfer]:
                self.aborted.add(request.transfer)
            self.connector.abort(request.transfer)
        self._drop(request.blocks)
        self.judge()

    def step(self, most_accepted: int = 99) -> None:
        """The engine steps: hits are accepted, answers are applied, requests that have theirs compute the rest."""
        self.connector.step()
        for hit in self.connector.take_hits():
            request = self.requests[str(hit.owner)]
            blocks = self.take(min(hit.num_blocks, most_accepted))
            if blocks and self.connector.accept(hit.transfer, blocks):
                request.blocks = blocks
                self._accepted[hit.transfer] = tuple(blocks)
            else:
                self._drop(blocks)
                self.aborted.add(hit.transfer)
                self.connector.abort(hit.transfer)
                request.transfer = None
                self._compute(request)
        for answer in self.connector.take_answers():
            self.answers[answer.transfer] += 1
            self.num_loaded += answer.num_blocks
            waiting = self.requests.get(str(answer.owner))
            if waiting is None or waiting.transfer != answer.transfer:  # told again, or for nobody
                self.judge()
                raise KvViolation(violation("DI-3", f"load {answer.transfer}", "an answer for nobody", "one for whoever waits"))
            self._drop(waiting.blocks[answer.num_blocks :])
            del waiting.blocks[answer.num_blocks :]
            for key, block in zip(waiting.keys, waiting.blocks, strict=False):
                self._publish(key, block)
            waiting.transfer = None
            self._compute(waiting)
        self.judge()

    def _publish(self, key: bytes, block: int) -> None:
        if key not in self.visible:
            self.visible[key] = block
            self.holds[block] += 1

    def _compute(self, request: WaitingRequest) -> None:
        """What is not loaded is computed, and what was computed is stored behind; the request ends with its output."""
        found = [self.content[block] for block in request.blocks]
        computed: list[tuple[bytes, int]] = []
        for key in request.keys[len(request.blocks) :]:
            if key in self.visible:
                found.append(self.content[self.visible[key]])
                continue
            found.append(content_of(key))
            if block := self.take(1):
                self.content[block[0]] = content_of(key)
                request.blocks += block
                self._publish(key, block[0])
                computed.append((key, block[0]))
        if computed:
            self.connector.store([key for key, _ in computed], [block for _, block in computed])
        del self.requests[request.name]
        self._drop(request.blocks)
        self.told.append(Told(request.name, b"".join(found), b"".join(map(content_of, request.keys))))

    def restart(self) -> None:
        """The engine dies and comes back: memory is empty, requests begin again."""
        self.pins.clear()
        self.holds.clear()
        self.visible.clear()
        self.free = sorted(self.content)
        self.content = dict.fromkeys(self.content, _POISON)
        self.connector.restart()
        for request in list(self.requests.values()):
            request.blocks, request.transfer = [], None
            self._compute(request)
        self.judge()

    # ---- the link and the store ---------------------------------------------------------------------------------------------

    def deliver(self, lane: Lane, fate: Fate = Fate.ARRIVES) -> None:
        if fate is Fate.LOST:
            self.has_lost = True
        elif lane[0] is Direction.TO_STORE:
            self._note_committed(self.link.head(lane))
        self.link.deliver(lane, fate)
        self.link.run_store()
        self.judge()

    def _note_committed(self, data: bytes) -> None:
        """The END of a store arrives: its keys may become visible."""
        message = m.decode(data)
        if isinstance(message, m.End) and self.link.session is not None:
            transfer = self.link.session.transfers.get(message.transfer)
            self.committed.update(() if transfer is None else transfer.opened.keys)

    def tick_store(self) -> None:
        self.link.tick_store()
        self.link.run_store()
        self.judge()

    def rot(self, key: bytes) -> None:
        """The store's memory loses a bit of a block."""
        block = self.pool.get(key)
        if block is not None:
            self.rotten.add(key)
            spoiled = bytes([block.data[0] ^ 1]) + block.data[1:]
            self.pool._blocks[key] = StoredBlock(block.digest, spoiled)

    def settle(self, *, held_up: Sequence[int] = (), most: int = 400) -> None:
        """Everything arrives and every step is taken, but for what is held up; ends when nothing moves any more."""
        for _ in range(most):
            self.link.connect()
            self.step()
            self.link.run_store()
            lanes = [lane for lane in self.link.lanes if lane[1] not in held_up]
            if not lanes and not self._has_work(held_up):
                break
            for lane in lanes:
                if lane in self.link.lanes:
                    self.deliver(lane)
        self.judge(is_quiet=not (self.has_lost or self.link.is_congested), held_up=held_up)

    def drain(self, rounds: int = 40) -> None:
        """Faults are over: everything arrives, time passes, everything ends."""
        self.link.is_congested = False
        for _ in range(rounds):
            self.settle()
            if not self.connector.transfers and not self.requests and not self.pool.pinned:
                break
            self.clock.time += 3.0
            self.tick_store()
        self.forget()
        session = self.link.session
        left = {
            "requests that wait": list(self.requests),
            "transfers that never end": list(self.connector.transfers),
            "pins of the store": list(self.pool.pinned),
            "bytes staged for nobody": session.staged_bytes if session is not None else 0,
            "blocks that did not come back": sorted(set(self.content) - set(self.free)),
        }
        if found := {name: each for name, each in left.items() if each}:
            raise KvViolation(violation("DI-3", "behind the drain", found, "nothing is left"))

    def _has_work(self, held_up: Sequence[int]) -> bool:
        if self.connector.session is not State.OPEN:
            return True
        if self.link.is_congested:
            return False
        return any(
            each.state is State.MOVING
            and each.opened.is_store
            and each.number not in held_up
            and (each.moved < each.granted or each.next_index == len(each.opened.keys))
            for each in self.connector.transfers.values()
        )

    # ---- what is seen -------------------------------------------------------------------------------------------------------

    def moment(self, *, is_quiet: bool = False, held_up: Sequence[int] = ()) -> TransferMoment:
        session, connector = self.link.session, self.connector
        remotes = () if session is None else tuple(session.transfers.items())
        stored = {key: self.pool._blocks[key] for key in self.pool._blocks}
        return TransferMoment(
            generation=connector.generation,
            window_bytes=CONFIG.window_bytes,
            store_window_bytes=LIMITS.window_bytes,
            pins=+self.pins,
            free=tuple(self.free),
            clients=tuple(
                ClientTransfer(
                    each.number,
                    connector.generation,
                    each.machine is Machine.STORE_SOURCE,
                    each.state is State.ABORTING,
                    each.blocks,
                    len(each.opened.keys),
                    each.granted,
                    each.moved,
                    any(request.transfer == each.number for request in self.requests.values()),
                )
                for each in connector.transfers.values()
            ),
            remotes=tuple(
                RemoteTransfer(number, each.opened.is_store, each.pinned, each.granted, each.moved) for number, each in remotes
            ),
            remote_pins=self.pool.pinned,
            under_way=self._under_way(),
            writes=tuple(self._writes),
            content={block: (self.content[block], content_of(key)) for key, block in self.visible.items()},
            remote={
                key: (block.data, content_of(key)) if key not in self.rotten else ("rotten", "rotten")
                for key, block in stored.items()
            },
            committed=self.committed,
            answers=dict(self.answers),
            aborted=frozenset(self.aborted),
            told=tuple(self.told),
            is_quiet=is_quiet,
            held_up=held_up,
        )

    def _under_way(self) -> dict[int, tuple[int, ...]]:
        """Loads of which a block is on its way to the engine, or may be sent with the credit that the store has."""
        session = self.link.session
        sending = (
            []
            if session is None
            else [
                number for number, each in session.transfers.items() if each.state is State.MOVING and not each.opened.is_store
            ]
        )
        coming = [number for direction, number in self.link.lanes if direction is Direction.TO_ENGINE]
        numbers = [*sending, *(each for each in coming if self.link.has_block((Direction.TO_ENGINE, each)))]
        return {number: self._accepted[number] for number in numbers if number in self._accepted}

    def judge(self, *, is_quiet: bool = False, held_up: Sequence[int] = ()) -> None:
        moment = self.moment(is_quiet=is_quiet, held_up=held_up)
        found = first_violation(moment)
        self.evaluations["DI-3"] += bool(moment.clients or moment.remotes or moment.content)
        self.evaluations["DI-4"] += len(moment.told)
        self.evaluations["DI-5"] += len(moment.clients)
        self.told.clear()
        if found is not None:
            raise KvViolation(found)


class KvViolation(AssertionError):
    """A sentence on transfers does not hold."""

    def __init__(self, found: Violation) -> None:
        super().__init__(f"{found.invariant} {found.name}: {found.sentence}")
        self.violation = found
