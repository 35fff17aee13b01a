"""Runs directed stories, each in a world of its own, and says which of them did not reach what they were made for.

Owns nothing but the loop: what a story is stands in `models.scenarios`, what is counted in `models.reach`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from models.machines.driving import Driver
from models.machines.tally import Tally
from models.scenarios import Scenario


def run_stories(
    stories: Iterable[Scenario], on_example: Callable[[int], None] = lambda _done: None
) -> tuple[Tally, tuple[str, ...]]:
    """Every story up to the first violation; the second value names stories that missed their aim, with what they missed."""
    tally = Tally(on_example)
    astray: list[str] = []
    for story in stories:
        driver = Driver(story.spec)
        driver.run(story.ops)
        driver.judge_history()
        before = tally.reached.copy()
        tally.add(driver)
        if tally.failure is not None:
            break
        missed = [reach.value for reach in story.reaches if tally.reached[reach.value] == before[reach.value]]
        if missed:
            astray.append(f"{story.name}: {', '.join(missed)}")
    return tally, tuple(astray)
