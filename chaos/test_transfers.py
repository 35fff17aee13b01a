"""The suite of transfers is valid on its own, reaches its floors, and tells a planted bug in a few operations."""

from __future__ import annotations

import pytest

from chaos.transfers import TRANSFERS, run_transfers
from engine_under_test.distributed.store_pool import StorePool
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


def test_a_quick_run_is_valid_and_repeats_itself() -> None:
    first, second = (run_transfers(SuiteContext(Profile.QUICK, seed=3)) for _ in range(2))
    assert first.verdict is Verdict.VALID
    assert first.digests == second.digests
    assert {"DI-3", "DI-4", "DI-5"} <= first.invariants.keys()
    assert TRANSFERS.extras == ("connector",)


def test_a_store_that_pins_nothing_is_found_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StorePool, "pin", lambda *_: None)
    found = run_transfers(SuiteContext(Profile.QUICK, seed=3))
    assert found.verdict is Verdict.INVALID
    (failure,) = found.failures
    assert failure.violation.invariant == "DI-3"
    assert 1 <= len(failure.violation.facts) <= 5
