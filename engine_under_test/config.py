"""What an engine is built from, checked once, before anything is built."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine_under_test.errors import ConfigError
from engine_under_test.types import Adapter


class Order(StrEnum):
    """In which order waiting requests are admitted."""

    FIRST_COME = "first_come"
    PRIORITY = "priority"  # smaller `Request.priority` first; one overtaken `max_overtakes` times goes first


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits, switches and identity of an engine.

    ``max_tokens_per_step`` >= ``max_num_seqs``, so that every running decode has a place in every step.
    ``max_plans_in_flight`` is 1 + the depth of overlap (1, 2 or 3).
    ``prefix_cache``, ``batching``, ``chunking``: switch one off to fall back to the plain path; outputs do not change.
    """

    num_blocks: int = 1024
    block_size: int = 16
    max_tokens_per_step: int = 512
    max_num_seqs: int = 64
    max_active_adapters: int = 4
    vocab_size: int = 256
    adapters: tuple[Adapter, ...] = ()
    model_revision: str = "fingerprint-1"
    order: Order = Order.FIRST_COME
    max_overtakes: int = 16
    max_plans_in_flight: int = 1
    prefix_cache: bool = True
    batching: bool = True
    chunking: bool = True

    def __post_init__(self) -> None:
        for name in (
            "num_blocks",
            "block_size",
            "max_tokens_per_step",
            "max_num_seqs",
            "max_active_adapters",
            "vocab_size",
        ):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, found {value}; raise it")
        if self.max_tokens_per_step < self.max_num_seqs:
            raise ConfigError(
                f"max_tokens_per_step must be at least max_num_seqs so that every running sequence fits in a step, "
                f"found {self.max_tokens_per_step} < {self.max_num_seqs}; raise the first or lower the second"
            )
        if not 1 <= self.max_plans_in_flight <= 3:
            raise ConfigError(f"max_plans_in_flight must be 1, 2 or 3 (depth 0 to 2), found {self.max_plans_in_flight}")
        if self.max_overtakes < 0:
            raise ConfigError(f"max_overtakes must be at least 0, found {self.max_overtakes}")
