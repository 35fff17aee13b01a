"""The last lines of a gate on the terminal: each finding on one screen by its shortest story, then the verdict.

Owns their wording. Never prints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ci.op_words import describe_op
from ci.outcome import Finding, Outcome, seed_text
from ci.tree import Tree
from ci.wording import also_found, count, headline, long_duration, selftest, why_not_valid
from properties.op import Op

_MOST_FINDINGS = 5
_MOST_OPS = 8


def opening_line(tree: Tree, profile: str, seed: int, cores: int, device: str) -> str:
    return f"{tree.words} · profile {profile} · seed {seed_text(seed)} · {cores} cores · {device}"


def closing_lines(outcome: Outcome, replays: Mapping[int, str], folder: str) -> Iterator[str]:
    """``folder`` is where the report lies; empty if it could not be written."""
    findings = outcome.findings
    for finding in findings[:_MOST_FINDINGS]:
        yield from _finding_lines(
            outcome, finding, f"assay replay {folder}/{replays[finding.lead]}" if finding.lead in replays else outcome.command
        )
    if len(findings) > _MOST_FINDINGS:
        rest = [outcome.failures[finding.lead][1].violation.invariant for finding in findings[_MOST_FINDINGS:]]
        yield f"and {', '.join(rest)}: see the report"
    if outcome.failures and outcome.not_run:
        yield ""
    for entry in outcome.not_run:
        seen = f"last seen {entry.last_seen}, {entry.commit}" if entry.last_seen else "never recorded"
        yield f"not run: {entry.suite} ({entry.why}; {seen})"
    yield ""
    yield f"{outcome.verdict.value.upper():<9} {headline(outcome)}"
    yield from (f"          {reason}" for reason in why_not_valid(outcome))
    yield f"{selftest(outcome)}{f' · report: {folder}/index.html' if folder else ''} · {long_duration(outcome.wall_s)}"


def _finding_lines(outcome: Outcome, finding: Finding, command: str) -> Iterator[str]:
    check, failure = outcome.failures[finding.lead]
    violation = failure.violation
    shrunk = (
        f"shrunk {failure.ops_found} → {count(len(failure.ops), 'operation')}" if failure.ops_found > len(failure.ops) else ""
    )
    yield ""
    head = [f"INVALID   {violation.invariant} {violation.name}", check.title, f"seed {failure.seed}", shrunk]
    yield " · ".join(part for part in head if part)
    yield ""
    yield f"  {violation.subject}"
    yield f"    found         {violation.found}"
    yield f"    expected      {violation.expected}"
    yield from (f"    {fact}" for fact in violation.facts)
    yield from _story(failure.ops)
    if also := also_found(finding):
        yield ""
        yield f"  {also}"
    yield ""
    yield f"  {command}"


def _story(ops: tuple[Op, ...]) -> Iterator[str]:
    skipped = max(0, len(ops) - _MOST_OPS)
    if skipped:
        yield f"    ... {skipped} operations before"
    for number, op in enumerate(ops[skipped:], start=skipped + 1):
        title, detail = describe_op(op)
        yield f"    {number:>3}  {title:<18} {detail}".rstrip()
