"""Replays walks of KV transfers: each operation, what it left at both ends, and the drain.

Owns the story of such a run; the comparison with what the file promised is that of every replay (`replay.py`). The operations
stand in the file's world, since they are not those of an engine. Never changes the file. Imports the walk inside: an extra.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ci.replay import Replayed
from ci.replay_file import ReplayFile
from ci.timeline import Scene
from ci.wording import count
from engine_under_test.errors import BadInput

_MOST_OPS = 100_000

if TYPE_CHECKING:
    from properties.kv_world import KvWorld


def replay_transfers(file: ReplayFile, until: int | None = None) -> Replayed:
    """Applies the operations again, at most the first `until`, and drains. Raises BadInput if the world is none."""
    from ci.environment import require_extra

    require_extra("connector", "a replay of transfers")
    from properties.kv_end import KvViolation
    from properties.kv_walk import KINDS, KvOp, apply, warm_up
    from properties.kv_world import KvWorld

    try:
        ops = tuple(KvOp(str(kind), int(one), int(two)) for kind, one, two in file.world["walk"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(f"a replay of transfers has a walk of [kind, number, number], found none ({error!r})") from error
    if unknown := [op.kind for op in ops if op.kind not in KINDS]:
        raise BadInput(f"a walk knows {', '.join(KINDS)}, found {unknown[0]!r}; was the file written by this version?")
    shown = ops if until is None else ops[:until]
    if len(ops) > _MOST_OPS:
        raise BadInput(f"a walk has at most {_MOST_OPS} operations, found {len(ops)}; copy the file again from the report")
    world = KvWorld()
    scenes: list[Scene] = []
    violation = None
    for number in range(len(shown) + 2):
        is_drain = number == len(shown) + 1
        if is_drain and len(shown) < len(ops):
            break
        before = _seen(world)
        title = "warm up" if number == 0 else "drain" if is_drain else str(shown[number - 1])
        try:
            if number == 0:
                warm_up(world)
            elif is_drain:
                world.drain()
            else:
                apply(world, shown[number - 1], f"request {number - 1}")
        except KvViolation as found:
            violation = found.violation
        is_noop = 0 < number <= len(shown) and violation is None and _seen(world) == before
        scenes.append(Scene(number, title, "", is_noop, (), blocks={}, state=tuple(_state(world)), violation=violation))
        if violation is not None:
            break
    header = f"{count(len(shown), 'operation')} on a connector and a store of blocks, over a link in memory"
    told = file.violation.invariant
    silence = "" if world.evaluations[told] else f"{told} is not judged in walks of transfers: run assay gate again"
    return Replayed(file, header, tuple(scenes), violation, silence, len(ops) - len(shown), num_of_file=len(ops))


def _seen(world: KvWorld) -> tuple[object, ...]:
    """What an operation may change."""
    link, connector = world.link, world.connector
    seen = (link.lanes, link.arrived, link.connection, link.is_congested, link.closed, connector.session, connector.generation)
    of_engine = (connector.counters, world.visible, world.free, world.told, world.answers, world.clock.time)
    return (*_state(world), *map(repr, (*seen, *of_engine, world.pool.keys(), sorted(world.rotten))))


def _state(world: KvWorld) -> Iterator[str]:
    """Transfers at the engine's end, then at the store's."""
    for each in world.connector.transfers.values():
        pins = f", pins {', '.join(map(str, each.blocks))}" if each.blocks else ""
        yield f"engine: {each.machine.value} {each.number} {each.state.value}, {each.moved} of {each.granted} bytes{pins}"
    session = world.link.session
    for number, remote in session.transfers.items() if session is not None else ():
        yield f"store: {remote.machine.value} {number} {remote.state.value}, {remote.moved} of {remote.granted} bytes"
    if world.requests:
        yield f"waiting: {', '.join(world.requests)}"
