"""The runner of a language model on a simulated device with streams: its operations run late, before watchful eyes.

Owns the order in which they run, and the instrumented store: while an operation runs, every page that it has not declared is
hidden from it as NaN. Judges by the predicates that judge the other runner (AS-1, AS-2, AS-5, KV-3, KV-10).
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch

from differential.setting import Setting
from engine_under_test.events import Misdeclared, Race
from engine_under_test.execution.runner import Launch
from engine_under_test.execution.schedule import Chance, Chooser, Priorities
from engine_under_test.execution.simulated_device import SimulatedDevice
from engine_under_test.execution.transformer import BUFFER, TransformerRunner
from engine_under_test.seams import DeviceOp
from engine_under_test.types import Plan, Reservation
from properties.invariants.device_order import PREDICATES
from properties.moment import Moment
from properties.verdict import Violation

SENTENCES = tuple(each.identifier for each in PREDICATES)
_PCT_STEPS = 300  # operations among which priorities change


def chooser_of(setting: Setting) -> Chooser:
    """Who decides what runs next."""
    seed = setting.streams_seed
    return Chance(seed) if setting.streams == "chance" else Priorities(seed, _PCT_STEPS)


class StreamedRunner:
    """A runner as `runner.Runner` has it. ``make``: builds the one that is watched on the device that it is handed."""

    def __init__(self, setting: Setting, make: Callable[[SimulatedDevice], TransformerRunner], block_size: int) -> None:
        self.device = SimulatedDevice(chooser_of(setting), wrap=self._run_watched)
        self._runner = make(self.device)
        self._size = block_size
        self._expected: dict[int, tuple[Plan, Reservation]] = {}
        self._races: list[Race] = []
        self._misdeclared: list[Misdeclared] = []

    @property
    def description(self) -> str:
        return self._runner.description

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        self.device.begin(str(plan.plan_id))
        self._expected[plan.plan_id] = plan, reservation
        return self._runner.launch(plan, reservation)

    def disorder(self) -> Violation | None:
        """What was touched in no order, or without having been declared; once everything has run."""
        self.device.synchronize()
        self._races += self.device.take_races()
        seen = cast("Moment", SimpleNamespace(races=tuple(self._races), misdeclared=tuple(self._misdeclared)))
        return next((found for each in PREDICATES if (found := each.check(seen)) is not None), None)

    def _pages(self) -> tuple[torch.Tensor, ...]:
        """Keys and values as [layers, blocks, numbers of a block]."""
        return tuple(store.view(len(store), -1, self._size * store[0, 0].numel()) for store in self._stores())

    def _stores(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._runner.keys, self._runner.values

    @torch.inference_mode()
    def _run_watched(self, op: DeviceOp) -> None:
        declared = sorted(page.unit for page in op.reads | op.writes if page.buffer == BUFFER)
        writable = {page.unit for page in op.writes if page.buffer == BUFFER}
        pages = self._pages()
        before = [each.clone() for each in pages]
        for each, whole in zip(pages, before, strict=True):
            each.fill_(torch.nan)
            each[:, declared] = whole[:, declared]
        try:
            op.run()
        finally:
            wrote: set[int] = set()
            for each, whole in zip(pages, before, strict=True):
                after = each[:, declared].clone()
                each[:, declared] = torch.nan
                wrote.update(each.isnan().all(dim=2).all(dim=0).logical_not().nonzero()[:, 0].tolist())
                old = whole[:, declared]
                is_same = (after == old) | (after.isnan() & old.isnan())
                changed = is_same.all(dim=2).all(dim=0).logical_not().nonzero()[:, 0].tolist()
                wrote.update({declared[place] for place in changed} - writable)
                each.copy_(whole)
                each[:, declared] = after
            self._note(op, "wrote", wrote)
            if op.name == "rows":
                self._note(op, "read", self._hidden_blocks(op, set(declared)))

    def _hidden_blocks(self, op: DeviceOp, declared: set[int]) -> set[int]:
        """Of a row that made no numbers behind its first layer, the pages in its table that were hidden."""
        plan, reservation = self._expected.pop(op.plan_id)
        found: set[int] = set()
        begin = 0
        for table, num in zip(reservation.tables, plan.num_tokens, strict=True):
            slots = list(reservation.slots[begin : begin + num])
            begin += num
            if any(bool(store[1:, slots].isnan().any()) for store in self._stores()):
                found.update(set(table) - declared)
        return found

    def _note(self, op: DeviceOp, verb: str, units: set[int]) -> None:
        if units:
            self._misdeclared.append(Misdeclared(op.title, verb, BUFFER, tuple(sorted(units))))


def disorder_of(runner: Any) -> Violation | None:
    """Nothing where nobody watched."""
    return runner.disorder() if isinstance(runner, StreamedRunner) else None
