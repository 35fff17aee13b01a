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


_COUNTS = {  # each with the least that it may be
    "num_blocks": 1,
    "block_size": 1,
    "max_tokens_per_step": 1,
    "max_num_seqs": 1,
    "max_active_adapters": 1,
    "vocab_size": 1,
    "max_plans_in_flight": 1,
    "max_overtakes": 0,
    "max_adapter_overtakes": 0,
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits, switches and identity of an engine.

    ``max_tokens_per_step`` >= ``max_num_seqs``, so that every running decode has a place in every step.
    ``max_plans_in_flight`` is 1 + the depth of overlap (1, 2 or 3).
    ``logits_processors``: names that requests may use, of processors that were handed to the runner.
    ``max_active_adapters``: slots for adapters on the device. ``adapters``: those that are loaded at the beginning. One who
    waits because no slot is free is overtaken ``max_adapter_overtakes`` times at most, 0 being never; by priority no
    more than ``max_overtakes`` times either.
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
    max_adapter_overtakes: int = 16
    max_plans_in_flight: int = 1
    prefix_cache: bool = True
    batching: bool = True
    chunking: bool = True
    logits_processors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in _COUNTS.items():
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ConfigError(f"{name} must be an integer of at least {least}, found {value!r}; correct it")
        for name in ("prefix_cache", "batching", "chunking"):
            if type(getattr(self, name)) is not bool:
                raise ConfigError(f"{name} is a switch, True or False, found {getattr(self, name)!r}; set one of them")
        if not isinstance(self.order, Order):
            raise ConfigError(f"order must be one of {', '.join(map(str, Order))} (`Order`), found {self.order!r}; choose one")
        if type(self.model_revision) is not str:
            raise ConfigError(f"model_revision must be a string, found {self.model_revision!r}; name the model")
        for adapter in self.adapters:
            if not isinstance(adapter, Adapter) or type(adapter.name) is not str or type(adapter.version) is not int:
                raise ConfigError(f"adapters are `Adapter(name, version)` with a string and an integer, found {adapter!r}")
        if any(type(name) is not str for name in self.logits_processors):
            raise ConfigError(f"logits_processors are names, found {self.logits_processors!r}; name them as the runner does")
        if self.max_tokens_per_step < self.max_num_seqs:
            raise ConfigError(
                f"max_tokens_per_step must be at least max_num_seqs so that every running sequence fits in a step, "
                f"found {self.max_tokens_per_step} < {self.max_num_seqs}; raise the first or lower the second"
            )
        if self.max_plans_in_flight > 3:
            raise ConfigError(
                f"max_plans_in_flight must be 1, 2 or 3 (depth 0 to 2), found {self.max_plans_in_flight}; lower it"
            )
