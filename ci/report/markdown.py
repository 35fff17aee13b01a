"""The Markdown summary: the verdict, what failed and how to replay it, one table. Fits a pull request's check page."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from ci.outcome import Finding, Outcome, seed_text
from ci.wording import also_found, count, duration, headline, long_duration, powers, reach, selftest, why_not_valid
from properties.verdict import Verdict


def to_markdown(outcome: Outcome, replays: Mapping[int, str], folder: str) -> str:
    """``replays`` as in `ci.report.verdict_json.to_json`; ``folder`` is where the report lies."""
    lines = [
        f"# {outcome.verdict.value.upper()}",
        "",
        f"{headline(outcome)} · {selftest(outcome)} · {long_duration(outcome.wall_s)}",
        "",
        f"{outcome.tree.words} · profile {outcome.profile} · seed {seed_text(outcome.seed)}",
        "",
    ]
    for finding in outcome.findings:
        lines += _finding_lines(outcome, finding, {place: f"{folder}/{name}" for place, name in replays.items()})
    if reasons := why_not_valid(outcome):
        lines += ["## Why not valid", "", *(f"- {_cell(reason)}" for reason in reasons), ""]
    lines += ["| check | verdict | examples | ops | reach | time |", "|---|---|---:|---:|---|---:|"]
    for check in outcome.checks:
        result = check.result
        figures = (f"{result.examples:,}", f"{result.ops:,}", reach(result)) if result else ("", "", "")
        lines.append(f"| {_cell(check.title)} | {check.verdict.value} | {' | '.join(figures)} | {duration(check.wall_s)} |")
    lines += _statistics_lines(outcome)
    lines += ["", "Repeat with", "", f"    {outcome.command}", ""]
    return "\n".join(lines)


def _statistics_lines(outcome: Outcome) -> list[str]:
    """One line for the tests of each check; those that reject in full. All of them stand in the page and in verdict.json."""
    tested = [check for check in outcome.checks if check.result and check.result.statistics]
    if not tested:
        return []
    used = f"false-alarm rates {outcome.alpha_used:.2g} of 1e-6 together, no second try"
    lines = ["", f"Statistical tests ({used}):", ""]
    lines += ["| check | tests | false-alarm rates | smallest effects found | power at least | least p | rejected |"]
    lines += ["|---|---:|---:|---|---:|---|---:|"]
    lines += [f"| {_cell(check.title)} | {' | '.join(map(_cell, powers(check)))} |" for check in tested]
    rejected = [test for check in tested if check.result for test in check.result.statistics if test.verdict is Verdict.INVALID]
    lines += [""] if rejected else []
    return lines + [f"- {test.id}: {_cell(test.null)}: {_cell(test.statistic)}; {_cell(test.estimated)}" for test in rejected]


def _finding_lines(outcome: Outcome, finding: Finding, replays: Mapping[int, str]) -> list[str]:
    """The shortest story, and the others folded."""
    check, failure = outcome.failures[finding.lead]
    violation = failure.violation
    lines = [f"## {violation.invariant} {violation.name}", "", _cell(violation.sentence), ""]
    lines += [f"    {fact}" for fact in violation.facts] + ([""] if violation.facts else [])
    length = f" · {count(len(failure.ops), 'operation')}" if failure.ops else ""
    lines.append(f"{_cell(check.title)} · seed `{failure.seed}`{length}")
    replay = replays.get(finding.lead)
    lines += ["", f"    assay replay {replay}" if replay else f"    {outcome.command}", ""]
    if finding.others:
        lines += [f"<details><summary>{escape(also_found(finding))}</summary>", ""]
        lines += [_other_line(outcome, place, replays.get(place)) for place in finding.others]
        lines += ["", "</details>", ""]
    return lines


def _other_line(outcome: Outcome, place: int, replay: str | None) -> str:
    check, failure = outcome.failures[place]
    shown = f" · `{replay}`" if replay else ""
    return f"- {_cell(check.title)} · seed `{failure.seed}` · {_cell(failure.violation.sentence)}{shown}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
