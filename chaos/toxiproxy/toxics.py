"""The toxics: attributes as values, and what each does to the chunks of one direction of one connection.

Owns behaviour in time and bytes; knows neither sockets nor HTTP. Names, units and behaviour follow the section "Toxics" of
Toxiproxy's README; where it is silent, the toxics of its 2.x series (the list in `server.py` says what was not compared).
Units: milliseconds, kilobytes (1000 bytes) per second, bytes; the delay of `slicer` is in microseconds.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from chaos.toxiproxy.pipe import Chunk
from chaos.toxiproxy.stage import Stage

_SLICE_S = 0.1  # `bandwidth` lets a tenth of a second's bytes through at a time


@dataclass(frozen=True, slots=True)
class Latency:
    """Each chunk leaves ``latency`` ± ``jitter`` after it came. Its input is long: a delay is no limit on throughput."""

    room: ClassVar[int] = 1024
    latency: int = 0
    jitter: int = 0

    async def pipe(self, stage: Stage) -> None:
        while (chunk := await stage.take()) is not None:
            spread = stage.chance.randrange(-self.jitter, self.jitter) if self.jitter > 0 else 0
            due = chunk.at + (self.latency + spread) / 1000
            await _sleep_until(due)
            await stage.give(Chunk(chunk.data, due))
        stage.end()


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """At most ``rate`` kilobytes per second; nothing at all at 0."""

    room: ClassVar[int] = 1
    rate: int = 0

    async def pipe(self, stage: Stage) -> None:
        owed_s = 0.0
        while (chunk := await stage.take()) is not None:
            if self.rate <= 0:
                await asyncio.Event().wait()
            owed_s += len(chunk.data) / (self.rate * 1000)
            at_once = self.rate * 100
            while len(chunk.data) > at_once:
                owed_s -= await _slept(_SLICE_S)
                rest = Chunk(chunk.data[at_once:], chunk.at)
                await stage.give(Chunk(chunk.data[:at_once], chunk.at), rest)
                chunk = rest
            owed_s -= await _slept(owed_s)
            await stage.give(chunk)
        stage.end()


@dataclass(frozen=True, slots=True)
class SlowClose:
    """Data passes; the end waits ``delay``."""

    room: ClassVar[int] = 1
    delay: int = 0

    async def pipe(self, stage: Stage) -> None:
        while (chunk := await stage.take()) is not None:
            await stage.give(chunk)
        await asyncio.sleep(max(0, self.delay) / 1000)
        stage.end()


@dataclass(frozen=True, slots=True)
class Timeout:
    """Data is dropped; the connection closes when none has come for ``timeout``, never at 0, and when the toxic is removed."""

    room: ClassVar[int] = 1
    timeout: int = 0

    async def pipe(self, stage: Stage) -> None:
        limit_s = self.timeout / 1000 if self.timeout > 0 else None
        try:
            while await asyncio.wait_for(stage.take(), limit_s) is not None:
                stage.drop()
        except TimeoutError:
            pass
        stage.end()


@dataclass(frozen=True, slots=True)
class ResetPeer:
    """``timeout`` after the first data, or the end, the connection is gone; what came is dropped.

    That both sockets then answer with a reset, and not with an end, is arranged when the connection opens (`connection.py`).
    """

    room: ClassVar[int] = 1
    timeout: int = 0

    async def pipe(self, stage: Stage) -> None:
        await stage.take()
        stage.drop()
        stage.is_committed = True
        await asyncio.sleep(max(0, self.timeout) / 1000)
        stage.end()


@dataclass(frozen=True, slots=True)
class Slicer:
    """Cuts each chunk into pieces of about ``average_size`` ± ``size_variation`` bytes, ``delay`` microseconds apart."""

    room: ClassVar[int] = 1
    average_size: int = 0
    size_variation: int = 0
    delay: int = 0

    async def pipe(self, stage: Stage) -> None:
        while (chunk := await stage.take()) is not None:
            data = chunk.data
            for begin, end in self.pieces(0, len(data), stage.chance):
                rest = Chunk(data[end:], chunk.at) if end < len(data) else None
                await stage.give(Chunk(data[begin:end], chunk.at), rest)
                await asyncio.sleep(max(0, self.delay) / 1_000_000)
        stage.end()

    def pieces(self, begin: int, end: int, chance: random.Random) -> Iterator[tuple[int, int]]:
        """Halves, each near the middle, until a piece is at most the average and the variation together (at least 1 byte)."""
        largest = max(1, self.average_size + max(0, self.size_variation))
        todo = [(begin, end)]
        while todo:
            low, high = todo.pop()
            if high - low <= largest:
                yield low, high
                continue
            shift = chance.randrange(-self.size_variation, self.size_variation) if self.size_variation > 0 else 0
            middle = min(max((low + high) // 2 + shift, low + 1), high - 1)
            todo += [(middle, high), (low, middle)]


@dataclass(frozen=True, slots=True)
class LimitData:
    """The connection closes once ``bytes`` have passed; what comes after them is dropped."""

    room: ClassVar[int] = 1
    bytes: int = 0

    async def pipe(self, stage: Stage) -> None:
        while (chunk := await stage.take()) is not None:
            allowed = chunk.data[: max(0, self.bytes - stage.num_passed)]
            if allowed:
                await stage.give(Chunk(allowed, chunk.at))
                stage.num_passed += len(allowed)
            if stage.num_passed >= self.bytes:
                break
        stage.end()


AnyToxic: TypeAlias = Latency | Bandwidth | SlowClose | Timeout | ResetPeer | Slicer | LimitData

TOXICS: dict[str, type[AnyToxic]] = {
    "latency": Latency,
    "bandwidth": Bandwidth,
    "slow_close": SlowClose,
    "timeout": Timeout,
    "reset_peer": ResetPeer,
    "slicer": Slicer,
    "limit_data": LimitData,
}


async def _slept(seconds: float) -> float:
    """How long a sleep of that length really took: the difference is taken off the next one."""
    if seconds <= 0:
        return 0.0
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.sleep(seconds)
    return loop.time() - began


async def _sleep_until(due: float) -> None:
    wait_s = due - asyncio.get_running_loop().time()
    if wait_s > 0:
        await asyncio.sleep(wait_s)
