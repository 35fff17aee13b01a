"""The harness's device with streams: plans run late, piece by piece, in an order that a chooser decides, before watchful eyes.

Owns the instrumented store (what an operation did not declare is hidden from it) and the notes of what each plan changed.
Judges nothing: races and undeclared accesses are handed to whoever asks (`orders`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from engine_under_test.caps import Caps
from engine_under_test.errors import OutOfMemory, RunnerError
from engine_under_test.events import DeviceChoice, Misdeclared, Race
from engine_under_test.execution.fingerprint import BUFFER, FingerprintLaunch, FingerprintRunner
from engine_under_test.execution.runner import Move
from engine_under_test.execution.schedule import Chooser, Delays
from engine_under_test.execution.simulated_device import SimulatedDevice
from engine_under_test.seams import DeviceOp, Space
from engine_under_test.types import PlannedStep
from models.device import Device, Flight
from properties.moment import Execution, NoiseAddress
from properties.op import Op

_WORD_BYTES = 8
HIDDEN = np.uint64(0x7FF8_1DDE_41DD_E41D)  # stands in every page that the running operation has not declared


class KthRefused:
    """Memory that refuses the k-th allocation from when it was told to, on whichever side, or those too large for a piece."""

    def __init__(self) -> None:
        self.left = 0  # allocations up to the refused one; 0: none is
        self.is_for_good = False
        self.largest_piece = 0  # bytes; 0: free memory lies in one piece
        self.asked: Counter[Space] = Counter()
        self.refused: Counter[Space] = Counter()
        self.largest_asked = 0  # bytes
        self.num_scattered = 0  # allocations for which there was no piece

    def admit(self, num_bytes: int, space: Space = Space.DEVICE) -> bool:
        """See `seams.Memory`."""
        self.asked[space] += 1
        self.largest_asked = max(self.largest_asked, num_bytes)
        if self.largest_piece and num_bytes > self.largest_piece:
            self.num_scattered += 1
            return False
        if self.left == 0:
            return True
        if self.left > 1:
            self.left -= 1
            return True
        if not self.is_for_good:
            self.left = 0
        self.refused[space] += 1
        return False

    @property
    def num_asked(self) -> int:
        return self.asked.total()

    @property
    def num_refused(self) -> int:
        """By number, not for want of a piece."""
        return self.refused.total()


class StreamedDevice(Device):
    """As `Device`, over a `SimulatedDevice`. ``choices`` of the ops are followed where the chooser is `Delays`."""

    def __init__(self, caps: Caps, chooser: Chooser | None = None, keeps_rows: bool = False) -> None:
        self.simulated = SimulatedDevice(chooser, wrap=self._run_watched)
        self.memory = KthRefused()
        self.num_unmoved = 0  # blocks whose staging buffer was refused
        self._launches: dict[int, FingerprintLaunch | RunnerError] = {}
        self._steps: dict[int, PlannedStep] = {}
        self._changed: defaultdict[int, set[int]] = defaultdict(set)
        self._stale: dict[int, frozenset[int]] = {}
        self._addresses: dict[int, tuple[NoiseAddress, ...]] = {}
        self._misdeclared: list[Misdeclared] = []
        super().__init__(caps, keeps_rows)
        self.orders = self._take_orders

    def _new_runner(self) -> FingerprintRunner:
        caps = self._caps
        return self._runner_kind(
            caps.num_blocks,
            caps.block_size,
            caps.vocab_size,
            noise=self._noise,
            device=self.simulated,
            memory=self.memory,
            num_adapter_slots=caps.num_adapter_slots,
            grammars=self._grammars(),
        )

    def _look_at_store(self) -> None:
        super()._look_at_store()
        self._pages = self._runner.store.reshape(-1, self._caps.block_size, 2)
        self._all_hidden = np.full_like(self._flat, HIDDEN).tobytes()

    def begin(self, op_index: int, op: Op) -> None:
        """The ops' own choices, and a turn of the device."""
        cause = str(op_index)
        self.simulated.begin(cause)
        if op.choices and isinstance(self.simulated.chooser, Delays):
            self.simulated.chooser.expect(cause, op.choices)
        self.simulated.turn()

    @property
    def is_short(self) -> bool:
        return self.memory.left > 0 or self.memory.largest_piece > 0

    def refuse_memory(self, kth: int, is_for_good: bool) -> bool:
        memory = self.memory
        if kth < 1 and memory.left == 0:
            return False
        memory.left, memory.is_for_good = max(kth, 0), is_for_good
        return True

    def read_block(self, block: int) -> Move:
        """See `execution.runner.Mover`."""
        return self._moved(super().read_block, block)

    def write_block(self, block: int, data: bytes) -> Move:
        """See `execution.runner.Mover`."""
        return self._moved(self._runner.write_block, block, data)

    def _moved(self, move: Callable[..., Move], *args: object) -> Move:
        try:
            return move(*args)
        except OutOfMemory:
            self.num_unmoved += 1
            raise

    def fragment_memory(self, num_words: int) -> bool:
        found = max(num_words, 0) * _WORD_BYTES
        did = found != self.memory.largest_piece
        self.memory.largest_piece = found
        return did

    def launch(self, step: PlannedStep) -> Flight:
        """The plan is put on the streams at once."""
        flight = super().launch(step)
        plan_id = flight.plan_id
        self._steps[plan_id] = step
        try:
            self._launches[plan_id] = self._runner.launch(step.plan, step.reservation)
        except OutOfMemory:
            flight.is_refused = True
        except RunnerError as error:
            self._launches[plan_id] = error
        return flight

    def drop(self, flights: Iterable[Flight]) -> None:
        """What of them did not run yet never will."""
        waiting = [flight for flight in flights if flight.execution is None]
        lost = {flight.plan_id for flight in waiting}
        self.simulated.drop(lambda op: op.plan_id in lost)
        super().drop(waiting)
        for plan_id in lost:
            self._forget(plan_id)

    def restart(self, keeps_content: bool = False) -> None:
        """Whatever was on the streams is gone with the old store, and whoever still asks for the end of it is not told."""
        self.simulated.drop(lambda _op: True, is_silent=True)
        for plan_id in list(self._launches):
            self._forget(plan_id)
        super().restart(keeps_content)

    def recorded(self) -> dict[int, tuple[DeviceChoice, ...]]:
        """By index of the op, the choices that run everything the same way again."""
        return {int(cause): choices for cause, choices in self.simulated.take_record().items() if cause}

    def _take_orders(self) -> tuple[tuple[Race, ...], tuple[Misdeclared, ...]]:
        found, self._misdeclared = tuple(self._misdeclared), []
        return self.simulated.take_races(), found

    def _run(self, flight: Flight) -> Execution:
        """The host waits for the plan's results."""
        plan_id = flight.plan_id
        launch = self._launches[plan_id]
        if isinstance(launch, RunnerError):
            raise launch
        launch.result()
        if bool((launch.cells == HIDDEN).any()):
            self._misdeclared.append(
                Misdeclared(f"rows of plan {plan_id}", "read", BUFFER, self._hidden_blocks(flight, launch))
            )
        found = self._execution(
            flight,
            launch,
            frozenset(self._changed.pop(plan_id, ())),
            self._stale.pop(plan_id, frozenset()),
            self._addresses.pop(plan_id, ()),
        )
        self._forget(plan_id)
        return found

    def _forget(self, plan_id: int) -> None:
        self._launches.pop(plan_id, None)
        self._steps.pop(plan_id, None)
        self._changed.pop(plan_id, None)
        self._stale.pop(plan_id, None)
        self._addresses.pop(plan_id, None)

    def _hidden_blocks(self, flight: Flight, launch: FingerprintLaunch) -> tuple[int, ...]:
        """The blocks that the rows read without having declared them."""
        size, reservation, begin = self._caps.block_size, flight.step.reservation, 0
        found: set[int] = set()
        for table, end in zip(reservation.tables, launch.row_ends, strict=True):
            hidden = (launch.cells[begin:end] == HIDDEN).any(axis=1).nonzero()[0].tolist()
            found.update(table[position // size] for position in hidden)
            begin = end
        return tuple(sorted(found))

    def _run_watched(self, op: DeviceOp) -> None:
        """Runs an operation with every page hidden that it has not declared; notes what it changed."""
        pages = self._pages
        declared = [page.unit for page in op.reads | op.writes if page.buffer == BUFFER]
        places = np.array(declared, np.intp)
        before = pages.copy()
        shown = before.take(places, 0)
        pages.fill(HIDDEN)
        if declared:
            pages[places] = shown
        try:
            op.run()
        finally:
            after = pages.take(places, 0)
            if declared:
                pages[places] = HIDDEN
            if self._flat.tobytes() != self._all_hidden:
                self._undeclared_write(op, (pages != HIDDEN).any(axis=(1, 2)).nonzero()[0].tolist())
            np.copyto(pages, before)
            if declared:
                pages[places] = after
                self._note_changes(op, declared, after != shown)
            if op.name == "rows" and op.plan_id in self._steps:
                self._stale[op.plan_id] = self._stale_slots(self._steps[op.plan_id])
                self._addresses[op.plan_id] = self._noise.take_addresses()

    def _note_changes(self, op: DeviceOp, declared: list[int], changed: npt.NDArray[np.bool_]) -> None:
        """``changed``: [declared pages, slots of a page, layers]."""
        size = self._caps.block_size
        rows, slots, _layers = changed.nonzero()
        units = [declared[row] for row in rows.tolist()]
        if op.plan_id:
            self._changed[op.plan_id].update([unit * size + slot for unit, slot in zip(units, slots.tolist(), strict=True)])
        writable = {page.unit for page in op.writes if page.buffer == BUFFER}
        if not writable.issuperset(units):
            self._undeclared_write(op, set(units) - writable)

    def _undeclared_write(self, op: DeviceOp, units: Iterable[int]) -> None:
        self._misdeclared.append(Misdeclared(op.title, "wrote", BUFFER, tuple(sorted(units))))
