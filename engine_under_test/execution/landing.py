"""What every runner does around its arithmetic: a launch that waits for its device, and tokens still in flight.

Owns: the waiting, the words of a failure, and the tokens sampled last. Never: how a step is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from engine_under_test.errors import OutOfMemory, ProtocolError, RunnerError
from engine_under_test.execution.asked import NOTHING_TOLD, Told
from engine_under_test.execution.streams import StepStreams, StreamedStep
from engine_under_test.seams import Device, DeviceOp, Fence
from engine_under_test.types import Plan, RowId, StepResult

# A row may want the token of a plan behind which others were lost and launched again; old ones are dropped by number.
_LAUNCHES_REMEMBERED = 32
_SAMPLES_REMEMBERED = 1024


class Outcome(NamedTuple):
    """What the rows of a plan came to: tokens or an error, and whatever else its runner shows of it."""

    tokens: tuple[tuple[int, ...], ...] | None
    error: Exception | None
    more: Any = None
    told: Told = NOTHING_TOLD


class DeviceLaunch:
    """One plan on a device. ``inputs`` is all that its rows compute on, beside the store."""

    __slots__ = ("_device", "_fence", "_outcome", "_row_ids", "_step", "plan")

    def __init__(self, plan: Plan, device: Device, row_ids: tuple[RowId, ...]) -> None:
        self.plan = plan
        self._device = device
        self._row_ids = row_ids
        self._fence: Fence | None = None
        self._step: StreamedStep | None = None  # on a device with streams
        self._outcome: Outcome | None = None

    @property
    def plan_id(self) -> int:
        return self.plan.plan_id

    @property
    def fence(self) -> Fence:
        """See `runner.Launch`."""
        if self._fence is None:
            raise ProtocolError(f"plan {self.plan_id} has no fence before it is on the device; ask after `launch` returned")
        return self._fence

    def put(
        self, streams: StepStreams | None, ops: Iterable[DeviceOp], rows: DeviceOp, inputs: Any, run: Callable[[Any], Outcome]
    ) -> None:
        """Fills and copies (`ops`), then the rows, go on the device. `rows` declares what `run` touches of the store."""
        try:
            if streams is not None:
                self._step = step = streams.launch(self.plan_id, ops, rows, inputs, run)
                self._fence = step.fence
                return
            for op in ops:
                self._device.submit(op)
            now = partial(self._take, run, inputs)
            self._device.submit(DeviceOp(rows.name, rows.reads, rows.writes, now, self.plan_id))
        except OutOfMemory:
            raise
        except Exception as error:
            raise RunnerError(f"plan {self.plan_id}: the device took no more work: {error}; abandon it") from error
        self._fence = self._device.fence()

    def _take(self, run: Callable[[Any], Outcome], inputs: Any) -> None:
        self._outcome = run(inputs)

    def wait(self) -> Outcome | None:
        """Returns when the launch has succeeded or failed, with what it came to; None if it never ran."""
        if self._outcome is None:
            try:
                if self._step is not None:
                    self._outcome = self._step.outcome()
                else:
                    self._device.synchronize()
            except Exception as error:
                self._outcome = Outcome(None, error)
        return self._outcome

    def result(self) -> StepResult:
        """See `runner.Launch`."""
        outcome = self.wait()
        if outcome is None:
            raise RunnerError(f"plan {self.plan_id} was not executed though the device is idle; abandon it")
        tokens, error = outcome.tokens, outcome.error
        if tokens is None or error is not None:
            known = error if isinstance(error, RunnerError) else RunnerError("")
            message = f"plan {self.plan_id} failed on the device: {error}; abandon it"
            raise RunnerError(message, known.rows, distrusts=known.distrusts) from error
        return StepResult(self.plan_id, self.plan.generation, self._row_ids, tokens, *outcome.told)


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
