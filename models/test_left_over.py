"""What a target keeps of requests that have ended is seen, wherever it lies."""

from __future__ import annotations

import pytest

from engine_under_test.flights import Flights, InFlight
from models.build import world_from
from models.scenarios_in_flight import lost_with_its_result


def test_a_target_at_rest_keeps_nothing_of_plans_that_were_lost() -> None:
    story = lost_with_its_result(2)
    world = world_from(story.spec)
    world.run(story.ops)
    assert world.violation is None


def test_a_result_that_nobody_fetches_any_more_is_named_with_the_way_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def pop_newest(self: Flights) -> InFlight:
        return self._plans.pop()

    monkeypatch.setattr(Flights, "pop_newest", pop_newest)
    story = lost_with_its_result(1)
    world = world_from(story.spec)
    world.run(story.ops)
    assert world.violation is not None
    assert (world.violation.invariant, world.violation.found) == (
        "SC-11",
        "StepResult in AssayTarget._engine, Engine._in_flight, Flights._early",
    )
