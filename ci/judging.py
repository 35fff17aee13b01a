"""From what a process left behind to a verdict: valid < unknown < invalid, each unknown with its reason.

Owns every rule by which a gate trusts or distrusts a suite. The same functions judge real suites and planted ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ci.jobs import Job, JobReport
from ci.outcome import Check
from properties.suite import CheckResult, Failure, Statistic
from properties.verdict import Verdict, Violation, merge

FALSE_ALARM_BUDGET = 1e-6  # of a whole gate, shared by all statistical tests


def judge(job: Job, report: JobReport | None, why_missing: str = "") -> Check:
    """The check of one suite. ``why_missing`` is the reason when it left no report."""
    if report is None:
        reason = why_missing or "its process ended without a report"
        return Check(job.subject, job.title, Verdict.UNKNOWN, job.seed, (reason,))
    if report.result is None:
        reason = f"crashed: {last_line(report.crash)}"
        return Check(job.subject, job.title, Verdict.UNKNOWN, job.seed, (reason, report.crash.strip()), report.wall_s)
    result = report.result
    broken = breaches(result)
    reasons = broken or doubts(result)  # what broke hides what was not reached: a suite that fails ends early
    verdict = merge([result.verdict, *([Verdict.INVALID] if broken else [Verdict.UNKNOWN] if reasons else [])])
    return Check(job.subject, job.title, verdict, job.seed, reasons, report.wall_s, result, result.failures)


def breaches(result: CheckResult) -> tuple[str, ...]:
    """What makes a result invalid: its failures, and the statistical tests that reject."""
    rejected = [item for item in result.statistics if item.verdict is Verdict.INVALID]
    found = [breach(failure.violation) for failure in result.failures]
    found += [f"{item.id}: p = {item.p:.3g} at alpha = {item.alpha:.3g} ({item.null})" for item in rejected]
    if result.verdict is Verdict.INVALID and not found:
        found.append(result.note or "the suite itself says invalid")
    return tuple(dict.fromkeys(found))


def breach(violation: Violation) -> str:
    """ "KV-4 freed once: block 3: found 2, expected 1"."""
    return f"{violation.invariant} {violation.name}: {violation.sentence}"


def doubts(result: CheckResult) -> tuple[str, ...]:
    """Why a result in which nothing broke can not count as valid, whatever it says of itself."""
    found = []
    if not (result.examples or result.ops or result.statistics):
        found.append("it did nothing: no example, no operation, no statistic")
    elif not (any(result.invariants.values()) or any(item.n for item in result.statistics)):
        found.append("it judged nothing: no invariant was evaluated, no statistic has a sample")
    found += [doubt for item in result.statistics if (doubt := _statistical_doubt(item))]
    if result.noops > result.ops:
        found.append(f"{result.noops} of {result.noops + result.ops} operations were no-ops; at most half may be")
    found += [f"floor missed: {name}" for name in result.missed]
    if result.verdict is Verdict.UNKNOWN and not found:
        found.append(result.note or "the suite itself says unknown")
    return tuple(found)


def _statistical_doubt(item: Statistic) -> str:
    """Why a statistical test that does not reject shows nothing, whatever its suite says, else nothing."""
    if not 0 <= item.p <= 1:  # also where p is not a number at all
        return f"{item.id}: p must be a number from 0 to 1, found {item.p}"
    return f"{item.id}: the test itself says unknown ({item.null})" if item.verdict is Verdict.UNKNOWN else ""


def judge_pair(check: Check, again: JobReport | None, hash_seeds: tuple[int, int], why_missing: str = "") -> Check:
    """The check of a walk that ran twice: the first difference between the two histories is a failure of its own."""
    first, second = check.result, again.result if again else None
    if first is None:
        return check
    if second is None:
        crash = last_line(again.crash) if again else why_missing or "no report"
        return _with(
            check, Verdict.UNKNOWN, (f"its second run, under PYTHONHASHSEED={hash_seeds[1]}, gave no result: {crash}",)
        )
    if not first.digests or not second.digests:
        return _with(check, Verdict.UNKNOWN, ("it has walk seeds but returned no digests to compare",))
    violation = first_difference(first, second, hash_seeds)
    if violation is None:
        return check
    failure = Failure(violation, seed=violation.subject)
    kept = check if check.verdict is Verdict.INVALID else dataclasses.replace(check, reasons=())
    return _with(kept, Verdict.INVALID, (breach(violation),), (failure,))


def first_difference(first: CheckResult, second: CheckResult, hash_seeds: tuple[int, int]) -> Violation | None:
    """DET: one seed, one history, whatever the process and its hash seed."""
    for name in [*first.digests, *(name for name in second.digests if name not in first.digests)]:
        one, other = first.digests.get(name, "nothing"), second.digests.get(name, "nothing")
        if one != other:
            return Violation(
                "DET",
                "one seed, one history",
                subject=name,
                found=f"history {other} in a fresh process under PYTHONHASHSEED={hash_seeds[1]}",
                expected=f"history {one}, as under PYTHONHASHSEED={hash_seeds[0]}",
                facts=(
                    "rule          nothing depends on the order of a set, on an address, on a clock or on chance not handed in",
                ),
            )
    return None


def budget_doubt(checks: Sequence[Check]) -> str:
    """A reason if the statistical tests together took more than the gate's false-alarm budget, else nothing."""
    used = sum(item.alpha for check in checks if check.result for item in check.result.statistics)
    if used <= FALSE_ALARM_BUDGET * (1 + 1e-9):  # alphas are added up in floating point
        return ""
    return f"the statistical tests took {used:.3g} of a false-alarm budget of {FALSE_ALARM_BUDGET:g}; lower their alphas"


def last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no message"


def _with(check: Check, verdict: Verdict, reasons: tuple[str, ...], failures: tuple[Failure, ...] = ()) -> Check:
    return dataclasses.replace(
        check,
        verdict=merge([check.verdict, verdict]),
        reasons=check.reasons if verdict is Verdict.UNKNOWN and check.verdict is Verdict.INVALID else check.reasons + reasons,
        failures=check.failures + failures,
    )
