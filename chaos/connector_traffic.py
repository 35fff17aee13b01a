"""What the engines of a connector storm do: the interface to the storm, and a first traffic without an engine.

Owns requests and the judgement of every instant at the engines' ends (DI-3, DI-4, DI-5, and what only real connections show).
Never strikes, and never looks into the store.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple, Protocol

from chaos.connector_account import Account, Sight
from chaos.connector_tap import Tap
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import State
from engine_under_test.distributed.tcp import TcpConfig, TcpTransport
from engine_under_test.seams import Clock
from properties.invariants.predicate import violation
from properties.invariants.transfers import RemoteTransfer, TransferMoment
from properties.kv_end import KvEnd, KvViolation, Law
from properties.kv_sizes import on_wall_clock
from properties.verdict import Violation

PATIENCE_S = 10.0  # where a wall clock judges, this is added to what was promised
BLOCK_BYTES = 16 << 10
FAMILIES, LONGEST = 14, 8  # more blocks than the store holds
_PROBE = 1_000_000  # families from here on are asked for behind the storm
_NUM_BLOCKS = 48
STORE_WINDOW_BYTES = 8 << 20  # of `assay kv-store`
CONFIG = on_wall_clock(BLOCK_BYTES)
_IN_TIME = (  # reasons to close a connection that no fault of these would give a correct engine or store another one for
    "the store did not welcome within",
    "was not answered",
    "the engine restarted",
    "the engine hangs up",
    "the handshake must end within",
    "a frame must end within",
    "what is sent must be read within",
)


def is_of_time(reason: str) -> bool:
    """A connection ended because somebody waited too long, or wished to; and not because anything wrong was said on it."""
    return any(each in reason for each in _IN_TIME)


@functools.lru_cache(maxsize=4096)
def content_of(key: bytes) -> bytes:
    """The law: what computing the block of this key gives."""
    return hashlib.shake_256(key).digest(BLOCK_BYTES)


def judge_connection(who: str, connector: Connector, tap: Tap) -> Violation | None:
    """What holds between two steps of an engine on a real connection: every word on it was legal and whole, nothing was sent
    beyond its credit, and whatever outlived an earlier connection was said again behind the welcome."""
    for reason in tap.own_closes:
        if not is_of_time(reason):
            return violation("DI-3", f"a connection of {who}", f"closed: {reason}", "every word on it legal and whole")
    for number, each in tap.transfers.items():
        if each.opened.is_store and each.moved > each.granted:
            return violation("DI-5", f"store {number} of {who}", f"{each.moved} bytes sent", f"at most {each.granted}")
    is_open = connector.session is State.OPEN and tap.connection is not None
    if is_open and (mute := [number for number in connector.transfers if number not in tap.transfers]):
        found = f"not said again over connection {tap.connection}"
        return violation("DI-3", f"transfers {mute} of {who}", found, "said again behind the welcome")
    return None


def totals_of(connector: Connector, tap: Tap) -> Counter[str]:
    """What happened at one engine's end."""
    counters = connector.counters
    return Counter(
        {
            "loads": counters.loads,
            "loaded blocks": counters.loaded_blocks,
            "loads cut": counters.cut,
            "stores": counters.stores,
            "stored blocks": counters.stored_blocks,
            "transfers aborted": counters.aborted,
            "connections lost": counters.connections_lost,
            "stores that ended over a later connection": len(tap.said_again),
        }
    )


def remotes_of(tap: Tap) -> tuple[RemoteTransfer, ...]:
    """The other end's columns, as far as what was said and heard on the connection tells."""
    return tuple(
        RemoteTransfer(number, each.opened.is_store, (), each.granted, each.moved) for number, each in tap.transfers.items()
    )


def _shown(found: object, expected: object) -> tuple[object, object]:
    """Nobody reads kilobytes: equal or not is kept, and a digest of what differs."""
    if found == expected:
        return "", ""
    one, other = (f"content {hashlib.sha256(repr(each).encode()).hexdigest()[:8]}" for each in (found, expected))
    return one, other


def tapped(who: str, address: tuple[str, int], account: Account, block_bytes: int = BLOCK_BYTES) -> Tap:
    """An engine's end of a connection; little buffers, so that frames leave in pieces and bulk data has to wait."""
    config = TcpConfig(
        *address, congested_bytes=4 * block_bytes, kernel_bytes=8 << 10, retry_s=0.02, retry_most_s=0.2, connect_s=1.0
    )
    return Tap(TcpTransport(config, account.clock), who, account)


class Stalls:
    """Which engines stand still. One that is told to does so for ``lasts_s`` whenever a transfer of it has blocks to move, and
    then steps for as long, until it is told to end."""

    def __init__(self, clock: Clock, lasts_s: float) -> None:
        self._clock = clock
        self._lasts_s = lasts_s
        self._began: dict[int, float | None] = {}  # by engine; None: it will, as soon as it is busy

    def begin(self, engine: int) -> None:
        self._began.setdefault(engine, None)

    def end(self) -> None:
        self._began.clear()

    def stands_still(self, engine: int, connector: Connector) -> bool:
        if engine not in self._began:
            return False
        now, began = self._clock.now(), self._began[engine]
        if began is not None and now - began > 2 * self._lasts_s:
            began = None
        if began is None and any(each.state in (State.OFFERED, State.MOVING) for each in connector.transfers.values()):
            began = now
        self._began[engine] = began
        return self.is_still(engine)

    def is_still(self, engine: int) -> bool:
        """Nobody can ask it for anything now."""
        began = self._began.get(engine)
        return began is not None and self._clock.now() - began < self._lasts_s


class Traffic(Protocol):
    """Engines and their users, as the storm drives them. Each verb raises KvViolation as soon as something does not hold."""

    @property
    def taps(self) -> Sequence[Tap]: ...
    @property
    def evaluations(self) -> Counter[str]: ...
    @property
    def block_bytes(self) -> int: ...
    def law(self) -> Law:
        """What each key that an engine spoke of stands for."""

    def act(self) -> None:
        """The next operation of the workload."""

    def turn(self) -> None:
        """One step of every engine."""

    def hang_up(self) -> None:
        """Every engine closes its connection."""

    @property
    def is_connected(self) -> bool:
        """Every engine has been welcomed."""

    @property
    def is_idle(self) -> bool:
        """Nobody waits, nothing is under way."""

    def probe(self, number: int) -> bool:
        """Behind the storm, while idle: something that must succeed now. False if there is no such number."""

    def end(self) -> None:
        """Everything has come to its end: nothing is left over."""

    def reached(self) -> Counter[str]:
        """Totals of what happened."""


class LinkEnd(KvEnd):
    """An engine's memory around a connector on a real connection. ``promised_s``: within which a request ends."""

    def __init__(self, who: str, address: tuple[str, int], account: Account) -> None:
        super().__init__(_NUM_BLOCKS, BLOCK_BYTES, content_of)
        self.who = who
        self.promised_s = CONFIG.load_deadline_s + PATIENCE_S
        self.tap = tapped(who, address, account)
        self.connector = Connector(CONFIG, self, self.tap, account.clock, hashlib.sha256(who.encode()).digest()[:16])
        self._began: dict[str, float] = {}

    def begin(self, name: str, family: int, num_blocks: int) -> None:
        self._began[name] = self.tap.account.clock.now()
        if len(self.free) < LONGEST:
            self.forget()
        super().begin(name, family, num_blocks)

    def judge(self, *, is_quiet: bool = False, held_up: Sequence[int] = ()) -> None:
        for told in self.told:
            self.tap.account.note(self.who, Sight.TOLD, words=told.request)
        super().judge(is_quiet=is_quiet, held_up=held_up)
        if found := judge_connection(self.who, self.connector, self.tap) or self._of_time():
            raise KvViolation(found)

    def moment(self, *, is_quiet: bool = False, held_up: Sequence[int] = ()) -> TransferMoment:
        """The columns of the other end are what was said and heard on the connection."""
        seen = super().moment(is_quiet=is_quiet, held_up=held_up)
        numbers = self.tap.may_still_write()
        return replace(
            seen,
            store_window_bytes=STORE_WINDOW_BYTES,
            remotes=remotes_of(self.tap),
            under_way={number: self._accepted[number] for number in numbers if number in self._accepted},
            content={block: _shown(*pair) for block, pair in seen.content.items()},
            told=tuple(each._replace(found=found, expected=due) for each in seen.told for found, due in [_shown(*each[1:])]),
        )

    def _of_time(self) -> Violation | None:
        now = self.tap.account.clock.now()
        self._began = {name: at_s for name, at_s in self._began.items() if name in self.requests}
        for name, began_s in self._began.items():
            if now - began_s > self.promised_s:
                found = f"it waits for {now - began_s:.1f} s, for load {self.requests[name].transfer}"
                return violation("DI-3", f"request {name} of {self.who}", found, f"an end within {self.promised_s:g} s")
        return None


class _Op(NamedTuple):
    kind: str
    engine: int
    family: int
    length: int


def draw_op(chance: Random, num_engines: int) -> _Op:
    """One operation of the workload; families that are asked for often, and some that are not."""
    kind = chance.choices(("begin", "abort", "forget", "restart"), (60, 12, 6, 3))[0]
    family = min(chance.randrange(FAMILIES), chance.randrange(FAMILIES))
    return _Op(kind, chance.randrange(num_engines), family, chance.randint(2, LONGEST))


class KvTraffic:
    """Engines without a scheduler: each request asks the store for its prefix, waits, and computes what did not come."""

    def __init__(self, seed: int, addresses: Sequence[tuple[str, int]], account: Account, stalls: Stalls) -> None:
        self._stalls = stalls
        self.ends = [LinkEnd(f"engine {number}", address, account) for number, address in enumerate(addresses)]
        self.taps: Sequence[Tap] = [end.tap for end in self.ends]
        self._account = account
        self._chance = Random(f"connector traffic/{seed}")
        self._number = 0
        self._loaded = [0] * len(addresses)
        self._probing_s = 0.0

    @property
    def evaluations(self) -> Counter[str]:
        return sum((end.evaluations for end in self.ends), Counter())

    @property
    def block_bytes(self) -> int:
        return BLOCK_BYTES

    def law(self) -> Law:
        return content_of

    def act(self) -> None:
        op = draw_op(self._chance, len(self.ends))
        end = self.ends[op.engine]
        self._number += 1
        if self._stalls.is_still(op.engine):
            return
        words = op.kind
        if op.kind == "begin":
            words = f"asks for {op.length} blocks of family {op.family}"
            end.begin(f"r{self._number}", op.family, op.length)
        elif op.kind == "abort" and end.requests:
            name = list(end.requests)[op.family % len(end.requests)]
            words = f"aborts {name}"
            end.abort(name)
        elif op.kind == "forget":
            end.forget()
        elif op.kind == "restart":
            end.restart()
        self._account.note(end.who, Sight.ACTED, words=words)

    def turn(self) -> None:
        for number, end in enumerate(self.ends):
            if not self._stalls.stands_still(number, end.connector):
                end.step(self._chance.choice((99, 99, 99, 2)))

    def hang_up(self) -> None:
        for tap in self.taps:
            tap.close("the engine hangs up")

    @property
    def is_connected(self) -> bool:
        return all(end.connector.session is State.OPEN for end in self.ends)

    @property
    def is_idle(self) -> bool:
        return self.is_connected and not any(end.requests or end.connector.transfers for end in self.ends)

    def probe(self, number: int) -> bool:
        """The first engine stores what nobody had, and each other one loads it. Again, with other content, while the store may
        still hold what connections that are gone left behind."""
        attempt, place = divmod(number, len(self.ends))
        if not place:
            now = self._account.clock.now()
            self._probing_s = self._probing_s or now
            loaded = [end.num_loaded - before for end, before in zip(self.ends[1:], self._loaded[1:], strict=True)]
            if attempt and set(loaded) == {LONGEST}:
                return False
            if now - self._probing_s > self.ends[0].promised_s:
                found = f"engines {loaded} blocks of what another one stored"
                raise KvViolation(violation("DI-3", "behind the storm", found, f"{LONGEST} each"))
            self._loaded = [end.num_loaded for end in self.ends]
        end = self.ends[place]
        end.forget()
        end.begin(f"probe {number}", _PROBE + attempt, LONGEST)
        return True

    def end(self) -> None:
        for end in self.ends:
            end.forget()
            end.judge(is_quiet=True)
            if left := end.left_over():
                raise KvViolation(violation("DI-3", f"{end.who} behind the drain", left, "nothing is left"))

    def reached(self) -> Counter[str]:
        """Totals of the connectors."""
        total = Counter[str]()
        for end in self.ends:
            total += totals_of(end.connector, end.tap)
        return total
