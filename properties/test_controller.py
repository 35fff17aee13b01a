"""The width of speculation in a simulated engine: near the best fixed width, calm under noise, quick after a drop.

What is promised stands in `properties/width_world.py`; the rest here is how the controller goes about it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from engine_under_test.errors import ConfigError
from engine_under_test.sampling.controller import Conditions, ControllerConfig, WidthController
from properties.width_world import CHEAP, DEAR, Promise, SimulatedEngine, promises


@pytest.mark.parametrize("promise", list(promises(seed=1)), ids=lambda each: each.title)
def test_it_keeps_its_promise_about(promise: Promise) -> None:
    assert promise.check() is None


def test_a_broken_promise_is_told_with_both_sides() -> None:
    found = Promise("a drop", lambda: ("width 4", "0")).check()
    assert found is not None
    assert (found.invariant, found.subject, found.found, found.expected) == (
        "SC-7",
        "the width of drafts, a drop",
        "width 4",
        "0",
    )


def test_a_good_proposer_is_used_and_a_bad_one_is_not() -> None:
    good, bad = WidthController(), WidthController()
    SimulatedEngine([0.95], CHEAP, 8).drive(good, 200)
    SimulatedEngine([0.05], DEAR, 8).drive(bad, 200)
    assert (good.width, bad.width) == (4, 0)


def test_a_width_is_kept_for_its_dwell_and_the_next_one_is_a_neighbour() -> None:
    controller = WidthController()
    places = []
    for chances in ([0.95], [0.0], [0.95], [0.5]):
        world = SimulatedEngine(chances, CHEAP, 8)
        for _ in range(300):
            world.drive(controller, 1)
            places.append(controller.config.widths.index(controller.width))
    changes = [at for at in range(1, len(places)) if places[at] != places[at - 1]]
    assert len(changes) >= 6
    assert all(abs(places[at] - places[at - 1]) == 1 for at in changes)
    assert min(later - earlier for earlier, later in pairwise(changes)) >= controller.config.dwell


def test_a_try_is_one_plan_of_a_neighbour_and_no_change() -> None:
    controller = WidthController()
    world = SimulatedEngine([0.05], DEAR, 8)
    world.drive(controller, 200)
    switches = controller.num_switches
    widths = world.drive(controller, 5 * controller.config.probe_every)
    assert widths.count(1) == 5
    assert set(widths) == {0, 1}
    assert controller.num_switches == switches


def test_a_lack_of_blocks_acts_at_once_and_ends_at_width_0() -> None:
    controller = WidthController()
    world = SimulatedEngine([0.95], CHEAP, 8)
    world.drive(controller, 200)
    assert controller.choose(world.conditions._replace(free_blocks=8)) == 0  # the spared ones, and not one beside them
    assert controller.width == 0
    assert controller.choose(world.conditions._replace(free_blocks=0)) == 0


def test_tries_respect_a_lack_of_blocks() -> None:
    controller = WidthController()
    world = SimulatedEngine([0.95], CHEAP, 8, free_blocks=0)
    assert set(world.drive(controller, 4 * controller.config.probe_every)) == {0}


def test_what_is_known_depends_on_what_was_seen_and_not_on_the_widths_that_held() -> None:
    """No state is left behind on a switch: two controllers told the same think the same, whatever they had chosen."""
    calm, moved = WidthController(), WidthController()
    world = SimulatedEngine([0.9], CHEAP, 8)
    for place in range(120):
        news = world.step((1, 2, 4)[place % 3])
        moved.choose(world.conditions)
        for each in (calm, moved):
            each.observe(8, *news)
    assert moved.num_switches > 0 == calm.num_switches
    assert [calm.cost(world.conditions, width) for width in (0, 1, 2, 4)] == [
        moved.cost(world.conditions, width) for width in (0, 1, 2, 4)
    ]


def test_equal_news_bring_equal_choices() -> None:
    one, other = WidthController(), WidthController()
    assert SimulatedEngine([0.7], CHEAP, 4, seed=5).drive(one, 300) == SimulatedEngine([0.7], CHEAP, 4, seed=5).drive(
        other, 300
    )


def test_buckets_of_batch_size_learn_apart() -> None:
    controller = WidthController()
    SimulatedEngine([0.95], CHEAP, 2).drive(controller, 100)
    unseen = Conditions(64, 10_000, 16)
    assert controller.cost(unseen, 4) == WidthController().cost(unseen, 4)


@pytest.mark.parametrize(
    "wrong",
    [{"widths": (1, 2)}, {"widths": (0,)}, {"widths": (0, 4, 2)}, {"smoothing": 0.0}, {"dwell": 0}, {"buckets": (4, 1)},
     {"first_chance": 1.0}, {"memory": 0.5}, {"margin": 1.0}, {"first_costs": (0.0, 0.0, 0.0)}],
    ids=str,
)  # fmt: skip
def test_a_configuration_that_makes_no_sense_is_refused_in_one_sentence(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"a controller's .* found .*; correct the configuration"):
        replace(ControllerConfig(), **wrong)
