"""Bugs of streams, events and staging buffers: corpus classes 4 and 8. Data only."""

from __future__ import annotations

from ci.mutants.mutant import Mutant

_STREAMS = "engine_under_test/execution/streams.py"
_STORMS = ("storms", "orders")

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "staging-buffer-rewritten",
        "minisgl-pinned-plan-buffer-race",
        "https://github.com/sgl-project/mini-sglang/pull/103",
        _STREAMS,
        """        self._next = (self._next + 1) % len(self._buffers)
        if buffers.owner is not None:
            buffers.owner.outcome()
""",
        "",
        "The one staging buffer is written while the upload from it may still be on its way.",
        _STORMS,
    ),
    Mutant(
        "rows-before-their-copies",
        "trt-host-cache-mix",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/8813",
        _STREAMS,
        "        computed = device.submit_to(Stream.COMPUTE, rows, after=(ready,))",
        "        computed = device.submit_to(Stream.COMPUTE, rows)",
        "Rows do not wait for the uploads, fills and copies that stand before them on another stream.",
        _STORMS,
    ),
    Mutant(
        "download-before-its-rows",
        "trt-host-cache-mix",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/8813",
        _STREAMS,
        "download), after=(computed,))",
        "download))",
        "The outputs are copied to the host without waiting for the rows that compute them.",
        _STORMS,
    ),
    Mutant(
        "outputs-read-before-the-download",
        "trt-host-cache-mix",
        "https://github.com/NVIDIA/TensorRT-LLM/issues/8813",
        _STREAMS,
        "            self._device.wait(self._download)\n",
        "            self._device.wait(self.fence)\n",
        "The host waits for the rows, not for the copy of their outputs, and reads what may not have arrived.",
        _STORMS,
    ),
    Mutant(
        "races-blind-to-reuse",
        "ours",
        "",
        "engine_under_test/execution/races.py",
        "                    if clock[read.thread] < read.count:\n                        self._found(RaceKind.WRITE_AFTER_READ",
        "                    if clock[read.thread] < 0:\n                        self._found(RaceKind.WRITE_AFTER_READ",
        "The detector of races does not see a block written anew under its readers any more: every other suite stays valid.",
        ("race-detector",),
    ),
    Mutant(
        "submission-orders-everything",
        "ours",
        "",
        "engine_under_test/execution/races.py",
        "        known = [clock, self._clocks[_HOST], *after]\n",
        "        known = [clock, *self._clocks, *after]\n",
        "To the detector whatever was submitted earlier lies before: no two streams race.",
        ("race-detector",),
    ),
    Mutant(
        "an-end-seen-is-not-remembered",
        "ours",
        "",
        "engine_under_test/execution/races.py",
        "        self._clocks[_HOST] = list(map(max, self._clocks[_HOST], clock))\n",
        "        self._clocks[_HOST] = list(clock)\n",
        "The host forgets all but the last end that it saw: correct runs are told of as races.",
        ("race-detector",),
    ),
)
