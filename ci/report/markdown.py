"""The Markdown summary: the verdict, what failed and how to replay it, one table. Fits a pull request's check page."""

from __future__ import annotations

from collections.abc import Mapping

from ci.outcome import Outcome, seed_text
from ci.wording import duration, headline, long_duration, reach, selftest, why_not_valid


def to_markdown(outcome: Outcome, replays: Mapping[int, str], folder: str) -> str:
    """``replays`` as in `ci.report.verdict_json.to_json`; ``folder`` is where the report lies."""
    lines = [
        f"# {outcome.verdict.value.upper()}",
        "",
        f"{headline(outcome)} · {selftest(outcome)} · {long_duration(outcome.wall_s)}",
        "",
        f"commit {outcome.tree.label} · profile {outcome.profile} · seed {seed_text(outcome.seed)}",
        "",
    ]
    for place in range(len(outcome.failures)):
        lines += _failure_lines(outcome, place, f"{folder}/{replays[place]}" if place in replays else "")
    if reasons := why_not_valid(outcome):
        lines += ["## Why not valid", "", *(f"- {_cell(reason)}" for reason in reasons), ""]
    lines += ["| check | verdict | examples | ops | reach | time |", "|---|---|---:|---:|---|---:|"]
    for check in outcome.checks:
        result = check.result
        figures = (f"{result.examples:,}", f"{result.ops:,}", reach(result)) if result else ("", "", "")
        lines.append(f"| {_cell(check.title)} | {check.verdict.value} | {' | '.join(figures)} | {duration(check.wall_s)} |")
    lines += ["", "Repeat with", "", f"    {outcome.command}", ""]
    return "\n".join(lines)


def _failure_lines(outcome: Outcome, place: int, replay: str) -> list[str]:
    check, failure = outcome.failures[place]
    violation = failure.violation
    lines = [f"## {violation.invariant} {violation.name}", "", _cell(violation.sentence), ""]
    lines += [f"    {fact}" for fact in violation.facts] + ([""] if violation.facts else [])
    count = f" · {len(failure.ops)} operations" if failure.ops else ""
    lines.append(f"{_cell(check.title)} · seed `{failure.seed}`{count}")
    return [*lines, "", f"    assay replay {replay}" if replay else f"    {outcome.command}", ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
