"""The store of keys and values beside what plans say of it: after each launch, bit for bit.

Owns the due content of every slot (poison, or what a plan wrote there), the first slot that is not as it should be, and the
cells that each plan wrote, for whoever compares them (`cells.py`). Never what should stand in a cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Protocol, runtime_checkable

import torch

from engine_under_test.types import Plan, Reservation
from properties.invariants.catalogue import CATALOGUE
from properties.verdict import Violation

_BITS = {torch.float32: torch.int32, torch.bfloat16: torch.int16}


@runtime_checkable
class HasStore(Protocol):
    """A runner whose keys and values lie in the open, [layers, slots, kv_heads, head] each."""

    keys: torch.Tensor
    values: torch.Tensor


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """Positions ``start .. end - 1`` of a choice, whose cells begin at ``begin`` of what the plan wrote."""

    request_id: str
    choice: int
    start: int
    end: int
    begin: int


@dataclass(frozen=True, slots=True, eq=False)
class Written:
    """What one plan left in its slots: ``cells`` [2 (keys, values), layers, n, kv_heads, head]."""

    plan_id: int
    rows: tuple[WrittenRow, ...]
    cells: torch.Tensor


class StoreWatch:
    """Knows what every slot must hold; asked after each launch."""

    def __init__(self, runner: HasStore, block_size: int) -> None:
        self._real = runner.keys, runner.values
        self._due = tuple(torch.full_like(store, torch.nan) for store in self._real)
        self._size = block_size
        self.written: list[Written] = []
        self.violation: Violation | None = self._differing("before the first plan", None)

    def after(self, plan: Plan, reservation: Reservation, *, has_run: bool) -> None:
        """The launch has ended. Where it failed, its own slots hold anything. The first violation is kept."""
        if self.violation is not None:
            return
        slots = torch.tensor(reservation.slots, dtype=torch.long)
        for store in self._due:
            by_block = store.view(len(store), -1, self._size, *store.shape[2:])
            by_block[:, list(reservation.fills)] = torch.nan
            for source, target, num_slots in reservation.copies:
                by_block[:, target, :num_slots] = by_block[:, source, :num_slots]
        self.violation = self._not_fresh(plan, reservation)
        for store, real in zip(self._due, self._real, strict=True):
            store[:, slots] = real[:, slots]
        self.violation = self.violation or self._differing(f"after plan {plan.plan_id}", reservation)
        if has_run:
            cells = torch.stack([store[:, slots] for store in self._real])
            self.written.append(Written(plan.plan_id, tuple(_rows_of(plan)), cells))

    def _not_fresh(self, plan: Plan, reservation: Reservation) -> Violation | None:
        """A block that was taken anew is poison, but for what was copied to it."""
        taken = [block for blocks in reservation.new_blocks for block in blocks]
        if not taken:
            return None
        copied = {copy.target: copy.num_slots for copy in reservation.copies}
        slots = [slot for block in taken for slot in self._slots(block, copied.get(block, 0))]
        for store in self._due:
            holds = store[:, slots].isnan().flatten(2).all(dim=2).all(dim=0).logical_not()
            if holds.any():
                subject = (
                    f"{self._place(slots[int(holds.nonzero()[0])])}, which plan {plan.plan_id} takes anew and does not fill"
                )
                return _violation("KV-16", subject, "numbers that stood there before", "poison")
        return None

    def _slots(self, block: int, first: int) -> Iterable[int]:
        return range(block * self._size + first, (block + 1) * self._size)

    def _differing(self, when: str, reservation: Reservation | None) -> Violation | None:
        """The first slot whose bits are not the due ones, named by what should have happened to it."""
        for what, real, due in zip(("keys", "values"), self._real, self._due, strict=True):
            bits = _BITS[real.dtype]
            if torch.equal(real.view(bits), due.view(bits)):
                continue
            # NaN is NaN, whatever its bits.
            differs = ((real.view(bits) != due.view(bits)) & ~(real.isnan() & due.isnan())).flatten(2).any(dim=2)
            if not differs.any():
                continue
            layer, slot = divmod(int(differs.flatten().nonzero()[0]), real.shape[1])
            return self._named(what, layer, slot, when, reservation, bool(real[layer, slot].isnan().any()))
        return None

    def _named(
        self, what: str, layer: int, slot: int, when: str, reservation: Reservation | None, is_poison: bool
    ) -> Violation:
        subject = f"{what} of layer {layer}, {self._place(slot)}, {when}"
        block, offset = divmod(slot, self._size)
        found = "poison" if is_poison else "numbers"
        if reservation is not None and block in reservation.fills:
            return _violation("KV-16", subject, f"{found} that stood there before", "poison, by the plan's fill")
        if reservation is not None:
            for copy in reservation.copies:
                if copy.target == block and offset < copy.num_slots:
                    return _violation("KV-11", subject, f"other {found}", f"what block {copy.source} holds, by the plan's copy")
        due = "poison" if bool(self._due[0][layer, slot].isnan().all()) else "what was written there last"
        return _violation("KV-16", subject, f"{found}, though no plan lists the slot", due)

    def _place(self, slot: int) -> str:
        block, offset = divmod(slot, self._size)
        return f"slot {offset} of {f'block {block}' if block else 'the padding block'}"


def _rows_of(plan: Plan) -> Iterator[WrittenRow]:
    begins = (0, *accumulate(plan.num_tokens))
    for row, (begin, end) in enumerate(pairwise(begins)):
        start = plan.starts[row]
        yield WrittenRow(plan.requests[row].request_id, plan.choices[row], start, start + end - begin, begin)


def _violation(invariant: str, subject: str, found: str, expected: str) -> Violation:
    return Violation(invariant, CATALOGUE[invariant].name, subject, found, expected)
