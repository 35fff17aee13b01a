"""Stand-ins for seams that a harness hands in: a device whose work waits, a runner that fails, noise that remembers.

Owns: faults and recordings at the seams of execution. Never: a verdict on what they bring to light.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import RunnerError
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.seams import DeviceOp, Fence, Noise
from engine_under_test.types import Plan, Reservation, StepResult
from properties.moment import NoiseAddress


class HeldFence:
    """A fence of a `HeldDevice`."""

    def __init__(self, device: HeldDevice, num_ops: int) -> None:
        self._device = device
        self._num_ops = num_ops

    def has_passed(self) -> bool:
        return self._device.num_settled >= self._num_ops


class HeldDevice:
    """Operations run when somebody synchronises (or while they are submitted), fences pass when the test releases them.

    ``runs_late``: keep operations until `synchronize`. ``ops``: everything submitted, in order. ``num_settled``: how many
    of them the host has seen end.
    """

    def __init__(self, *, runs_late: bool = True) -> None:
        self.ops: list[DeviceOp] = []
        self.num_settled = 0
        self._runs_late = runs_late
        self._waiting: deque[DeviceOp] = deque()

    def submit(self, op: DeviceOp) -> None:
        self.ops.append(op)
        self._waiting.append(op)
        if not self._runs_late:
            self.synchronize()

    def fence(self) -> Fence:
        return HeldFence(self, len(self.ops))

    def synchronize(self) -> None:
        while self._waiting:
            self._waiting.popleft().run()

    def release_fences(self) -> None:
        """Runs what waits; every fence made so far has passed afterwards."""
        self.synchronize()
        self.num_settled = len(self.ops)


class _FailingLaunch:
    def __init__(self, launch: Launch) -> None:
        self.plan_id = launch.plan_id
        self.fence = launch.fence

    def result(self) -> StepResult:
        raise RunnerError(f"plan {self.plan_id}: a failure was injected into its result")


class FailingRunner:
    """A runner whose k-th launches fail, counted from 1: at the launch (nothing runs), or at the result (everything ran)."""

    def __init__(self, runner: Runner, *, at_launch: Collection[int] = (), at_result: Collection[int] = ()) -> None:
        self._runner = runner
        self._at_launch = frozenset(at_launch)
        self._at_result = frozenset(at_result)
        self.num_launches = 0

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        self.num_launches += 1
        if self.num_launches in self._at_launch:
            raise RunnerError(f"plan {plan.plan_id}: a failure was injected into its launch")
        launch = self._runner.launch(plan, reservation)
        return _FailingLaunch(launch) if self.num_launches in self._at_result else launch


class RecordingNoise:
    """Noise that remembers each address drawn, in order, until somebody takes them (ST-3). Lanes are not recorded: a draw
    takes all lanes of its address."""

    def __init__(self, noise: Noise) -> None:
        self._noise = noise
        self._addresses: list[NoiseAddress] = []

    def uniform(
        self,
        seeds: npt.NDArray[np.uint64],
        choices: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.uint32],
        purpose: int,
        num_lanes: int,
    ) -> npt.NDArray[np.float64]:
        rows = zip(seeds.tolist(), choices.tolist(), positions.tolist(), strict=True)
        self._addresses.extend(NoiseAddress(seed, choice, position, purpose) for seed, choice, position in rows)
        return self._noise.uniform(seeds, choices, positions, purpose, num_lanes)

    def uniform_at(
        self, seed: int, choice: int, position: int, purpose: int, lanes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        self._addresses.append(NoiseAddress(seed, choice, position, purpose))
        return self._noise.uniform_at(seed, choice, position, purpose, lanes)

    def take_addresses(self) -> tuple[NoiseAddress, ...]:
        """What was drawn since the last call."""
        taken = tuple(self._addresses)
        self._addresses.clear()
        return taken
