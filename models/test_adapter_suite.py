"""The suite `adapter-slots` passes with our engine and sees slots that go wrong."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import pytest

from engine_under_test.adapter_book import AdapterBook
from engine_under_test.scheduling import scheduler
from engine_under_test.types import Adapter, Reservation
from models.adapter_suite import ADAPTER_SLOTS
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict


def check() -> CheckResult:
    return ADAPTER_SLOTS.run(SuiteContext(Profile.QUICK, 3))


def test_it_passes_and_reaches_what_it_is_about() -> None:
    found = check()
    assert (found.verdict, found.missed) == (Verdict.VALID, ())
    assert found.invariants["RS-1"] > 100


def _never_pins(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(AdapterBook, "settle", lambda book, _unsettled, _reserved: book._keep_pins(lambda _plan: False))


def _names_the_next_slot(patch: pytest.MonkeyPatch) -> None:
    right = AdapterBook.assign

    def off_by_one(
        book: AdapterBook, reservation: Reservation, rows: Sequence[Adapter | None], running: Collection[Adapter]
    ) -> Reservation:
        found = right(book, reservation, rows, running)
        return replace(found, adapter_slots=tuple(3 - slot if slot else 0 for slot in found.adapter_slots))

    patch.setattr(AdapterBook, "assign", off_by_one)


def _passes_over_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scheduler, "may_be_passed", lambda *_: True)


@pytest.mark.parametrize(
    ("plant", "invariant"),
    [(_never_pins, "RS-1"), (_names_the_next_slot, "RS-1"), (_passes_over_for_ever, "SC-8")],
    ids=["slots are not pinned", "rows read the slot beside their own", "a cold adapter starves"],
)
def test_it_sees(monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], invariant: str) -> None:
    plant(monkeypatch)
    found = check()
    assert found.verdict is Verdict.INVALID
    assert found.failures[0].violation.invariant == invariant
