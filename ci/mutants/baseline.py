"""Whether the engine is sound before a bug is put into it: a kill on a broken engine proves nothing.

Owns that question and what follows from it. Never hunts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ci.mutants.mutant import Fate, MutantResult
from ci.mutants.stories import sequence
from models.build import world_from

_WHY = "the engine is broken without it, so that a kill proves nothing"


def broken_without_mutant(seed: int) -> str | None:
    """What the first stories of a hunt find in the engine as it is; None if nothing."""
    for story in sequence(seed):
        world = world_from(story.spec)
        world.run(story.ops)
        if (violation := world.violation) is not None:
            return f"{violation.invariant} {violation.name}, {story.name}: {violation.sentence}"
    return None


def void(results: Iterable[MutantResult]) -> tuple[MutantResult, ...]:
    """The same hunts, on an engine that turned out to be broken."""
    return tuple(
        replace(result, fate=Fate.VOID, by="", by_name="", note=_WHY) if result.fate is Fate.KILLED else result
        for result in results
    )
