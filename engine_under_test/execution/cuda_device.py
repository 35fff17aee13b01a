"""The streams of a CUDA device behind the device seam, with delays by kernels that spin.

Owns: one CUDA stream for each `Stream`, events between them, and how long an operation is held up for a test. Never: what an
operation does. Each operation is *issued* when it is submitted, on its stream; the device runs it later.

What was last run where stands in docs/last-seen.json: this has not been seen on a CUDA device yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch

from engine_under_test.errors import ConfigError, ProtocolError
from engine_under_test.seams import DeviceOp, Fence, Page, Stream

Spin = Callable[[DeviceOp, Stream], tuple[int, int]]  # clock cycles to spin before and after an operation


class CudaFence:
    """Behind what was on some streams."""

    __slots__ = ("events",)

    def __init__(self, events: tuple[torch.cuda.Event, ...]) -> None:
        self.events = events

    def has_passed(self) -> bool:
        return all(event.query() for event in self.events)  # type: ignore[no-untyped-call]  # torch's `query` is not annotated


class CudaDevice:
    """``spin``: holds operations up, for tests of their order; without it nothing waits but for its own stream and fences."""

    def __init__(self, place: torch.device, spin: Spin | None = None) -> None:
        if place.type != "cuda" or not torch.cuda.is_available():
            raise ConfigError(f"streams of CUDA need a CUDA device, found {place} and none; use a simulated device on a CPU")
        self._place = place
        self._spin = spin
        self._streams = {stream: torch.cuda.Stream(place) for stream in Stream}  # type: ignore[no-untyped-call]  # torch's are not annotated

    def submit(self, op: DeviceOp) -> None:
        """See `seams.Device`: the compute stream."""
        self.submit_to(Stream.COMPUTE, op)

    def submit_to(self, stream: Stream, op: DeviceOp, after: Sequence[Fence] = ()) -> CudaFence:
        """See `seams.StreamDevice`."""
        on = self._streams[stream]
        for fence in after:
            if not isinstance(fence, CudaFence):
                raise ProtocolError(f"an operation waits for fences of its own device, found {fence!r}")
            for event in fence.events:
                on.wait_event(event)
        before_cycles, after_cycles = (0, 0) if self._spin is None else self._spin(op, stream)
        with torch.cuda.stream(on):
            if before_cycles:
                _keep_busy(before_cycles)
            op.run()
            if after_cycles:
                _keep_busy(after_cycles)
        return CudaFence((on.record_event(),))

    def fence(self) -> CudaFence:
        """See `seams.Device`: behind every stream."""
        return CudaFence(tuple(stream.record_event() for stream in self._streams.values()))

    def wait(self, fence: Fence) -> None:
        """See `seams.StreamDevice`."""
        assert isinstance(fence, CudaFence)
        for event in fence.events:
            event.synchronize()

    def synchronize(self) -> None:
        """See `seams.Device`."""
        for stream in self._streams.values():
            stream.synchronize()

    def host_touches(self, reads: Iterable[Page] = (), writes: Iterable[Page] = ()) -> None:
        """See `seams.StreamDevice`: nobody watches here."""


def _keep_busy(cycles: int) -> None:
    """Holds the current stream up."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # torch's only spin on a device, private and without annotations
