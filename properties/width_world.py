"""The width of speculation in a simulated engine: its truth, its clock, and what `sampling/controller.py` promises there.

Owns a chance for each depth, a price for each stage, log-normal noise on the clock, all from a seed; and how near to the best
fixed width, how calm and how quick a `WidthController` has to be there. Never a wall clock.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Final, NamedTuple

from engine_under_test.sampling.controller import Conditions, Seconds, Trial, WidthController
from properties.invariants.predicate import violation
from properties.verdict import Violation

PLANS: Final = 1500
REGRET: Final = 0.15  # seconds for each token, over the best fixed width's, the learning included
SWITCHES: Final = 8  # in so many plans of a world that does not change
ANSWER: Final = {1: 64, 8: 20, 64: 20}  # plans within which a drop of acceptance has brought width 0, by rows
ESTIMATE: Final = 0.08  # by which the known cost of a token may be off, on the average of many plans
RISE: Final = 600  # plans within which the tries have found the widest again, from 0
Prices = tuple[float, float, float]  # seconds of a step, a token, a round
CHEAP, MIDDLING, DEAR = (10e-3, 0.1e-3, 1e-3), (5e-3, 0.5e-3, 3e-3), (1e-3, 1e-3, 0.1e-3)
PRICES: Final[dict[str, Prices]] = {"cheap drafts": CHEAP, "middling drafts": MIDDLING, "dear drafts": DEAR}
CHANCES: Final = ((0.9,), (0.5, 0.3), (0.05,), (0.8, 0.8, 0.2, 0.1))


@dataclass
class SimulatedEngine:
    """Steps of `num_rows` rows; each draft stands by the chance of its depth, the last chance for all behind."""

    chances: Sequence[float]
    prices: Prices
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
        """One plan at a width, and what came of it."""
        trials = [Trial(width, self._num_accepted(width)) for _ in range(self.num_rows if width else 0)]
        step_s, token_s, round_s = self.prices
        taken = Seconds(width * round_s * self._factor(), (step_s + token_s * self.num_rows * (width + 1)) * self._factor())
        self.seconds += sum(taken)
        self.num_tokens += self.num_rows + sum(trial.num_accepted for trial in trials)
        return trials, taken

    def drive(self, controller: WidthController, num_plans: int) -> list[int]:
        """The widths that it chose."""
        widths = []
        for _ in range(num_plans):
            widths.append(controller.choose(self.conditions))
            controller.observe(self.num_rows, *self.step(widths[-1]))
        return widths

    @property
    def cost(self) -> float:
        """Seconds for each token so far."""
        return self.seconds / self.num_tokens

    def _num_accepted(self, width: int) -> int:
        found = 0
        while found < width and self._random.random() < self.chances[min(found, len(self.chances) - 1)]:
            found += 1
        return found

    def _factor(self) -> float:
        return self._random.lognormvariate(0, self.noise)


def cost_of_fixed(width: int, engine: SimulatedEngine) -> float:
    """Seconds for each token, had the width been this one throughout."""
    for _ in range(PLANS):
        engine.step(width)
    return engine.cost


class Promise(NamedTuple):
    """A sentence about one simulated world; ``broken`` says what was found and what was promised, if it does not hold.
    ``is_long``: it takes thousands of plans of many rows."""

    title: str
    broken: Callable[[], tuple[str, str] | None]
    is_long: bool = False

    def check(self) -> Violation | None:
        """SC-7: a controller that stays behind what it promises keeps everybody waiting."""
        found = self.broken()
        return None if found is None else violation("SC-7", f"the width of drafts, {self.title}", *found)


def promises(seed: int) -> Iterator[Promise]:
    """Every one, in worlds of this seed."""
    for (title, prices), rows, chances in product(PRICES.items(), (1, 8), CHANCES):
        world = SimulatedEngine(chances, prices, rows, seed)
        yield Promise(f"{title}, {rows} rows, chances {chances}", partial(_regret, world), is_long=True)
    for rows in ANSWER:
        yield Promise(f"a drop of acceptance, {rows} rows", partial(_late_answer, rows, seed), rows > 8)
    yield Promise("a rise of acceptance", partial(_no_way_up, seed))
    yield Promise("a rise of acceptance far behind", partial(_no_way_wider, seed))
    yield Promise("what it knows of costs", partial(_wrong_estimate, seed))
    yield Promise("a lack of blocks", partial(_drafts_without_blocks, seed))
    yield Promise("requests that wait", partial(_free_of_charge, seed))


def _regret(world: SimulatedEngine) -> tuple[str, str] | None:
    controller = WidthController()
    fixed = {width: cost_of_fixed(width, replace(world, seed=world.seed + 1)) for width in controller.config.widths}
    best = min(fixed, key=fixed.__getitem__)
    world.drive(controller, PLANS)
    over = world.cost / fixed[best] - 1
    if over > REGRET:
        return f"{over:.0%} more seconds for each token than at width {best}", f"at most {REGRET:.0%} more in {PLANS} plans"
    if controller.num_switches > SWITCHES:
        return f"{controller.num_switches} changes in {PLANS} plans", f"at most {SWITCHES}, nothing having changed"
    return None


def _late_answer(num_rows: int, seed: int) -> tuple[str, str] | None:
    controller = WidthController()
    before = SimulatedEngine((0.95,), (10e-3, 0.01e-3, 1e-3), num_rows, seed)
    before.drive(controller, 400)
    if controller.width != 4:
        return f"width {controller.width} where 95 of 100 drafts stand", "the widest"
    replace(before, chances=(0.0,)).drive(controller, ANSWER[num_rows])
    if controller.width != 0:
        return f"width {controller.width} {ANSWER[num_rows]} plans after every draft falls", "0"
    return None


def _no_way_up(seed: int) -> tuple[str, str] | None:
    controller = WidthController()
    world = SimulatedEngine((0.02,), CHEAP, 8, seed)
    world.drive(controller, 400)
    if controller.width != 0:
        return f"width {controller.width} where 2 of 100 drafts stand", "0"
    replace(world, chances=(0.95,)).drive(controller, RISE)
    if controller.width != 4:
        return f"width {controller.width} {RISE} plans after 95 of 100 drafts stand", "the widest: tries find the way up"
    return None


def _no_way_wider(seed: int) -> tuple[str, str] | None:
    controller = WidthController()
    world = SimulatedEngine((0.95, 0.02), CHEAP, 8, seed)
    world.drive(controller, 400)
    if controller.width != 1:
        return f"width {controller.width} where first drafts stand and second ones fall", "1"
    replace(world, chances=(0.95,)).drive(controller, RISE)
    if controller.width != 4:
        return f"width {controller.width} {RISE} plans after second drafts stand too", "the widest: tries find the way up"
    return None


def _wrong_estimate(seed: int) -> tuple[str, str] | None:
    """At a width that is held: what a token costs, on the average of many looks, against what it cost."""
    controller = WidthController()
    world = SimulatedEngine((0.7,), CHEAP, 8, seed)
    found = []
    for plan in range(PLANS):
        controller.observe(8, *world.step(4))
        if plan > 100 and plan % 20 == 0:
            found.append(controller.cost(world.conditions, 4))
    off = sum(found) / len(found) / world.cost - 1
    if abs(off) > ESTIMATE:
        return f"a token is thought to cost {off:+.0%} beside what it cost", f"within {ESTIMATE:.0%}, on the average"
    return None


def _drafts_without_blocks(seed: int) -> tuple[str, str] | None:
    controller = WidthController()
    world = SimulatedEngine((0.95,), CHEAP, 8, seed)
    world.drive(controller, 200)
    spared = world.conditions._replace(free_blocks=8)  # one for each row, which are spared
    if (width := controller.choose(spared)) != 0:
        return f"width {width} where no block is left but those that are spared", "0, at once"
    return None


def _free_of_charge(seed: int) -> tuple[str, str] | None:
    controller = WidthController()
    world = SimulatedEngine((0.8,), MIDDLING, 8, seed)
    world.drive(controller, 200)
    idle, busy = world.conditions, world.conditions._replace(num_waiting=64)
    if not controller.cost(busy, 4) > controller.cost(idle, 4):
        return "a draft costs no more where 64 requests wait", "the place that it takes from a prompt has its price"
    if controller.cost(busy, 0) != controller.cost(idle, 0):
        return "width 0 has another price where 64 requests wait", "the same: it takes no place from anybody"
    return None
