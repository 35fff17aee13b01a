"""One toxic at work on one direction of one connection. Owns the chunk in hand and the interruption; knows no sockets.

    input pipe ─► stage (a toxic, or nothing when the dice say so) ─► output pipe

A stage that is interrupted puts what it holds back into its input: a toxic may be changed or taken away at any moment, and
no byte is lost, doubled or reordered by that.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from chaos.toxiproxy.pipe import Chunk, Pipe


class Toxic(Protocol):
    """A dataclass of attributes, and what they do. ``pipe`` ends by `Stage.end`, or is interrupted.

    ``room``: how many chunks may wait for it; the more, the less does it slow down what stands before it.
    """

    room: ClassVar[int]
    __dataclass_fields__: ClassVar[dict[str, Any]]

    async def pipe(self, stage: Stage) -> None: ...


@dataclass(slots=True)
class ToxicEntry:
    """A toxic as the API knows it; ``toxicity`` is the probability that it works on a link."""

    name: str
    type: str
    stream: str
    toxicity: float
    toxic: Toxic


class Stage:
    """``num_passed`` survives a change of the toxic: bytes that `limit_data` let through."""

    def __init__(self, entry: ToxicEntry, incoming: Pipe, outgoing: Pipe, chance: random.Random) -> None:
        self.entry = entry
        self.incoming = incoming
        self.outgoing = outgoing
        self.chance = chance
        self.num_passed = 0
        self.is_committed = False  # past the point where a change could take it back
        self._is_retired = False
        self._held: Chunk | None = None
        self._task: asyncio.Task[None] | None = None

    # What a toxic calls.

    async def take(self) -> Chunk | None:
        self._held = await self.incoming.take()
        return self._held

    async def give(self, chunk: Chunk, rest: Chunk | None = None) -> None:
        """Passes ``chunk`` on; ``rest`` is what is then still in hand."""
        await self.outgoing.put(chunk)
        self._held = rest

    def drop(self) -> None:
        self._held = None

    def end(self) -> None:
        """Nothing more will come: the connection closes in this direction."""
        self._held = None
        self.outgoing.close()

    # What a link calls.

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def interrupt(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    @property
    def is_over(self) -> bool:
        """Ended, retired, or past the point where anything could be taken back."""
        return self.is_committed or self._is_retired or self.outgoing.is_closed

    def retire(self, bypass: Callable[[Stage], None]) -> None:
        """The toxic is gone: passes what stands in the input, then ``bypass`` takes the stage out of its chain."""
        self._is_retired = True
        self._task = asyncio.create_task(self._pass_then(bypass))

    async def pass_all(self) -> None:
        """What a stage does without a toxic."""
        while (chunk := await self.take()) is not None:
            await self.give(chunk)
        self.end()

    async def _pass_then(self, bypass: Callable[[Stage], None]) -> None:
        while not self.incoming.is_idle:
            chunk = await self.take()
            if chunk is None:
                self.end()
                return
            await self.give(chunk)
        bypass(self)

    async def _run(self) -> None:
        try:
            if self.chance.random() < self.entry.toxicity:
                await self.entry.toxic.pipe(self)
            else:
                await self.pass_all()
        except asyncio.CancelledError:
            if self._held is not None:
                self.incoming.put_back(self._held)
                self._held = None
            raise
