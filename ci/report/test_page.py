"""Claims about the page on a narrow screen: nothing is cut off without a hint."""

from __future__ import annotations

import re

from ci.outcome import Check
from ci.report.page import to_html
from ci.report.test_findings import outcome
from properties.suite import CheckResult
from properties.verdict import Verdict

RESULT = CheckResult("m", Verdict.VALID, examples=200, ops=31204, noops=120, reached={"preempt": 3}, invariants={"KV-1": 40})
PAGE = to_html(outcome(Check("m", "machine", Verdict.VALID, 7, wall_s=22, result=RESULT)), {}, {}, "report")


def test_each_table_scrolls_in_a_container_of_its_own() -> None:
    assert PAGE.count("<table") == len(re.findall(r'<div class="scroll"><table', PAGE)) > 3


def test_each_column_of_the_checks_names_itself_when_rows_are_stacked() -> None:
    table = PAGE.partition('<table class="stack">')[2].partition("</table>")[0]
    heads = re.findall(r"<th[^>]*>([^<]+)</th>", table)
    assert heads[:2] == ["check", "verdict"]  # these two need no name: the first is the row's title
    assert re.findall(r'data-name="([^"]+)"', table) == heads[2:]
    assert "attr(data-name)" in PAGE
