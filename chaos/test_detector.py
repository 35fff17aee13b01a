"""The second account of who lies before whom agrees with the detector, and shows one that has gone blind."""

from __future__ import annotations

import pytest

from chaos.detector_suite import run_race_detector
from engine_under_test.execution.races import Clock, RaceDetector
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

QUICK = SuiteContext(Profile.QUICK, 7)


def test_the_detector_sees_what_all_pairs_show() -> None:
    result = run_race_detector(QUICK)
    assert (result.verdict, result.missed) == (Verdict.VALID, ())


def test_a_detector_that_takes_every_wait_for_nothing_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaceDetector, "host_saw", lambda _self, _clock: None)
    result = run_race_detector(QUICK)
    assert result.verdict is Verdict.INVALID
    assert "told read after write" in result.failures[0].violation.sentence or result.failures[0].violation.facts


def test_a_detector_that_orders_what_only_happened_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: RaceDetector, clock: Clock) -> None:
        del clock
        self._clocks[0] = self.everything()

    monkeypatch.setattr(RaceDetector, "host_saw", everything)
    assert run_race_detector(QUICK).verdict is Verdict.INVALID
