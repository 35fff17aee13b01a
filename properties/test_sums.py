"""Claims about what a suite has seen: a missed floor is named once, a failure counts more, no-ops are no work."""

from __future__ import annotations

from properties.suite import Failure
from properties.sums import Sums
from properties.verdict import Verdict, Violation

FAILURE = Failure(Violation("SC-1", "pairing", "plan 3", "two", "one"), "seed")


def some() -> Sums:
    sums = Sums(examples=2, ops=5, noops=5)
    sums.reached.update({"preempted": 3, "aborted": 1})
    return sums


def test_floors_that_were_reached_leave_it_valid() -> None:
    sums = some()
    sums.require({"preempted": 3, "aborted": 1})
    sums.require_ops()
    result = sums.result("suite", [None], "note")
    assert (result.verdict, result.missed, result.failures) == (Verdict.VALID, (), ())
    assert list(result.reached) == ["aborted", "preempted"]


def test_a_floor_that_was_missed_is_named_once_with_what_was_found() -> None:
    sums = some()
    sums.require({"preempted": 4, "forked": 1})
    sums.require({"preempted": 4})
    result = sums.result("suite", (), "note")
    assert (result.verdict, result.missed) == (Verdict.UNKNOWN, ("preempted: 3 of 4", "forked: 0 of 1"))


def test_operations_that_did_nothing_are_no_work() -> None:
    sums = some()
    sums.noops += 1
    sums.require_ops()
    assert sums.result("suite", (), "").missed == ("at most half of the operations may be no-ops, found 6 of 11",)


def test_with_a_failure_nothing_counts_as_missed() -> None:
    sums = some()
    sums.require({"preempted": 4})
    result = sums.result("suite", [None, FAILURE], "note")
    assert (result.verdict, result.missed, result.failures) == (Verdict.INVALID, (), (FAILURE,))
