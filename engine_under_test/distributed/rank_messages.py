"""What driver and ranks say to each other. Values only; every one but the first carries the generation that it belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from engine_under_test.distributed.rank_config import RankConfig
from engine_under_test.types import Adapter, Logprobs, Plan, Reservation, RowId

if TYPE_CHECKING:
    from engine_under_test.model.lora import LoraWeights  # which a driver need not import


class RankPhase(StrEnum):
    """Where a rank stands in a step, for whoever is told (`RankConfig.phases`)."""

    JOINING = "joining"  # before it meets the other ranks
    BEFORE_PLAN = "before the plan"  # the plan has come, nothing of it has run
    IN_COLLECTIVE = "inside a collective"  # its first collective of the step was begun and not waited for
    BEFORE_REPLY = "before the reply"  # everything has run, nobody was told


class PhaseReached(NamedTuple):
    """``link``: the file descriptor of the rank's connection to the driver."""

    phase: RankPhase
    rank: int
    generation: int
    sequence: int
    link: int
    argument: str


# From the driver


@dataclass(frozen=True, slots=True)
class Start:
    """The first message: who you are."""

    rank: int
    generation: int
    config: RankConfig


@dataclass(frozen=True, slots=True)
class Meet:
    """Where rank 0 waits for the others."""

    generation: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Step:
    """A plan to execute. ``sequence`` counts from 1 in each generation, without a gap. ``adapters``: the whole weights of those
    that are loaded before it."""

    generation: int
    sequence: int
    plan: Plan
    reservation: Reservation
    adapters: Mapping[Adapter, LoraWeights] = field(default_factory=dict)


# From a rank


@dataclass(frozen=True, slots=True)
class Waiting:
    """Rank 0 can be met here."""

    generation: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Joined:
    """The rank has met the others and made its store of this many blocks."""

    generation: int
    num_blocks: int
    block_size: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The rank lives, and has got so far: its last step, and the collectives of it that it has begun."""

    generation: int
    sequence: int
    num_collectives: int


@dataclass(frozen=True, slots=True)
class Executed:
    """The acknowledgement of a step: what was executed, by the rank's own account, and what came of it.

    ``error``: the step was refused, alike on all ranks, with ``to_blame`` and ``distrusts`` as `RunnerError` has them.
    ``cells``, ``row_ends``: this rank's part of the words that it read; ``logits``: shape and float32 bytes. ``told``:
    log-probabilities of tokens and of prompt tokens, as `StepResult` has them.
    """

    generation: int
    sequence: int
    plan_id: int
    plan_generation: int
    rows: tuple[RowId, ...]
    collectives: tuple[str, ...]
    tokens: tuple[tuple[int, ...], ...] = ()
    error: str = ""
    to_blame: tuple[int, ...] = ()
    distrusts: bool = False
    cells: bytes = b""
    row_ends: tuple[int, ...] = ()
    logits: tuple[tuple[int, int], bytes] | None = None
    told: tuple[tuple[tuple[Logprobs, ...], ...], tuple[tuple[Logprobs, ...], ...]] = ((), ())


@dataclass(frozen=True, slots=True)
class Crashed:
    """The last message of a rank that can not go on. ``is_echo``: a collective failed, so another rank may be the cause."""

    generation: int
    reason: str
    is_echo: bool


FromRank = Waiting | Joined | Beat | Executed | Crashed
