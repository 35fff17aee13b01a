"""The engine's end of KV transfers: a pool of blocks that requests and transfers hold, around a real connector.

Owns requests that wait for a load or compute, and the columns of a `TransferMoment` that this end can see. Content is a law of
its key, so that any wrong byte that becomes visible is seen. It has no scheduler: a request computes in one go. Knows neither
the store nor how messages travel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import Machine, State
from properties.invariants.predicate import violation
from properties.invariants.transfers import (
    ClientTransfer,
    Told,
    TransferMoment,
    Write,
    first_violation,
    writes_land_in_blocks_of_their_transfer,
)
from properties.verdict import Violation

Law = Callable[[bytes], bytes]


@dataclass(slots=True, eq=False)
class WaitingRequest:
    """``blocks``: those it holds. ``transfer``: the load that it waits for."""

    name: str
    keys: tuple[bytes, ...]
    blocks: list[int] = field(default_factory=list)
    transfer: int | None = None


def key_of(family: int, place: int) -> bytes:
    return f"family {family} block {place}".encode()


class KvEnd:
    """See the module; also the connector's `KvPages`. Every verb ends with the sentences on the instant that it made.

    ``law``: what computing the block of a key gives. Whoever builds it hands in the connector behind the construction.
    """

    connector: Connector

    def __init__(self, num_blocks: int, block_bytes: int, law: Law) -> None:
        self.law = law
        self.poison = b"\xff" * block_bytes
        self.free = list(range(1, num_blocks + 1))
        self.content = dict.fromkeys(range(1, num_blocks + 1), self.poison)
        self.holds: Counter[int] = Counter()  # block -> requests
        self.pins: Counter[int] = Counter()
        self.visible: dict[bytes, int] = {}  # key -> block, held by the cache until `forget`
        self.requests: dict[str, WaitingRequest] = {}
        self.told: list[Told] = []
        self.answers: Counter[int] = Counter()
        self.aborted: set[int] = set()
        self.num_loaded = 0
        self.evaluations: Counter[str] = Counter()
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
            self.content[block] = self.poison
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
            found.append(self.law(key))
            if block := self.take(1):
                self.content[block[0]] = self.law(key)
                request.blocks += block
                self._publish(key, block[0])
                computed.append((key, block[0]))
        if computed:
            self.connector.store([key for key, _ in computed], [block for _, block in computed])
        del self.requests[request.name]
        self._drop(request.blocks)
        self.told.append(Told(request.name, b"".join(found), b"".join(map(self.law, request.keys))))

    def restart(self) -> None:
        """The engine dies and comes back: memory is empty, requests begin again."""
        self.pins.clear()
        self.holds.clear()
        self.visible.clear()
        self.free = sorted(self.content)
        self.content = dict.fromkeys(self.content, self.poison)
        self.connector.restart()
        for request in list(self.requests.values()):
            request.blocks, request.transfer = [], None
            self._compute(request)
        self.judge()

    # ---- what is seen -------------------------------------------------------------------------------------------------------

    def left_over(self) -> dict[str, object]:
        """What should not be there when everything has come to its end and the cache was emptied."""
        left: dict[str, object] = {
            "requests that wait": list(self.requests),
            "transfers that never end": list(self.connector.transfers),
            "blocks that did not come back": sorted(set(self.content) - set(self.free)),
        }
        return {name: each for name, each in left.items() if each}

    def moment(self, *, is_quiet: bool = False, held_up: Sequence[int] = ()) -> TransferMoment:
        """This instant, as far as the engine sees it."""
        connector = self.connector
        return TransferMoment(
            generation=connector.generation,
            window_bytes=connector.config.window_bytes,
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
            writes=tuple(self._writes),
            content={block: (self.content[block], self.law(key)) for key, block in self.visible.items()},
            answers=dict(self.answers),
            aborted=frozenset(self.aborted),
            told=tuple(self.told),
            is_quiet=is_quiet,
            held_up=held_up,
        )

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
