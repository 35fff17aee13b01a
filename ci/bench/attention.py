"""How much of the device's copy bandwidth attention of decodes reaches: `assay bench attention`, on a CUDA device.

Owns the loads, what counts as moved, and the floor. A copy is counted by what it reads and writes; attention by the keys and
values that it must read, once each, and by nothing else. Both are replayed from CUDA graphs, in turns, so that neither the
host's time nor a slow moment of the device falls on one of them alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ci.bench.bench import Line, NotMeasurable
from ci.bench.calibration import calibrate
from properties.suite import Figure, Label

SHARE_FLOOR = 0.70  # given; the aim is 0.85
_ROUNDS, _CALLS, _WARM_UP = 15, 10, 3  # calls: of what is measured, in each graph
_COPIED_BYTES = 1 << 31  # many times any cache of a device
_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Load:
    """Decodes of equal length, in bfloat16. ``length`` in tokens."""

    rows: int
    length: int
    heads: int
    kv_heads: int
    head: int

    @property
    def name(self) -> str:
        return f"{self.rows} x {self.length}, {self.heads}/{self.kv_heads} heads of {self.head}"

    @property
    def bytes_read(self) -> int:
        """Keys and values, two bytes each."""
        return self.rows * self.length * self.kv_heads * self.head * 2 * 2


LOADS = (
    Load(64, 2048, 32, 8, 128),
    Load(64, 4096, 32, 8, 128),
    Load(64, 8192, 32, 8, 128),
    Load(64, 4096, 32, 8, 64),
)


def measure_attention(say: Callable[[str], None]) -> tuple[list[Line], list[float]]:
    """The lines, and the calibration times of the run. Raises NotMeasurable without a CUDA device."""
    try:
        import torch
        import triton  # noqa: F401 # asked for now, so that a missing one is said before anything is built
    except ModuleNotFoundError as error:
        raise NotMeasurable(f"{error.name} is not installed; say pip install -e '.[model]'") from error
    if not torch.cuda.is_available():
        raise NotMeasurable("no CUDA device; run it on a machine that has one")
    copied = torch.ones(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(copied)
    copy_s = _replayed(lambda: target.copy_(copied))
    copy_rates: list[float] = []
    rates: dict[Load, list[float]] = {load: [] for load in LOADS}
    calibrations: list[float] = []
    for load in LOADS:
        say(f"attention: {load.name}, checked against dense attention")
        attend, check = prepared(load, "cuda")
        check()
        attend_s = _replayed(attend)
        for _ in range(_ROUNDS):
            calibrations.append(calibrate())
            copy_rates.append(2 * _COPIED_BYTES / copy_s())
            rates[load].append(load.bytes_read / attend_s())
    return lines_of(copy_rates, rates), calibrations


def prepared(load: Load, device: str) -> tuple[Callable[[], Any], Callable[[], None]]:
    """What is measured, and a check of what it computes: both on a cache in which the blocks of all rows lie scrambled."""
    import torch

    from engine_under_test.execution.kernels import decode_attention

    generator = torch.Generator(device=device).manual_seed(1)
    width = -(-load.length // _BLOCK)
    cache = (load.rows * width * _BLOCK, load.kv_heads, load.head)
    options: dict[str, Any] = {"generator": generator, "device": device, "dtype": torch.bfloat16}
    keys, values = torch.randn(cache, **options), torch.randn(cache, **options)
    queries = torch.randn(load.rows, load.heads, load.head, **options)
    tables = torch.randperm(load.rows * width, generator=generator, device=device).to(torch.int32).view(load.rows, width)
    lengths = torch.full((load.rows,), load.length, dtype=torch.int32, device=device)

    def attend() -> torch.Tensor:
        return decode_attention(queries, keys, values, tables, lengths, _BLOCK)

    def check() -> None:
        found = attend()
        for row in (0, load.rows - 1):
            slots = (tables[row].long()[:, None] * _BLOCK + torch.arange(_BLOCK, device=device)).view(-1)[: load.length]
            query = queries[row].double().view(load.kv_heads, -1, load.head)
            weights = (query @ keys[slots].double().permute(1, 2, 0) * load.head**-0.5).softmax(-1)
            wanted = (weights @ values[slots].double().transpose(0, 1)).view(load.heads, load.head)
            error = (found[row].double() - wanted).abs().max().item()
            if not error < 0.02:
                raise AssertionError(f"attention must be right to be timed, found an error of {error:.3g} in row {row}")

    return attend, check


def lines_of(copy_rates: list[float], rates: dict[Load, list[float]]) -> list[Line]:
    """Bandwidths in bytes a second, and for each load its share of the copies, with the floor."""
    copy = statistics.median(copy_rates)
    lines = [Line(Figure("attention.copy", copy / 1e9, "GB/s", Label.OBSERVED, "read and written"))]
    for load, found in rates.items():
        rate = statistics.median(found)
        lines.append(Line(Figure(f"attention.read, {load.name}", rate / 1e9, "GB/s", Label.OBSERVED, "keys and values")))
        share = Figure(f"attention.share_of_copy, {load.name}", rate / copy, "1", Label.DERIVED, "aim 0.85")
        lines.append(Line(share, at_least=SHARE_FLOOR, is_ratio=True))
    return lines


def _replayed(call: Callable[[], Any]) -> Callable[[], float]:
    """Seconds of one call, each time it is asked."""
    import torch

    for _ in range(_WARM_UP):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            call()
    graph.replay()

    event: Any = torch.cuda.Event  # torch leaves its constructor untyped

    def seconds() -> float:
        began, ended = event(enable_timing=True), event(enable_timing=True)
        began.record()
        graph.replay()
        ended.record()
        ended.synchronize()
        return float(began.elapsed_time(ended)) / 1e3 / _CALLS

    return seconds
