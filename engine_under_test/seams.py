"""Protocols of everything undetermined; no defaults, no torch.

Real defaults live beside what uses them. A test hands in a two-bit hash, a device whose fences are held, a gate that
refuses the k-th block, a clock that it moves by hand. The engine never asks whether it is being tested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from engine_under_test.events import Event
from engine_under_test.types import GrammarSpec, History


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since an arbitrary start; never goes backwards."""


class Hasher(Protocol):
    def __call__(self, data: bytes, /) -> bytes:
        """A digest of `data`, of any fixed length >= 1. Equal input, equal digest; nothing else is relied upon."""


class BlockGate(Protocol):
    def admit(self) -> bool:
        """Asked once for each block about to be taken from the free queue; False refuses the reservation."""


class Space(StrEnum):
    """Where memory is taken from."""

    DEVICE = "device"
    PINNED = "pinned"  # of the host, and the device reads or writes it
    HOST = "host"


class Memory(Protocol):
    def admit(self, num_bytes: int, space: Space = Space.DEVICE) -> bool:
        """Asked once for each allocation that a step makes, on whichever side, for so many bytes in one piece; False refuses
        it, and with it the step."""


class Observer(Protocol):
    def __call__(self, event: Event, /) -> None:
        """Told of every transition, in order, while it happens. Must not call back into the engine."""


class Purpose:
    """What a draw is for; part of its address (ST-3)."""

    SAMPLE = 0
    ACCEPT = 1
    RECOVER = 2
    DRAFT = 3


class Noise(Protocol):
    def uniform(
        self,
        seeds: npt.NDArray[np.uint64],
        choices: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.uint32],
        purpose: int,
        num_lanes: int,
    ) -> npt.NDArray[np.float64]:
        """Uniforms in (0, 1), shape [rows, num_lanes], a pure function of each address (seed, choice, position, purpose,
        lane). `position` is the index in prompt + output of the token that the draw chooses.
        """

    def uniform_at(
        self, seed: int, choice: int, position: int, purpose: int, lanes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """What `uniform` gives at some lanes of one draw: where few of many tokens are left, few lanes are wanted."""


class Grammars(Protocol):
    """What compiles grammars and says which tokens they allow: a pure function of grammar and output, so that nothing of it can
    be left over from a token that was not committed, or from another row."""

    @property
    def vocab_size(self) -> int: ...

    def why_not(self, spec: GrammarSpec) -> str | None:
        """Why nothing can be made of a grammar, in one sentence, found within a stated budget; None: it can be used."""

    def allowed(self, spec: GrammarSpec, output: Sequence[int], ends: Collection[int]) -> npt.NDArray[np.bool_]:
        """[vocabulary]: the tokens that may follow an output. ``ends``, the stop tokens, are no text: they may follow where the
        text is complete, and behind one of them, or behind what the grammar forbids, nothing else may. RunnerError where the
        next token takes more work than the budget."""

    def num_allowed(self, spec: GrammarSpec, output: Sequence[int], drafts: Sequence[int], ends: Collection[int]) -> int:
        """How many of the drafts, from the first on, may follow the output: the others need not be verified."""


class LogitsProcessor(Protocol):
    def __call__(self, logits: npt.NDArray[np.float64], history: History, /) -> None:
        """Changes one row of logits [vocabulary] in place; -inf drops a token. A pure function of both, so that neither a
        preemption nor a batch-mate changes what it does."""


class Stream(StrEnum):
    """The queues of a device. Work on one of them runs in order; between two of them only waits give an order."""

    COMPUTE = "compute"
    COPY_IN = "copy_in"  # from the host, and within the device's memory beside the computation
    COPY_OUT = "copy_out"  # to the host
    TRANSFER = "transfer"  # to and from other machines


class Page(NamedTuple):
    """What an operation touches: a named buffer and a unit of it (for KV: the block)."""

    buffer: str
    unit: int


@dataclass(frozen=True, slots=True)
class DeviceOp:
    """Work for a device: a closure, with the pages that it reads and writes declared (AS-5), and the plan that it is for."""

    name: str
    reads: frozenset[Page]
    writes: frozenset[Page]
    run: Callable[[], None]
    plan_id: int = 0

    @property
    def title(self) -> str:
        """What reports call it."""
        return f"{self.name} of plan {self.plan_id}" if self.plan_id else self.name


class Fence(Protocol):
    def has_passed(self) -> bool:
        """True once every operation submitted before the fence has ended; never goes back to False."""


class Device(Protocol):
    def submit(self, op: DeviceOp) -> None:
        """Puts `op` on the compute stream. It may run now or later, after everything submitted before it."""

    def fence(self) -> Fence:
        """A fence behind everything submitted so far."""

    def synchronize(self) -> None:
        """Returns when everything submitted so far has ended. An error in an operation is raised here."""


@runtime_checkable
class StreamDevice(Device, Protocol):
    """A device with several streams, whose work runs late. `submit` of a plain device is `submit_to` the compute stream."""

    def submit_to(self, stream: Stream, op: DeviceOp, after: Sequence[Fence] = ()) -> Fence:
        """Puts `op` on a stream, behind what is on it, and not before every fence of `after` has passed. The fence behind
        `op` alone."""

    def wait(self, fence: Fence) -> None:
        """Returns when the fence has passed, and the host has seen it. An error in an operation before it is raised here."""

    def host_touches(self, reads: Iterable[Page] = (), writes: Iterable[Page] = ()) -> None:
        """The host is about to read and to write these pages itself. Nothing happens but that whoever watches is told."""


class Transport(Protocol):
    """Whole messages to and from one peer; never blocks. Between two calls of `poll` nothing that it shows changes.

    Within one connection messages arrive in order, none twice. When a connection ends, any of the last ones sent may be lost,
    and nothing of it arrives any more.
    """

    def poll(self) -> None:
        """Lets bytes move, connections come and go."""

    @property
    def connection(self) -> int | None:
        """The number of the present connection, higher than any before; None while there is none."""

    @property
    def is_congested(self) -> bool:
        """True while so much waits to be sent that bulk data should wait too. Small messages are taken nevertheless."""

    def send(self, message: bytes) -> None:
        """Puts a message on its way over the present connection; without one it is lost."""

    def receive(self) -> Sequence[bytes]:
        """What has arrived over the present connection since the last call."""

    def close(self, reason: str) -> None:
        """Ends the present connection at once; a new one may come with a later `poll`."""


class RankGroup(Protocol):
    """Ranks that compute as one runner, and that die as one: when one of them is lost, all are ended."""

    @property
    def generation(self) -> int:
        """How often the group has begun, from 1."""

    def restart(self) -> None:
        """Ends whatever is left and begins anew, with an empty store. RankLost if it does not come up."""

    def close(self) -> None:
        """Ends every rank, for good: whatever is launched from now on is refused with a RunnerError."""
