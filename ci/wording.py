"""How counts, times and checks read in a line: one wording for the terminal, the page and the summary.

Owns formatting of single facts. Never prints.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ci.outcome import Check, Finding, Outcome
from properties.suite import CheckResult
from properties.verdict import Verdict

_REASON = 240  # characters; the whole is in the report


def duration(seconds: float) -> str:
    """ "0:22" below an hour, "1:02:03" above."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def long_duration(seconds: float) -> str:
    """ "7 min 12 s"."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def large(number: int) -> str:
    """ "3.1 M", "482 k", "97"."""
    if number >= 1_000_000:
        return f"{number / 1e6:.1f} M"
    return f"{number / 1e3:.0f} k" if number >= 10_000 else f"{number:,}"


def share(value: float) -> str:
    """ "3.2 %", "0.014 %", "0": three digits."""
    return f"{value * 100:.3g} %" if value else "0"


def reach(result: CheckResult) -> str:
    """ "9 of 9 reached", or nothing where the suite counts no states."""
    named = set(result.reached) | set(result.missed)
    if not named:
        return ""
    return f"{len(named) - len(set(result.missed))} of {len(named)} reached"


def work(result: CheckResult) -> str:
    """What a suite did, in one line."""
    parts = [
        count(result.examples, "example") if result.examples else "",
        count(result.ops, "op") if result.ops else "",
        reach(result),
        result.note,
    ]
    return "  ".join(part for part in parts if part)


def headline(outcome: Outcome) -> str:
    """The verdict in one sentence."""
    parts = [count(len(outcome.checks), "check"), count(outcome.num_ops, "op")]
    parts.append(f"{large(outcome.num_evaluations)} invariant evaluations")
    if outcome.alpha_used:
        parts.append(f"false-alarm budget used {outcome.alpha_used:.2g} of 1e-6")
    return " · ".join(parts)


def selftest(outcome: Outcome) -> str:
    """Mutants and self-proof in one sentence."""
    proofs = f"self-proof {outcome.proofs_passed} of {len(outcome.proofs)}"
    if not outcome.mutants:
        return f"no mutants in this run · {proofs}"
    num_not_run = sum(mutant["verdict"] == "not run" for mutant in outcome.mutants)
    not_run = f", {num_not_run} not run" if num_not_run else ""
    return f"mutants {outcome.mutants_killed} of {len(outcome.mutants)} killed{not_run} · {proofs}"


def powers(check: Check) -> tuple[str, ...]:
    """The statistical tests of a check in a line: how many, the false-alarm rates together, the smallest effects by what they
    measure, the least power, the least p (beside its own rate), and how many reject."""
    assert check.result is not None  # whoever asks has seen that it has tests
    tests = check.result.statistics
    effects: dict[str, list[float]] = {}
    for test in tests:
        effects.setdefault(test.effect, []).append(test.tv_min)
    smallest = "; ".join(
        f"{share(min(found))}{f' to {share(max(found))}' if min(found) < max(found) else ''} {effect}"
        for effect, found in effects.items()
    )
    nearest = min(tests, key=lambda test: test.p / test.alpha)
    rejected = sum(test.verdict is Verdict.INVALID for test in tests)
    return (
        f"{len(tests)}",
        f"{sum(test.alpha for test in tests):.2g}",
        smallest,
        f"{min(test.power for test in tests):.4f}",
        f"{nearest.p:.2g} ({nearest.id}, {nearest.alpha:.0e})",
        f"{rejected}" if rejected else "none",
    )


def also_found(finding: Finding) -> str:
    """ "also found by: engine machine, directed stories · 8 stories in all", or nothing for a single story."""
    if not finding.others:
        return ""
    by = ", ".join(finding.elsewhere) or "the same suite"
    return f"also found by: {by} · {finding.num_stories} stories in all"


def why_not_valid(outcome: Outcome) -> list[str]:
    """One short line for each reason that keeps the run from being valid: what broke, once; what stopped the run, once;
    then what else was not seen. Suites, plants and mutants with the same reason share a line."""
    lines = [_broke(outcome, finding) for finding in outcome.findings] + list(outcome.reasons)
    reasons = [
        (check.reasons[0].splitlines()[0], check.title)
        for check in outcome.checks
        if check.verdict is not Verdict.VALID and not check.failures and check.reasons
    ]
    lines += [f"{names}: {reason}" for reason, names in _by_reason(reasons)]
    lines += [
        f"self-proof {names}: {note}"
        for note, names in _by_reason([(proof.note, proof.id) for proof in outcome.proofs if not proof.is_as_planted])
    ]
    fates = [
        (f"{mutant['verdict']}{': ' + mutant['note'] if mutant['note'] else ''}", str(mutant["id"]))
        for mutant in outcome.mutants
        if mutant["verdict"] != "killed"
    ]
    lines += [f"{'mutants' if ',' in names else 'mutant'} {names} {fate}" for fate, names in _by_reason(fates)]
    return [textwrap.shorten(line, _REASON) for line in lines]


def _broke(outcome: Outcome, finding: Finding) -> str:
    """What broke, and how often."""
    violation = outcome.failures[finding.lead][1].violation
    often = f" ({finding.num_stories} stories)" if finding.others else ""
    return f"{violation.invariant} {violation.name}{often}: {violation.sentence}"


def _by_reason(reasons: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """(reason, the names that have it), in the order of first appearance."""
    names: dict[str, list[str]] = {}
    for reason, name in reasons:
        names.setdefault(reason, []).append(name)
    return [(reason, ", ".join(found)) for reason, found in names.items()]
