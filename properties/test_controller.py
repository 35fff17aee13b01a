"""The width of speculation in a simulated engine: near the best fixed width, calm under noise, quick after a drop.

The simulation owns its truth: a chance for each depth, a price for each stage, log-normal noise on the clock; seeded. Every
number here is a promise of `sampling/controller.py`; none is a wall clock's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pytest

from engine_under_test.errors import ConfigError
from engine_under_test.sampling.controller import Conditions, ControllerConfig, Seconds, Trial, WidthController

PLANS = 1500
REGRET = 0.15  # seconds for each token, over the best fixed width's, the learning included
SWITCHES = 8  # in so many plans of a world that does not change
ANSWER = {1: 64, 8: 20, 64: 20}  # plans within which a drop of acceptance has brought width 0, by rows
CHEAP, MIDDLING, DEAR = (10e-3, 0.1e-3, 1e-3), (5e-3, 0.5e-3, 3e-3), (1e-3, 1e-3, 0.1e-3)  # of a step, a token, a round


@dataclass
class SimulatedEngine:
    """Steps of `num_rows` rows; each draft stands by the chance of its depth, the last chance for all behind."""

    chances: Sequence[float]
    prices: tuple[float, float, float]
    num_rows: int
    seed: int = 0
    noise: float = 0.2
    num_waiting: int = 0
    free_blocks: int = 10_000
    seconds: float = 0.0
    num_tokens: int = 0
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    @property
    def conditions(self) -> Conditions:
        return Conditions(self.num_rows, self.free_blocks, 16, self.num_waiting)

    def step(self, width: int) -> tuple[list[Trial], Seconds]:
        trials = [Trial(width, self._num_accepted(width)) for _ in range(self.num_rows if width else 0)]
        step_s, token_s, round_s = self.prices
        taken = Seconds(width * round_s * self._factor(), (step_s + token_s * self.num_rows * (width + 1)) * self._factor())
        self.seconds += sum(taken)
        self.num_tokens += self.num_rows + sum(trial.num_accepted for trial in trials)
        return trials, taken

    def drive(self, controller: WidthController, num_plans: int) -> list[int]:
        widths = []
        for _ in range(num_plans):
            widths.append(controller.choose(self.conditions))
            controller.observe(self.num_rows, *self.step(widths[-1]))
        return widths

    @property
    def cost(self) -> float:
        return self.seconds / self.num_tokens

    def _num_accepted(self, width: int) -> int:
        found = 0
        while found < width and self._random.random() < self.chances[min(found, len(self.chances) - 1)]:
            found += 1
        return found

    def _factor(self) -> float:
        return self._random.lognormvariate(0, self.noise)


def cost_of_fixed(width: int, engine: SimulatedEngine) -> float:
    for _ in range(PLANS):
        engine.step(width)
    return engine.cost


@pytest.mark.parametrize("prices", [CHEAP, MIDDLING, DEAR], ids=["cheap drafts", "middling drafts", "dear drafts"])
@pytest.mark.parametrize("num_rows", [1, 8])
@pytest.mark.parametrize("chances", [[0.9], [0.5, 0.3], [0.05], [0.8, 0.8, 0.2, 0.1]], ids=str)
def test_regret_against_the_best_fixed_width_is_bounded_and_the_width_is_calm(
    chances: list[float], num_rows: int, prices: tuple[float, float, float]
) -> None:
    controller = WidthController()
    world = SimulatedEngine(chances, prices, num_rows, seed=1)
    best = min(cost_of_fixed(width, replace(world, seed=2)) for width in controller.config.widths)
    world.drive(controller, PLANS)
    assert world.cost <= (1 + REGRET) * best
    assert controller.num_switches <= SWITCHES


def test_a_good_proposer_is_used_and_a_bad_one_is_not() -> None:
    good, bad = WidthController(), WidthController()
    SimulatedEngine([0.95], CHEAP, 8).drive(good, 200)
    SimulatedEngine([0.05], DEAR, 8).drive(bad, 200)
    assert (good.width, bad.width) == (4, 0)


@pytest.mark.parametrize("num_rows", sorted(ANSWER))
def test_a_sudden_drop_of_acceptance_is_answered_within_the_stated_number_of_plans(num_rows: int) -> None:
    for seed in range(8):
        controller = WidthController()
        before = SimulatedEngine([0.95], (10e-3, 0.01e-3, 1e-3), num_rows, seed)
        before.drive(controller, 400)
        assert controller.width == 4, seed
        widths = replace(before, chances=[0.0]).drive(controller, ANSWER[num_rows])
        assert controller.width == 0, (seed, widths)


def test_after_a_rise_of_acceptance_the_tries_find_the_way_up_again() -> None:
    controller = WidthController()
    world = SimulatedEngine([0.02], CHEAP, 8)
    world.drive(controller, 400)
    assert controller.width == 0
    replace(world, chances=[0.95]).drive(controller, 600)
    assert controller.width == 4


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


def test_where_requests_wait_a_draft_costs_the_place_that_it_takes() -> None:
    controller = WidthController()
    world = SimulatedEngine([0.8], MIDDLING, 8)
    world.drive(controller, 200)
    idle, busy = world.conditions, world.conditions._replace(num_waiting=64)
    assert controller.cost(busy, 4) > controller.cost(idle, 4)
    assert controller.cost(busy, 0) == controller.cost(idle, 0)


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
