"""Hypothesis as the chooser of the device's order: what each operation puts on a stream starts and ends when it says.

What it draws are values of the operations, so that it shrinks them with everything else, and a replay has them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from engine_under_test.events import DeviceChoice
from engine_under_test.execution.schedule import TURN
from engine_under_test.seams import Stream
from models.build import world_from
from models.scenarios import DRAIN, HOLD, LET_GO, PLAN, POLL, RESET, STEP, abort, add, land, spec
from models.streamed_device import StreamedDevice
from models.world import World
from properties.op import Op

_CHOICES = st.lists(
    st.builds(
        DeviceChoice, st.sampled_from(list(Stream)), st.integers(0, 2), st.integers(0, 8).map(TURN.__mul__), st.integers(0, 4)
    ),
    max_size=3,
).map(tuple)
_STORY: tuple[Op, ...] = (  # choices that part, a preemption, an abort in flight, blocks that are used again, a reset
    *(add("a", 5, 6, n=2), PLAN, PLAN, PLAN, add("b", 7, 5, leaves_at=0, variant=1), land(), PLAN, abort("a"), POLL, land()),
    *(add("c", 9, 3, leaves_at=4, variant=2), STEP, HOLD, STEP, RESET, PLAN, LET_GO, add("d", 5, 4), STEP, STEP, STEP, DRAIN),
)
_ORDERS = st.lists(_CHOICES, min_size=len(_STORY), max_size=len(_STORY))


def told(depth: int, orders: list[tuple[DeviceChoice, ...]]) -> World:
    world = world_from({**spec(10, 2, max_plans_in_flight=1 + depth), "device": "streams"})
    world.run(replace(op, choices=choices) for op, choices in zip(_STORY, orders, strict=False))
    return world


@pytest.mark.parametrize("depth", [0, 1, 2], ids="depth {}".format)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(orders=_ORDERS)
def test_a_story_is_valid_in_every_order_that_is_drawn(depth: int, orders: list[tuple[DeviceChoice, ...]]) -> None:
    assert told(depth, orders).violation is None


def test_what_is_drawn_decides_when_things_end_and_shrinks_to_one_choice() -> None:
    def ends(orders: list[tuple[DeviceChoice, ...]]) -> int:
        device = told(2, orders).device
        assert isinstance(device, StreamedDevice)
        return device.simulated.now

    few = 6  # operations
    prompt = ends([()] * few)
    quick = settings(max_examples=40, deadline=None, phases=[Phase.generate, Phase.shrink], derandomize=True, database=None)
    orders = find(st.lists(_CHOICES, min_size=few, max_size=few), lambda each: ends(each) > prompt, settings=quick)
    assert sum(map(len, orders)) == 1
