"""The choreography of a step on a device with several streams: upload, fills and copies, rows, download.

Owns: the staging buffers on both sides of the bus, and every wait between the streams of one device. Never: what a fill, a copy
or a row computes. Every launch goes

    host     writes its inputs into a pinned buffer
    COPY_IN  upload (pinned buffer -> inputs on the device), fills, copies
    COMPUTE  after these: rows (inputs, KV -> KV, outputs on the device)
    COPY_OUT after the rows: download (outputs on the device -> pinned buffer)
    host     after the download: reads the outputs

and the buffers are taken in turn: the host waits for the download of whoever had them before. Fills and copies need no wait
for earlier rows, since a block is handed out again only after the host saw the last use of it end (KV-10).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from engine_under_test.errors import OutOfMemory
from engine_under_test.seams import DeviceOp, Fence, Memory, Page, Space, Stream, StreamDevice
from engine_under_test.types import AdapterLoad, BlockCopy, Reservation

INPUTS, OUTPUTS = "inputs", "outputs"  # buffers on the device
PINNED_INPUTS, PINNED_OUTPUTS = "pinned inputs", "pinned outputs"  # buffers of the host that the device reads and writes
_WORD_BYTES = 8
_ALLOCATIONS = (  # of a step, in this order
    ("what the host notes of it", Space.HOST),
    (PINNED_INPUTS, Space.PINNED),
    (INPUTS, Space.DEVICE),
    (OUTPUTS, Space.DEVICE),
    (PINNED_OUTPUTS, Space.PINNED),
)
ADAPTERS = "adapters"  # the buffer of the pages that are slots for adapters
SAMPLES = Page("samples", 0)  # the tokens sampled last, for plans behind


def nothing() -> None:
    """In the place of what `StepStreams.launch` puts there."""


def fills_and_copies(
    pages: Sequence[Page],
    reservation: Reservation,
    fill: Callable[[Sequence[int]], None],
    copy: Callable[[Sequence[BlockCopy]], None],
) -> list[DeviceOp]:
    """What the device does before the rows of a step, in order, with what it touches declared."""
    plan_id, fills, copies = reservation.plan_id, reservation.fills, reservation.copies
    found = []
    if fills:
        written = frozenset(map(pages.__getitem__, fills))
        found.append(DeviceOp("fill", frozenset(), written, partial(fill, fills), plan_id))
    if copies:
        sources = frozenset(pages[each.source] for each in copies)
        targets = frozenset(pages[each.target] for each in copies)
        found.append(DeviceOp("copy", sources, targets, partial(copy, copies), plan_id))
    return found


def adapter_loads(reservation: Reservation, load: Callable[[Sequence[AdapterLoad]], None]) -> list[DeviceOp]:
    """Behind fills and copies: what is loaded into slots before the rows of a step. A slot is taken again only after the host
    saw the last use of it end, like a block."""
    loads = reservation.adapter_loads
    if not loads:
        return []
    written = frozenset([Page(ADAPTERS, each.slot) for each in loads])
    return [DeviceOp("load adapters", frozenset(), written, partial(load, loads), reservation.plan_id)]


def adapter_pages(reservation: Reservation) -> frozenset[Page]:
    """The slots that the rows of a step read."""
    return frozenset([Page(ADAPTERS, slot) for slot in reservation.adapter_slots if slot])


class _Buffers:
    """One set of staging buffers, and the launch that has it."""

    __slots__ = ("inputs", "outputs", "owner", "pages", "pinned_inputs", "pinned_outputs")

    def __init__(self, number: int) -> None:
        self.pages = {name: Page(name, number) for name in (INPUTS, OUTPUTS, PINNED_INPUTS, PINNED_OUTPUTS)}
        self.inputs: Any = None
        self.outputs: Any = None
        self.pinned_inputs: Any = None
        self.pinned_outputs: Any = None
        self.owner: StreamedStep | None = None


class StreamedStep:
    """One launch on its way. ``fence`` is behind all that touches KV."""

    __slots__ = ("_buffers", "_device", "_download", "_outcome", "fence")

    def __init__(self, device: StreamDevice, buffers: _Buffers, fence: Fence, download: Fence) -> None:
        self._device = device
        self._buffers: _Buffers | None = buffers
        self._download = download
        self._outcome: Any = None
        self.fence = fence

    def outcome(self) -> Any:
        """Waits for the download; what the rows returned, each time the same. None if they never ran."""
        buffers = self._buffers
        if buffers is not None:
            self._device.wait(self._download)
            self._device.host_touches(reads=(buffers.pages[PINNED_OUTPUTS],))
            self._outcome, buffers.pinned_outputs = buffers.pinned_outputs, None
            self._buffers = buffers.owner = None
        return self._outcome


class StepStreams:
    """Launches steps on the streams of one device."""

    def __init__(self, device: StreamDevice, memory: Memory | None = None, num_buffers: int = 4) -> None:
        self._device = device
        self._memory = memory
        self._buffers = [_Buffers(number) for number in range(num_buffers)]
        self._next = 0

    def launch(
        self, plan_id: int, before: Iterable[DeviceOp], rows: DeviceOp, inputs: Any, compute: Callable[[Any], Any]
    ) -> StreamedStep:
        """``before``: fills and copies, in order. ``rows`` declares what `compute` reads and writes in KV; it is given the
        inputs as the device has them by then, and returns the outcome. Raises OutOfMemory, with nothing on the device, if one
        of the four staging buffers, or what the host needs, is refused."""
        self._allocate(plan_id, rows)
        device, buffers = self._device, self._buffers[self._next]
        self._next = (self._next + 1) % len(self._buffers)
        if buffers.owner is not None:
            buffers.owner.outcome()
        pages = buffers.pages
        device.host_touches(writes=(pages[PINNED_INPUTS],))
        buffers.pinned_inputs = inputs

        def upload() -> None:
            buffers.inputs = buffers.pinned_inputs

        def run() -> None:
            buffers.outputs = compute(buffers.inputs)

        def download() -> None:
            buffers.pinned_outputs = buffers.outputs

        def op(name: str, source: str, target: str, action: Callable[[], None]) -> DeviceOp:
            return DeviceOp(name, frozenset((pages[source],)), frozenset((pages[target],)), action, plan_id)

        ready = device.submit_to(Stream.COPY_IN, op("upload", PINNED_INPUTS, INPUTS, upload))
        for each in before:
            ready = device.submit_to(Stream.COPY_IN, each)
        rows = replace(
            rows,
            reads=rows.reads | {pages[INPUTS], SAMPLES},
            writes=rows.writes | {pages[OUTPUTS], SAMPLES},
            run=run,
        )
        computed = device.submit_to(Stream.COMPUTE, rows, after=(ready,))
        ended = device.submit_to(Stream.COPY_OUT, op("download", OUTPUTS, PINNED_OUTPUTS, download), after=(computed,))
        step = buffers.owner = StreamedStep(device, buffers, computed, ended)
        return step

    def _allocate(self, plan_id: int, rows: DeviceOp) -> None:
        """Asks for what the step needs on the host, then for each staging buffer on both sides of the bus: a word for each
        page that the rows touch."""
        memory = self._memory
        if memory is None:
            return
        num_bytes = _WORD_BYTES * (len(rows.reads) + len(rows.writes))
        for name, space in _ALLOCATIONS:
            if not memory.admit(num_bytes, space):
                raise OutOfMemory(f"plan {plan_id}: {num_bytes} bytes of {name} were refused; run fewer rows at once")
