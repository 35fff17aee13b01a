"""The small worlds in which every single block is refused once, in turn.

Owns the enumeration: how many blocks a story takes is counted in a run without a refusal, so that no k is left out when a
story grows. Never judges.
"""

from __future__ import annotations

from collections.abc import Iterator

from engine_under_test.events import Event, EventKind
from models.machines.driving import Driver
from models.scenarios import Scenario, refused_block
from models.stories import refusal_bases


def refusal_stories(copies: int) -> Iterator[Scenario]:
    """Each base story with its k-th block refused, for every k that it takes; the refusal must be seen to happen."""
    for base in refusal_bases(copies):
        for k in range(1, num_blocks_taken(base) + 1):
            yield refused_block(base, k)


def num_blocks_taken(story: Scenario) -> int:
    """How many blocks the story's reservations take when none is refused."""
    driver = Driver(story.spec)
    driver.run(story.ops)
    events = driver.world.history.of(Event)
    return sum(len(event.blocks) for event in events if event.kind is EventKind.RESERVED)
