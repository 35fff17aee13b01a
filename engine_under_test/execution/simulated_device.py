"""A device of several streams whose operations are closures that run late, in an order that a chooser decides.

Owns: the queues, what has run, what the host has seen, and the record of when each operation ran. Never: an order of its own
choosing within what streams and waits allow, or what operations mean.

Everything happens on the caller's thread, inside the caller's calls: the same calls with the same chooser give the same run.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from engine_under_test.errors import ProtocolError
from engine_under_test.events import DeviceChoice, Race
from engine_under_test.execution.races import Clock, RaceDetector, join
from engine_under_test.execution.schedule import TURN, Chooser, Delays
from engine_under_test.seams import DeviceOp, Fence, Page, Stream

_REMEMBERED = 512  # operations, for a loss of the device
_SPINS = 64  # times that a host asks in vain before it gives way, as whoever spins must (Musuvathi and Qadeer, PLDI 2008)
_PATIENCE = 100_000  # turns that a host waits before it says that the device hangs


@dataclass(slots=True, eq=False)
class Queued:
    """An operation on its stream. ``submitted``: in which turn. ``due``: the place from which it may run. ``ran``: the place
    at which it did."""

    op: DeviceOp
    stream: Stream
    number: int
    cause: str
    kth: int
    submitted: int
    due: int
    late: int
    after: tuple[SimulatedFence, ...]
    clock: Clock
    ran: int | None = None
    is_dropped: bool = False
    is_silent: bool = False  # dropped, and the host never hears of it
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class SimulatedFence:
    """Behind some operations. The device may be past it before the host can know."""

    device: SimulatedDevice
    ops: tuple[Queued, ...]
    clock: Clock
    is_seen: bool = field(default=False)

    def is_done(self) -> bool:
        """For the device: everything before the fence has run (or never will, having been dropped)."""
        return all(op.ran is not None or op.is_dropped for op in self.ops)

    def has_passed(self) -> bool:
        """For the host, which thereby knows."""
        device = self.device
        device.turn(host_waits=device.num_vain >= _SPINS)
        has_passed = self.look()
        device.num_vain = 0 if has_passed else device.num_vain + 1
        return has_passed

    def look(self) -> bool:
        """As `has_passed`, without a turn of the device."""
        if self.is_seen:
            return True
        self.is_seen = self.would_pass()
        if self.is_seen:
            self.device.races.host_saw(self.clock)
        return self.is_seen

    def would_pass(self) -> bool:
        """Whether the host would see it now: for onlookers, of whose look nobody learns."""
        turn = self.device.now // TURN
        return all(
            (op.is_dropped and not op.is_silent) or (op.ran is not None and op.ran // TURN + op.late <= turn) for op in self.ops
        )


class SimulatedDevice:
    """Streams whose work runs between the host's calls.

    ``now``: in places of `schedule.TURN` to a turn. ``cause``: what the host is doing, for the keys of choices; set with
    `begin`. ``wrap``: handed each operation that is about to run, with the call that runs it (an instrumented store).
    """

    def __init__(self, chooser: Chooser | None = None, wrap: Callable[[DeviceOp], None] | None = None) -> None:
        self.chooser: Chooser = Delays() if chooser is None else chooser
        self.races = RaceDetector()
        self.now = 0
        self.num_run = 0
        self.num_vain = 0  # times in a row that the host has asked for a fence that had not passed
        self._wrap = wrap
        self._queues: dict[Stream, deque[Queued]] = {stream: deque() for stream in Stream}
        self._newest: dict[Stream, Queued] = {}
        self._count = 0
        self._cause = ""
        self._kth: dict[Stream, int] = {}
        self._record: list[Queued] = []
        self._recent: deque[Queued] = deque(maxlen=_REMEMBERED)

    # -- the seam ----------------------------------------------------------------------------------------------

    def submit(self, op: DeviceOp) -> None:
        """See `seams.Device`: the compute stream."""
        self.submit_to(Stream.COMPUTE, op)

    def submit_to(self, stream: Stream, op: DeviceOp, after: Sequence[Fence] = ()) -> SimulatedFence:
        """See `seams.StreamDevice`."""
        fences = tuple(fence for fence in after if isinstance(fence, SimulatedFence))
        if len(fences) != len(after):
            raise ProtocolError(f"an operation waits for fences of its own device, found {after!r}")
        kth = self._kth.get(stream, 0)
        self._kth[stream] = kth + 1
        delay, late = self.chooser.choose(self._cause, stream, kth)
        clock = self.races.submitted(stream, op, [fence.clock for fence in fences])
        queued = Queued(
            op, stream, self._count, self._cause, kth, self.now // TURN, self.now // TURN * TURN + delay, late, fences, clock
        )
        self._count += 1
        self._queues[stream].append(queued)
        self._newest[stream] = queued
        self._record.append(queued)
        self._recent.append(queued)
        self.turn()
        return SimulatedFence(self, (queued,), clock)

    def fence(self) -> SimulatedFence:
        """See `seams.Device`: behind every stream."""
        newest = tuple(self._newest.values())
        return SimulatedFence(self, newest, join([op.clock for op in newest]) if newest else self.races.everything())

    def wait(self, fence: Fence) -> None:
        """See `seams.StreamDevice`."""
        assert isinstance(fence, SimulatedFence)
        for _ in range(_PATIENCE):
            if fence.look():
                break
            self.turn(host_waits=True)
        else:
            waiting = ", ".join(f"{op.op.title} on {op.stream}" for op in fence.ops if op.ran is None)
            raise ProtocolError(f"the host waits for ever: {waiting or 'the end of an operation'} never comes")
        for op in fence.ops:
            if op.error is not None:
                raise op.error

    def synchronize(self) -> None:
        """See `seams.Device`: every stream, an error that was not raised yet included."""
        self.wait(self.fence())

    def host_touches(self, reads: Iterable[Page] = (), writes: Iterable[Page] = ()) -> None:
        """See `seams.StreamDevice`."""
        self.races.host_touched(reads, writes)

    # -- for whoever plays with time ---------------------------------------------------------------------------

    def begin(self, cause: str) -> None:
        """From now on the host does this; operations are counted anew."""
        self._cause = self.races.cause = cause
        self._kth = {}

    def turn(self, host_waits: bool = False) -> None:
        """A turn passes: whatever the chooser lets run now runs."""
        self.now = (self.now // TURN + 1) * TURN
        if not any(self._queues.values()):
            return
        end = self.now + TURN
        while ready := self._ready():
            chosen = self.chooser.next(ready, end, host_waits)
            if chosen is None:
                return
            assert isinstance(chosen, Queued)
            self._run(chosen)
            self.now = min(self.now + 1, end - 1)

    def take_races(self) -> tuple[Race, ...]:
        """Those found since the last call."""
        return self.races.take_races()

    def take_record(self) -> dict[str, tuple[DeviceChoice, ...]]:
        """By cause, what has run since the last call as delays with which `schedule.Delays` runs it the same way again."""
        found: dict[str, list[DeviceChoice]] = {}
        still = []
        for op in self._record:
            if op.ran is None and not op.is_dropped:
                still.append(op)
                continue
            began = op.due if op.ran is None else op.ran  # one that was dropped: not before it was
            choice = DeviceChoice(op.stream.value, op.kth, began - op.submitted * TURN, op.late)
            found.setdefault(op.cause, []).append(choice)
        self._record = still
        return {cause: tuple(choices) for cause, choices in found.items()}

    def drop(self, is_lost: Callable[[DeviceOp], bool], *, is_silent: bool = False) -> None:
        """What was not run yet and is lost never will be: the device has failed beneath it, and the host knows. For the order
        of accesses that is as good as having seen the end of it. ``is_silent``: nobody tells the fences behind it, as when the
        device that they were of is gone."""
        for queued in self._recent:
            if is_lost(queued.op):
                self.races.host_saw(queued.clock)
        for stream, queue in self._queues.items():
            kept: deque[Queued] = deque()
            for queued in queue:
                queued.is_dropped = is_lost(queued.op)
                if queued.is_dropped:
                    queued.is_silent = is_silent
                    queued.due = max(queued.due, self.now + TURN)
                else:
                    kept.append(queued)
            self._queues[stream] = kept

    def _ready(self) -> list[Queued]:
        """The heads of streams that wait for nothing."""
        heads = [queue[0] for queue in self._queues.values() if queue]
        return [head for head in heads if not head.after or all(map(SimulatedFence.is_done, head.after))]

    def _run(self, queued: Queued) -> None:
        self._queues[queued.stream].popleft()
        queued.ran = self.now
        self.num_run += 1
        try:
            if self._wrap is None:
                queued.op.run()
            else:
                self._wrap(queued.op)
        except Exception as error:  # raised to whoever waits for it
            queued.error = error
