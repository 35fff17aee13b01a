"""One storm against one world: every operation applied, every exception a finding, and what was chosen written into the ops.

Owns the run and its record. Never chooses a fault and never says what is wrong: that is World's and the checkers' business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from chaos.storm import Storm
from models.build import world_from
from models.machines.driving import Driver
from models.shrink import Shrunk, shrink_world
from models.streamed_device import StreamedDevice
from models.walk_suite import digest, run_and_check
from properties.op import Op
from properties.suite import Failure
from properties.verdict import Violation

SHRINK_S = 25.0


@dataclass(frozen=True, slots=True)
class StormRun:
    """What a storm came to. ``ops`` carry the choices of the device, so that they alone do it all again."""

    storm: Storm
    ops: tuple[Op, ...]
    driver: Driver
    num_device_ops: int
    num_accesses: int

    @property
    def violation(self) -> Violation | None:
        return self.driver.violation

    @property
    def digest(self) -> str:
        """One word for everything that the storm did and saw."""
        return digest(self.driver.world.history)


def run_storm(storm: Storm) -> StormRun:
    """Runs it to its end or to the first violation, histories included."""
    driver = Driver(storm.spec(), partial(world_from, chooser=storm.chooser()), may_wait=True)
    driver.run(storm.ops())
    driver.judge_history()
    device = driver.world.device
    assert isinstance(device, StreamedDevice)
    simulated = device.simulated
    return StormRun(storm, with_choices(driver.ops, device), driver, simulated.num_run, simulated.races.num_accesses)


def with_choices(ops: Sequence[Op], device: StreamedDevice) -> tuple[Op, ...]:
    """The ops with what the device chose during each of them."""
    chosen = device.recorded()
    return tuple(
        op if op.choices == (now := chosen.get(number, ())) else replace(op, choices=now) for number, op in enumerate(ops)
    )


def failure_of(run: StormRun, shrink_s: float = SHRINK_S) -> Failure:
    """The shortest story found that breaks the same invariant: operations, faults and choices removed together."""
    assert run.violation is not None
    shrunk = shrink_storm(run.storm.spec(), run.ops, run.violation, shrink_s)
    return Failure(shrunk.violation, run.storm.title, shrunk.spec, shrunk.ops, len(run.ops))


def shrink_storm(spec: Mapping[str, Any], ops: Sequence[Op], violation: Violation, shrink_s: float = SHRINK_S) -> Shrunk:
    """See `failure_of`."""
    return shrink_world(spec, ops, violation, run=run_and_check, max_seconds=shrink_s)
