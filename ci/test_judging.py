"""Claims about when a gate trusts a suite."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from ci.jobs import Job, JobReport, Role
from ci.judging import budget_doubt, judge, judge_pair
from ci.outcome import Check
from properties.suite import CheckResult, Failure, Profile, Statistic
from properties.verdict import Verdict, Violation

JOB = Job(0, Role.SUITE, "machine", "machine", "somewhere", Profile.PR, 7)
SOUND = CheckResult(
    "machine", Verdict.VALID, examples=3, ops=30, noops=30, invariants={"KV-1": 30}, digests={"7#0": "aa", "7#1": "bb"}
)
COIN = Statistic("a", "the coin is fair", "chi-square", 10, 1e-8, 0.1, 0.9, 0.5, Verdict.VALID)
BROKEN = Violation("KV-4", "freed once", "block 3", "2", "1")


def judged(result: CheckResult) -> Check:
    return judge(JOB, JobReport(1.0, result))


def test_a_suite_that_worked_is_valid() -> None:
    assert judged(SOUND).verdict is Verdict.VALID


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        pytest.param(replace(SOUND, missed=("preempt",)), "floor missed: preempt", id="a missed floor"),
        pytest.param(replace(SOUND, noops=31), "31 of 61 operations were no-ops", id="mostly no-ops"),
        pytest.param(CheckResult("machine", Verdict.VALID), "it did nothing", id="an empty suite"),
        pytest.param(replace(SOUND, invariants={}), "it judged nothing", id="a suite without a question"),
        pytest.param(replace(SOUND, invariants={"KV-1": 0}), "it judged nothing", id="a question that was never asked"),
        pytest.param(
            replace(SOUND, invariants={}, statistics=(replace(COIN, n=0),)), "it judged nothing", id="a test without samples"
        ),
        pytest.param(
            replace(SOUND, statistics=(replace(COIN, p=math.nan),)), "p must be a number from 0 to 1, found nan", id="no p"
        ),
        pytest.param(replace(SOUND, statistics=(replace(COIN, p=1.5),)), "found 1.5", id="a p above 1"),
        pytest.param(
            replace(SOUND, statistics=(replace(COIN, verdict=Verdict.UNKNOWN),)), "the test itself", id="a test that says so"
        ),
        pytest.param(replace(SOUND, verdict=Verdict.UNKNOWN, note="half of it"), "half of it", id="a suite that says so"),
    ],
)
def test_unknown_is_what_comes_of(result: CheckResult, reason: str) -> None:
    check = judged(result)
    assert check.verdict is Verdict.UNKNOWN
    assert reason in check.reasons[0]


def test_a_failure_is_invalid_whatever_the_suite_says() -> None:
    assert judged(replace(SOUND, failures=(Failure(BROKEN, "7"),))).verdict is Verdict.INVALID


@pytest.mark.parametrize(
    "result",
    [
        pytest.param(replace(SOUND, missed=("preempt",)), id="that missed a floor"),
        pytest.param(replace(SOUND, noops=31), id="of mostly no-ops"),
        pytest.param(CheckResult("machine", Verdict.VALID), id="that counted nothing"),
        pytest.param(replace(SOUND, verdict=Verdict.UNKNOWN, note="half of it"), id="that says unknown"),
    ],
)
def test_what_broke_is_the_only_reason_of_a_suite(result: CheckResult) -> None:
    check = judged(replace(result, failures=(Failure(BROKEN, "7"), Failure(BROKEN, "8"))))
    assert (check.verdict, check.reasons) == (Verdict.INVALID, ("KV-4 freed once: block 3: found 2, expected 1",))


def test_a_difference_between_two_runs_is_the_only_reason_of_a_walk_that_was_unknown() -> None:
    other = replace(SOUND, digests={"7#0": "aa", "7#1": "cc"})
    check = judge_pair(judged(replace(SOUND, missed=("preempt",))), JobReport(1.0, other), (1, 2))
    assert check.verdict is Verdict.INVALID
    assert [reason.split(":")[0] for reason in check.reasons] == ["DET one seed, one history"]


def test_a_walk_that_broke_keeps_what_broke_as_its_reason_though_its_second_run_is_missing() -> None:
    check = judge_pair(judged(replace(SOUND, failures=(Failure(BROKEN, "7"),))), None, (1, 2))
    assert (check.verdict, check.reasons) == (Verdict.INVALID, ("KV-4 freed once: block 3: found 2, expected 1",))


def test_a_statistic_that_rejects_is_invalid_whatever_the_suite_says() -> None:
    statistic = Statistic("a", "the coin is fair", "chi-square", 10, 1e-8, 0.1, 0.9, 1e-12, Verdict.INVALID)
    check = judged(replace(SOUND, statistics=(statistic,), missed=("preempt",)))
    assert (check.verdict, check.reasons) == (Verdict.INVALID, ("a: p = 1e-12 at alpha = 1e-08 (the coin is fair)",))


def test_a_statistic_that_says_it_rejects_is_invalid_even_without_a_p() -> None:
    assert judged(replace(SOUND, statistics=(replace(COIN, p=math.nan, verdict=Verdict.INVALID),))).verdict is Verdict.INVALID


def test_a_crash_and_a_missing_report_are_unknown() -> None:
    crash = judge(JOB, JobReport(1.0, crash="Traceback ...\nValueError: no"))
    gone = judge(JOB, None, "interrupted (at 3 of 9)")
    assert (crash.verdict, crash.reasons[0]) == (Verdict.UNKNOWN, "crashed: ValueError: no")
    assert (gone.verdict, gone.reasons) == (Verdict.UNKNOWN, ("interrupted (at 3 of 9)",))


def test_two_equal_histories_leave_a_walk_valid() -> None:
    assert judge_pair(judged(SOUND), JobReport(1.0, SOUND), (1, 2)).verdict is Verdict.VALID


def test_the_first_difference_of_two_histories_is_a_failure_of_its_own() -> None:
    other = replace(SOUND, digests={"7#0": "aa", "7#1": "cc"})
    check = judge_pair(judged(SOUND), JobReport(1.0, other), (1, 2))
    assert check.verdict is Verdict.INVALID
    violation = check.failures[0].violation
    assert (violation.invariant, violation.subject) == ("DET", "7#1")
    assert "cc" in violation.found
    assert "bb" in violation.expected


@pytest.mark.parametrize(
    "again",
    [
        pytest.param(None, id="no report"),
        pytest.param(JobReport(1.0, crash="MemoryError"), id="a crash"),
        pytest.param(JobReport(1.0, replace(SOUND, digests={})), id="no digests"),
    ],
)
def test_a_second_run_that_shows_nothing_is_unknown(again: JobReport | None) -> None:
    assert judge_pair(judged(SOUND), again, (1, 2)).verdict is Verdict.UNKNOWN


def test_statistics_share_one_budget_of_false_alarms() -> None:
    statistic = Statistic("a", "null", "chi-square", 10, 4e-7, 0.1, 0.9, 0.5, Verdict.VALID)
    two = judged(replace(SOUND, statistics=(statistic, statistic)))
    three = judged(replace(SOUND, statistics=(statistic,) * 3))
    assert budget_doubt([two]) == ""
    assert "1.2e-06 of a false-alarm budget of 1e-06" in budget_doubt([three])
