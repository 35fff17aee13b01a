"""Operations on a `KvWorld` as values: drawn from a seed, run, shrunk, told.

Owns the vocabulary and its one interpreter. Each operation is total: where it does not apply it does nothing. Whatever fails is
a `Violation`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from properties.fewest import at_most, fewest
from properties.kv_end import KvViolation, key_of
from properties.kv_link import Fate
from properties.kv_world import KvWorld
from properties.verdict import Violation

_SECONDS: Final = (0.5, 3.0, 4.5, 9.0, 11.0, 21.0)
_WEIGHTS: Final = {
    "begin": 8,
    "begin to load": 12,
    "abort": 5,
    "step": 10,
    "deliver": 20,
    "lose": 1,
    "repeat": 3,
    "hurry": 8,
    "go on": 20,
    "wait": 3,
    "wait, and the store notices": 3,
    "cut": 3,
    "congest": 1,
    "relieve": 2,
    "turn deaf": 2,
    "listen": 3,
    "look away": 2,
    "rot": 1,
    "forget": 2,
    "restart": 1,
}
KINDS: Final = tuple(_WEIGHTS)
LENGTH: Final = 60


class KvOp(NamedTuple):
    """``one`` and ``two``: numbers of any size; each kind takes from them what it needs."""

    kind: str
    one: int
    two: int

    def __str__(self) -> str:
        return f"{self.kind} {self.one} {self.two}"


STORIES: Final[Mapping[str, tuple[KvOp, ...]]] = {
    "the lease runs out, then the connection is lost": (
        *(KvOp("begin to load", 1, 2), KvOp("wait", 4, 0), KvOp("step", 0, 0), KvOp("cut", 0, 0), KvOp("go on", 1, 0)),
    ),
    "aborted, then arrived": (KvOp("begin to load", 1, 2), KvOp("abort", 0, 0), KvOp("hurry", 1, 3), KvOp("step", 0, 0)),
    "aborted, and never arrived": (KvOp("begin to load", 1, 2), KvOp("abort", 0, 0), KvOp("wait", 2, 0), KvOp("step", 0, 0)),
    "a block is lost, the next ones come": (
        *(KvOp("begin to load", 1, 2), KvOp("lose", 0, 0), KvOp("hurry", 0, 3), KvOp("step", 0, 0), KvOp("cut", 0, 0)),
        KvOp("go on", 1, 0),
    ),
    "a block of a store is lost, the next ones come": (
        *(KvOp("begin", 1, 4), KvOp("go on", 3, 0), KvOp("step", 0, 0), KvOp("lose", 0, 0), KvOp("go on", 3, 0)),
        KvOp("go on", 3, 0),
    ),
    "a store takes too long, and is given up": (
        *(KvOp("begin", 1, 4), KvOp("go on", 3, 0), KvOp("step", 0, 0), KvOp("wait", 5, 0), KvOp("wait", 5, 0)),
        *(KvOp("step", 0, 0), KvOp("go on", 3, 0)),
    ),
    "no acknowledgement of a store ever comes": (
        *(KvOp("begin", 1, 0), KvOp("go on", 2, 0), KvOp("deliver", 1, 0), KvOp("step", 0, 0), KvOp("hurry", 1, 1)),
        *(KvOp("lose", 1, 0), KvOp("wait", 5, 0), KvOp("wait", 5, 0), KvOp("step", 0, 0), KvOp("step", 0, 0)),
    ),
    "nobody answers to the abort of a store": (
        *(KvOp("begin", 1, 4), KvOp("go on", 3, 0), KvOp("step", 0, 0), KvOp("wait", 5, 0), KvOp("wait", 5, 0)),
        *(KvOp("step", 0, 0), *(KvOp("lose", 0, 0),) * 6, KvOp("wait", 2, 0), KvOp("step", 0, 0), KvOp("step", 0, 0)),
    ),
    "a store whose connection is lost again and again is given up": (
        *(KvOp("begin", 1, 4), KvOp("go on", 2, 0), KvOp("cut", 0, 0), KvOp("wait", 5, 0), KvOp("go on", 3, 0)),
        *(KvOp("go on", 1, 0), KvOp("cut", 0, 0), KvOp("wait", 5, 0), KvOp("go on", 2, 0)),
    ),
    "a lease ends while nobody listens": (
        *(KvOp("begin to load", 1, 2), KvOp("turn deaf", 0, 0), KvOp("wait, and the store notices", 4, 0)),
        *(KvOp("go on", 3, 0), KvOp("listen", 0, 0), KvOp("go on", 2, 0)),
    ),
    "what was loaded goes last": (
        *(KvOp("begin", 1, 3), KvOp("go on", 3, 0), KvOp("go on", 3, 0), KvOp("begin to load", 1, 9), KvOp("go on", 3, 0)),
        *(KvOp("begin", 2, 5), KvOp("go on", 3, 0), KvOp("go on", 3, 0)),
    ),
    "what was said before does not renew a lease": (
        *(KvOp("begin to load", 1, 2), KvOp("step", 0, 0), KvOp("repeat", 0, 0), KvOp("wait", 3, 0), KvOp("deliver", 0, 0)),
        KvOp("wait, and the store notices", 2, 0),
    ),
    "what the store sends late renews its lease": (
        *(KvOp("begin to load", 1, 2), KvOp("step", 0, 0), KvOp("turn deaf", 0, 0), KvOp("deliver", 0, 0), KvOp("wait", 3, 0)),
        *(KvOp("listen", 0, 0), KvOp("wait, and the store notices", 2, 0)),
    ),
    "an answer that nobody took before the engine began anew": (
        *(KvOp("begin to load", 1, 8), KvOp("look away", 0, 0), KvOp("restart", 0, 0), KvOp("step", 0, 0)),
    ),
    "more than two windows of it are loaded": (
        *(KvOp("begin to load", 4, 9), KvOp("go on", 3, 0), KvOp("go on", 3, 0), KvOp("begin to load", 4, 9)),
        *(KvOp("go on", 3, 0), KvOp("go on", 3, 0)),
    ),
    "the store's bits rot": (KvOp("rot", 1, 0), KvOp("begin to load", 1, 9)),
    "bits rot of a store that is not complete": (
        *(KvOp("begin", 1, 4), KvOp("go on", 3, 0), KvOp("go on", 0, 0), KvOp("rot", 0, 0), KvOp("go on", 3, 0)),
        KvOp("go on", 3, 0),
    ),
    "the store is full while somebody reads": (
        *(KvOp("begin to load", 1, 2), KvOp("begin", 1, 5), KvOp("begin", 2, 5), KvOp("go on", 3, 0), KvOp("go on", 3, 0)),
    ),
    "the acknowledgement is lost, and another store is complete behind it": (
        *(KvOp("begin", 1, 0), KvOp("go on", 2, 0), KvOp("begin", 2, 0), KvOp("go on", 2, 0), KvOp("deliver", 1, 0)),
        *(KvOp("step", 0, 0), KvOp("hurry", 1, 1), KvOp("deliver", 1, 0), KvOp("step", 0, 0), KvOp("cut", 0, 0)),
        KvOp("go on", 3, 0),
    ),
    "an acknowledgement is held back, and meanwhile another store evicts what it acknowledges": (
        *(KvOp("begin", 1, 5), KvOp("begin", 2, 5), KvOp("go on", 3, 0), KvOp("go on", 3, 0), KvOp("turn deaf", 0, 0)),
        *(KvOp("go on", 3, 0), KvOp("listen", 0, 0), KvOp("go on", 1, 0)),
    ),
    **{
        f"the acknowledgements of two stores are lost, {1 + more} blocks each": (
            *(KvOp("begin", 1, more), KvOp("begin", 2, more), KvOp("go on", one, 0), KvOp("go on", two, 0)),
            *(KvOp("turn deaf", 0, 0), KvOp("go on", 3, 0), KvOp("cut", 0, 0), KvOp("listen", 0, 0), KvOp("go on", 3, 0)),
            KvOp("go on", 3, 0),
        )
        for more, one, two in ((0, 1, 1), (1, 1, 1), (2, 2, 2), (3, 3, 2), (4, 3, 2), (5, 3, 3))
    },
}
"""What a random walk may miss: told before all walks."""


class KvRun(NamedTuple):
    """``reached``: totals of the connector, and of the ends that the store or the engine made of connections."""

    violation: Violation | None
    evaluations: Counter[str]
    reached: Counter[str]


def draw(seed: int) -> tuple[KvOp, ...]:
    """The walk of a seed."""
    chance = random.Random(seed)
    kinds = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()), k=LENGTH)
    return tuple(KvOp(kind, chance.randrange(1000), chance.randrange(1000)) for kind in kinds)


def walk(seed: int, number: int) -> tuple[KvOp, ...]:
    """The stories first, then what the seeds from `seed` on draw."""
    stories = tuple(STORIES.values())
    return stories[number] if number < len(stories) else draw(seed + number)


def run(ops: Sequence[KvOp]) -> KvRun:
    """A warm world, the operations, the drain."""
    world = KvWorld()
    found: Violation | None = None
    try:
        warm_up(world)
        for number, op in enumerate(ops):
            apply(world, op, f"request {number}")
        world.drain()
    except KvViolation as violated:
        found = violated.violation
    counters = world.connector.counters
    reached = Counter(
        {
            "loads": counters.loads,
            "loaded blocks": counters.loaded_blocks,
            "loads cut": counters.cut,
            "transfers aborted": counters.aborted,
            "stored blocks": counters.stored_blocks,
            "spoiled blocks": counters.corrupt_blocks,
            "connections lost": counters.connections_lost,
            "leases ended": world.link.wire.num_leases_ended,
            "stores said again": world.link.wire.num_repeated,
            "blocks that rot before their END": world.num_rotten_staged,
            "unanswered aborts": sum("abort" in reason for reason in world.link.closed),
        }
    )
    return KvRun(found, world.evaluations, reached)


def warm_up(world: KvWorld) -> None:
    """The store has a prefix of five blocks that the engine has forgotten."""
    world.settle()
    world.begin("warm", 0, 5)
    world.settle()
    world.forget()


def apply(world: KvWorld, op: KvOp, name: str) -> None:
    """Does the operation; `name` is that of the request which it may begin."""
    lanes = world.link.lanes
    if op.kind in _FATES:
        if lanes:
            lane = lanes[op.one % len(lanes)]
            for _ in range(1 + op.two % 4 if op.kind == "hurry" else 1):
                if lane in world.link.lanes:
                    world.deliver(lane, _FATES[op.kind])
    else:
        _VERBS[op.kind](world, op, name)


def _begin_to_load(world: KvWorld, op: KvOp, name: str) -> None:
    world.forget()
    world.begin(name, 0, 3 + op.one % 5)
    go_on(world, op.two % 10)


def _abort(world: KvWorld, op: KvOp, _name: str) -> None:
    if world.requests:
        world.abort(list(world.requests)[op.one % len(world.requests)])


def _go_on(world: KvWorld, op: KvOp, _name: str) -> None:
    world.link.connect()
    go_on(world, 1 + op.one % 4)


def _wait(world: KvWorld, op: KvOp, _name: str) -> None:
    world.clock.time += _SECONDS[op.one % len(_SECONDS)]
    if op.kind != "wait":
        world.tick_store()


def _congest(world: KvWorld, op: KvOp, _name: str) -> None:
    world.link.is_congested = op.kind == "congest"


def _turn_deaf(world: KvWorld, op: KvOp, _name: str) -> None:
    world.link.is_deaf = op.kind == "turn deaf"
    world.say()


_FATES: Final = {"deliver": Fate.ARRIVES, "hurry": Fate.ARRIVES, "lose": Fate.LOST, "repeat": Fate.TWICE}
_VERBS: Final[Mapping[str, Callable[[KvWorld, KvOp, str], None]]] = {
    "begin": lambda world, op, name: world.begin(name, op.one % 3, 1 + op.two % 6),
    "begin to load": _begin_to_load,
    "abort": _abort,
    "step": lambda world, op, _name: world.step(most_accepted=(99, 99, 2, 1)[op.one % 4]),
    "go on": _go_on,
    "wait": _wait,
    "wait, and the store notices": _wait,
    "cut": lambda world, _op, _name: world.link.cut(),
    "congest": _congest,
    "relieve": _congest,
    "turn deaf": _turn_deaf,
    "listen": _turn_deaf,
    "look away": lambda world, _op, _name: world.look_away(),
    "rot": lambda world, op, _name: world.rot(key_of(0, op.one % 5)),
    "forget": lambda world, _op, _name: world.forget(),
    "restart": lambda world, _op, _name: world.restart(),
}


def go_on(world: KvWorld, rounds: int) -> None:
    """Everything moves a little."""
    for _ in range(rounds):
        world.step()
        for lane in world.link.lanes:
            if lane in world.link.lanes:
                world.deliver(lane)


def shrink(ops: Sequence[KvOp], identifier: str, most_runs: int = 300) -> tuple[KvOp, ...]:
    """Fewer operations that violate the same invariant."""

    def fails(left: Sequence[KvOp]) -> bool:
        found = run(left).violation
        return found is not None and found.invariant == identifier

    return fewest(ops, fails, at_most(most_runs))
