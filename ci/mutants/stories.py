"""The stories of the hunt: short walks and the directed stories to begin with, longer walks when the suites are through.

Owns the order. The stories are those of `models/`, told as they are; none was written for a mutant.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from models.refusals import refusal_stories
from models.scenarios import Scenario
from models.stories import odd_hash_stories, stories
from models.walk import small_shape, walk_ops
from models.walk_suite import SHAPES
from properties.op import Op

_SHORT, _LONG = 250, 900  # operations
_LONG_ROUNDS = 3
_TRANSFER_WALKS = 4


@dataclass(frozen=True, slots=True)
class Story:
    """A world, by its spec for `models.build.world_from`, and what is done in it."""

    name: str
    spec: dict[str, Any]
    ops: tuple[Op, ...]


def sequence(seed: int) -> Iterator[Story]:
    """The stories told first."""
    directed = chain(stories(1), odd_hash_stories("two_bit", 1), odd_hash_stories("constant", 1), refusal_stories(1))
    return chain(_walks(seed, _SHORT), map(_of_scenario, directed), _transfers(seed))


def longer(seed: int) -> Iterator[Story]:
    """The stories told last."""
    return chain.from_iterable(_walks(seed + number, _LONG) for number in range(1, 1 + _LONG_ROUNDS))


def _walks(seed: int, num_ops: int) -> Iterator[Story]:
    for label, shape in SHAPES.items():
        yield Story(f"walk {label}#{seed:#x}", shape.spec(), tuple(islice(walk_ops(seed, shape), num_ops)))


def _transfers(seed: int) -> Iterator[Story]:
    """Walks over the transaction alone, the only target with transfers."""
    shape = small_shape(1, target="kv")
    for number in range(_TRANSFER_WALKS):
        ops = tuple(islice(walk_ops(seed + number, shape), _SHORT))
        yield Story(f"walk of transfers#{seed + number:#x}", shape.spec(), ops)


def _of_scenario(scenario: Scenario) -> Story:
    return Story(f"story {scenario.name}", scenario.spec, scenario.ops)
