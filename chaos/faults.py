"""Faults as values: which kinds are active in a storm, when each of them strikes, and how long it lasts.

Owns the words and the two stages of drawing them. Never does anything to a target: `chaos.nemesis` says what a fault is made
of, `chaos.run` applies it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class FaultKind(StrEnum):
    """Everything that a simulated storm can do to a target. One file of `chaos.nemesis` each."""

    STREAM_DELAYS = "stream-delays"
    PRIORITIES = "priorities"
    HELD_FENCES = "held-fences"
    REFUSED_BLOCKS = "refused-blocks"
    REFUSED_MEMORY = "refused-memory"
    LOST_PLANS = "lost-plans"
    STALE_RESULTS = "stale-results"
    CACHE_RESETS = "cache-resets"
    RESTARTS = "restarts"
    ABORTS = "aborts"
    ROLLBACKS = "rollbacks"
    FRAGMENTED_MEMORY = "fragmented-memory"
    SICK_ROWS = "sick-rows"
    SPOILED_SLOTS = "spoiled-slots"
    LINK_STALLS = "link-stalls"
    LINK_CUTS = "link-cuts"
    LOST_MESSAGES = "lost-messages"
    REPEATED_MESSAGES = "repeated-messages"
    STORE_DEATHS = "store-deaths"
    STORE_ROT = "store-rot"
    STUCK_ROWS = "stuck-rows"


class ConnectionFault(StrEnum):
    """Everything that a connector storm can do to a real store and to connections to it. One file of `chaos.nemesis` each."""

    LATENCY = "latency"
    BANDWIDTH = "bandwidth"
    SLOW_CLOSE = "slow-close"
    TIMEOUT = "timeout"
    RESET_PEER = "reset-peer"
    SLICER = "slicer"
    LIMIT_DATA = "limit-data"
    PROXY_DOWN = "proxy-down"
    STORE_KILLED = "store-killed"
    STORE_FROZEN = "store-frozen"
    ENGINE_STALLED = "engine-stalled"


Kind = FaultKind | ConnectionFault
TOXICS = tuple(ConnectionFault)[:7]
OF_THE_LINK = (  # to a remote pool: only worlds with one know them
    FaultKind.LINK_STALLS,
    FaultKind.LINK_CUTS,
    FaultKind.LOST_MESSAGES,
    FaultKind.REPEATED_MESSAGES,
    FaultKind.STORE_DEATHS,
    FaultKind.STORE_ROT,
)
OF_THE_SCHEDULE = (FaultKind.STREAM_DELAYS, FaultKind.PRIORITIES)  # they last as long as the storm; at most one of them


@dataclass(frozen=True, slots=True)
class Fault:
    """One strike: before operation ``at`` of the workload, healed ``length`` operations later. ``k`` and ``on`` are for the
    nemesis to read; a toxic works upstream if ``on``, else downstream."""

    kind: Kind
    at: int
    length: int = 1
    k: int = 0
    on: bool = False

    @property
    def option(self) -> str:
        """As it is printed: "held-fences@12+3"."""
        return f"{self.kind}@{self.at}+{self.length}" + (f":{self.k}" if self.k else "") + ("!" if self.on else "")


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """What one storm does. ``active``: the kinds of the first stage, in the order of their enumeration."""

    seed: int
    active: tuple[Kind, ...]
    faults: tuple[Fault, ...]

    @property
    def num_alone(self) -> int:
        """Of a plan for real connections: how many of its faults, from the first on, strike alone."""
        return sum(2 if kind in TOXICS else 1 for kind in self.active)

    @property
    def options(self) -> str:
        """The whole plan in one line."""
        return " ".join([",".join(self.active) or "none", *(fault.option for fault in self.faults)])


def draw_plan(seed: int, num_ops: int, kinds: Collection[FaultKind] = tuple(FaultKind), num_faults: int = 10) -> FaultPlan:
    """Two stages: which kinds are active at all (each with even chances; leaving most out lets the rest go deep), then when
    each strike comes. A pure function of its arguments."""
    chance = Random(f"faults/{seed}")
    schedule = [kind for kind in OF_THE_SCHEDULE if kind in kinds]
    active = set(chance.sample(schedule, 1) if schedule and chance.random() < 0.8 else ())
    for kind in FaultKind:  # every kind draws, wanted or not: leaving one out changes no other
        is_active = chance.random() < 0.5
        if is_active and kind in kinds and kind not in OF_THE_SCHEDULE:
            active.add(kind)
    strikers = [kind for kind in FaultKind if kind in active and kind not in OF_THE_SCHEDULE]
    faults = [_draw_fault(chance, strikers, num_ops) for _ in range(num_faults if strikers else 0)]
    in_order = tuple(sorted(faults, key=lambda fault: fault.at))
    return FaultPlan(seed, tuple(kind for kind in FaultKind if kind in active), in_order)


def _draw_fault(chance: Random, kinds: Sequence[FaultKind], num_ops: int) -> Fault:
    return Fault(
        chance.choice(kinds),
        chance.randrange(num_ops),
        chance.choice((1, 1, 2, 3, 5, 8)),
        chance.randrange(6),
        chance.random() < 0.5,
    )


def draw_connection_plan(
    seed: int, kinds: Collection[ConnectionFault] = tuple(ConnectionFault), *, num_together: int = 8, is_every: bool = False
) -> FaultPlan:
    """A plan for real connections. First each active kind strikes alone, a toxic in both directions, so that what it did can be
    told from what others do; then ``num_together`` strikes fall as they come. ``is_every``: all of `kinds` are active."""
    chance = Random(f"links/{seed}")
    active = tuple(kind for kind in ConnectionFault if (chance.random() < 0.5 or is_every) and kind in kinds)
    active = active or tuple(kind for kind in ConnectionFault if kind in kinds)[:1]
    alone = [(kind, on) for kind in active for on in ((False, True) if kind in TOXICS else (False,))]
    chance.shuffle(alone)
    faults: list[Fault] = []
    at = 8
    for kind, on in alone:
        length = chance.choice((4, 6, 8))
        faults.append(Fault(kind, at, length, chance.randrange(6), on))
        at += length + 3
    begins = at + 3
    restarts = ConnectionFault.STORE_KILLED  # takes a second each, so that one of them is enough
    others = [each for each in active if each is not restarts]
    for _ in range(num_together if others else 0):
        kind = chance.choice(others)
        place = begins + chance.randrange(5 * num_together)
        is_up = chance.random() < 0.5 or kind is ConnectionFault.SLOW_CLOSE  # downstream the store is killed too
        faults.append(Fault(kind, place, chance.choice((1, 3, 8, 15)), chance.randrange(6), is_up))
    if restarts in active:
        faults.append(Fault(restarts, begins + chance.randrange(5 * num_together), 8))
    return FaultPlan(seed, active, tuple(sorted(faults, key=lambda fault: fault.at)))
