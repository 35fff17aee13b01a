"""Walks in worlds with more adapters than slots, that are loaded, reloaded and unloaded while requests use them.

Owns the worlds, how much of them, and what must have been reached for a verdict. What a walk does stands in `models.walk`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from engine_under_test.config import Order
from models.reach import Reach
from models.slot_reach import SLOT_REACHES
from models.walk import WalkShape, adapter_shape
from models.walk_suite import run_shapes
from properties.suite import CheckResult, Profile, Suite, SuiteContext


def _by_priority(shape: WalkShape) -> WalkShape:
    return replace(shape, config=replace(shape.config, order=Order.PRIORITY, max_overtakes=3))


SHAPES: dict[str, WalkShape] = {
    "adapters": adapter_shape(),
    "adapters-one-slot": adapter_shape(1, num_slots=1),
    "adapters-deeper": adapter_shape(2, fault_rate=0.12, keeps_rows=True),
    "adapters-priority": _by_priority(adapter_shape(1)),
}
_WORK = {Profile.QUICK: (1, 150), Profile.PR: (1, 1200), Profile.NIGHTLY: (40, 3000)}  # walks a shape, ops a walk
_RARE = (Reach.VERSIONS_TOGETHER, Reach.SLOT_AWAITED_LONGEST, Reach.SLOT_LOST)


def floors(profile: Profile) -> Mapping[Reach, int]:
    """How often each state of slots must be reached."""
    common, rare = {Profile.QUICK: (1, 0), Profile.PR: (10, 3), Profile.NIGHTLY: (400, 60)}[profile]
    return {reach: rare if reach in _RARE else common for reach in SLOT_REACHES}


def _run(context: SuiteContext) -> CheckResult:
    walks, num_ops = _WORK[context.profile]
    return run_shapes(context, "adapter-slots", SHAPES, walks, num_ops, floors(context.profile))


ADAPTER_SLOTS = Suite("adapter-slots", "walks with more adapters than slots", _run, share_s=10.0, has_walk_seeds=True)
