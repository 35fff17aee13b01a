"""Whoever hangs is interrupted, and told as what breaks DI-2; whoever does not is left alone."""

from __future__ import annotations

import select
import signal
import threading
import time

import pytest

from chaos.real_runs import hang_in
from chaos.watchdog import Hang, within


def hang() -> None:
    """Waits for nothing, and waits again when it is asked to stop."""
    try:
        select.select([], [], [], 60)
    finally:
        select.select([], [], [], 60)


def test_a_wait_without_end_is_interrupted_though_its_cleaning_up_hangs_too() -> None:
    began = time.monotonic()
    with pytest.raises(Hang, match=r"not over after 0\.2 s of waiting, at hang"), within(0.2):
        hang()
    assert time.monotonic() - began < 20


def test_what_is_over_in_time_is_left_alone_and_nothing_rings_later() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with within(0.2):
        pass
    time.sleep(0.3)
    assert signal.getsignal(signal.SIGALRM) is before


def test_in_another_thread_nothing_is_watched() -> None:
    done = []
    thread = threading.Thread(target=lambda: hang_in("a", lambda: done.append(1), 0.2, "DI-2"))
    thread.start()
    thread.join(20)
    assert done == [1]


def test_a_hang_breaks_the_invariant_that_it_is_told_and_says_where_it_hung_not_where_its_cleaning_up_does() -> None:
    found = hang_in("two ranks", hang, 0.2, "DI-2")
    assert found is not None
    assert found.invariant == "DI-2"
    line = hang.__code__.co_firstlineno + 3
    assert found.found == f"not over after 0.2 s, at hang (test_watchdog.py:{line})"
    assert hang_in("two ranks", lambda: None, 5.0, "DI-2") is None


def test_an_alarm_that_somebody_else_has_set_meanwhile_stays_his() -> None:
    def his(_number: int, _frame: object) -> None: ...

    before = signal.getsignal(signal.SIGALRM)
    try:
        with within(20.0):
            signal.signal(signal.SIGALRM, his)
        assert signal.getsignal(signal.SIGALRM) is his
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
