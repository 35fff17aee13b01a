"""What a group of ranks is: how many, which model, which pool, and how long each of them may be silent.

Owns these values and what of them can be judged before anything is started. Free of torch, so that a driver needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine_under_test.errors import ConfigError

FINGERPRINT_HEADS = 4  # a fingerprint word is four heads of 16 bits, shared out among the ranks


@dataclass(frozen=True, slots=True)
class FingerprintModel:
    """The fingerprint model; each rank keeps some of the four heads of each word."""

    vocab_size: int


@dataclass(frozen=True, slots=True)
class RandomLlama:
    """A tiny random Llama: ``shape`` are the fields of `LlamaConfig`, ``seed`` that of `tiny_random`."""

    shape: Mapping[str, Any]
    seed: int
    dtype: str = "float32"


@dataclass(frozen=True, slots=True)
class LlamaFile:
    """Weights in a file or folder that each rank reads, keeping its part."""

    path: str
    dtype: str = "float32"


RankModel = FingerprintModel | RandomLlama | LlamaFile


class Backend(StrEnum):
    """Who carries the collectives."""

    GLOO = "gloo"  # on CPUs
    NCCL = "nccl"  # one CUDA device a rank


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds. A rank sends a beat every ``beat_s``. It counts as lost when nothing came of it for ``silence_s`` while the
    driver listened, when plans are out and no answer came for ``step_s``, or when it has not joined after ``join_s``.

    ``notice_s``: the stated time within which any death is noticed by a driver that waits, on a machine under load.
    """

    beat_s: float = 0.25
    silence_s: float = 10.0
    step_s: float = 120.0
    join_s: float = 180.0

    def __post_init__(self) -> None:
        if not 0 < 4 * self.beat_s <= self.silence_s <= self.step_s:
            raise ConfigError(
                f"a rank is silent after at least four beats and before a step is late, found beat_s {self.beat_s}, "
                f"silence_s {self.silence_s}, step_s {self.step_s}; correct one of them"
            )
        if not self.join_s > 0:
            raise ConfigError(f"join_s must be above 0, found {self.join_s}; correct it")

    @property
    def notice_s(self) -> float:
        return self.silence_s + 10.0


@dataclass(frozen=True, slots=True)
class RankConfig:
    """``window``: plans that may be out and not yet answered by all ranks. ``shows_evidence``: answers carry cells or logits.
    ``grammar_texts``: the bytes of each token, with which requests may have grammars; () without. ``num_adapter_slots``: of
    adapters of at most ``max_adapter_rank``; 0 without. ``interface``: the network device over which ranks on CPUs reach each
    other. ``phases``: "module:function", called in each rank at each `RankPhase` with a `PhaseReached`; "" for nobody."""

    world_size: int
    model: RankModel
    num_blocks: int
    block_size: int
    backend: Backend = Backend.GLOO
    patience: Patience = field(default_factory=Patience)
    window: int = 4
    num_threads: int = 1
    shows_evidence: bool = False
    grammar_texts: tuple[bytes, ...] = ()
    num_adapter_slots: int = 0
    max_adapter_rank: int = 16
    interface: str = "lo"
    phases: str = ""
    phases_argument: str = ""

    def __post_init__(self) -> None:
        for name in ("world_size", "num_blocks", "block_size", "window", "num_threads", "max_adapter_rank"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"{name} of a group of ranks must be an integer of at least 1, found {value!r}; correct it")
        if type(self.num_adapter_slots) is not int or self.num_adapter_slots < 0:
            raise ConfigError(
                f"num_adapter_slots must be a whole number of 0 or more, found {self.num_adapter_slots!r}; correct it"
            )
        if isinstance(self.model, FingerprintModel) and FINGERPRINT_HEADS % self.world_size:
            raise ConfigError(
                f"the {FINGERPRINT_HEADS} heads of a fingerprint are shared out evenly, found {self.world_size} ranks; "
                "take 1, 2 or 4"
            )
        if self.phases and self.phases.count(":") != 1:
            raise ConfigError(f'phases names a function as "module:function", found {self.phases!r}; correct it')
