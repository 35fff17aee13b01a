"""What every runner does around its arithmetic: a launch that waits for its device, and tokens still in flight.

Owns: the waiting, the words of a failure, and the tokens sampled last. Never: how a step is computed.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from engine_under_test.errors import ProtocolError, RunnerError
from engine_under_test.seams import Device, Fence
from engine_under_test.types import Plan, RowId, StepResult

# A row may want the token of a plan behind which others were lost and launched again; old ones are dropped by number.
_LAUNCHES_REMEMBERED = 32
_SAMPLES_REMEMBERED = 1024


class DeviceLaunch:
    """One plan on a device. Its operation calls `succeed` or `fail`, once, whenever it runs."""

    __slots__ = ("_device", "_error", "_fence", "_result", "plan")

    def __init__(self, plan: Plan, device: Device) -> None:
        self.plan = plan
        self._device = device
        self._fence: Fence | None = None
        self._result: StepResult | None = None
        self._error: Exception | None = None

    @property
    def plan_id(self) -> int:
        return self.plan.plan_id

    @property
    def fence(self) -> Fence:
        """See `runner.Launch`."""
        if self._fence is None:
            raise ProtocolError(f"plan {self.plan_id} has no fence before it is on the device; ask after `launch` returned")
        return self._fence

    def close(self) -> None:
        """Everything of this launch is on the device."""
        self._fence = self._device.fence()

    def succeed(self, row_ids: tuple[RowId, ...], tokens: tuple[tuple[int, ...], ...]) -> None:
        self._result = StepResult(self.plan_id, self.plan.generation, row_ids, tokens)

    def fail(self, error: Exception) -> None:
        self._error = error

    def wait(self) -> None:
        """Returns when the launch has succeeded or failed."""
        if self._result is None and self._error is None:
            try:
                self._device.synchronize()
            except Exception as error:
                self._error = error

    def result(self) -> StepResult:
        """See `runner.Launch`."""
        self.wait()
        if self._error is not None:
            rows = self._error.rows if isinstance(self._error, RunnerError) else ()
            raise RunnerError(f"plan {self.plan_id} failed on the device: {self._error}; abandon it", rows) from self._error
        if self._result is None:
            raise RunnerError(f"plan {self.plan_id} was not executed though the device is idle; abandon it")
        return self._result


class LastSamples:
    """The tokens sampled last, by row and position, for the plans behind, which may run before the host has seen them."""

    __slots__ = ("_generation", "_tokens")

    def __init__(self) -> None:
        self._generation: int | None = None
        self._tokens: dict[tuple[RowId, int], int] = {}  # oldest first

    def begin(self, generation: int) -> None:
        """Nothing is left of an older generation."""
        if generation != self._generation:
            self._generation = generation
            self._tokens.clear()

    def find(self, row: RowId, position: int) -> int:
        """The token that `row` sampled for `position`; RunnerError if that plan has failed or never ran."""
        token = self._tokens.get((row, position))
        if token is None:
            raise RunnerError(f"row {row} wants a token in flight that none of the last launches sampled")
        return token

    def remember(self, sampled: Iterable[tuple[RowId, int, int]]) -> None:
        """Rows with their positions and tokens, of one launch."""
        tokens = self._tokens
        num_before = len(tokens)
        for row, position, token in sampled:
            tokens.pop((row, position), None)
            tokens[row, position] = token
        num_kept = max(_SAMPLES_REMEMBERED, _LAUNCHES_REMEMBERED * (len(tokens) - num_before))
        for address in list(islice(tokens, max(len(tokens) - num_kept, 0))):
            del tokens[address]
