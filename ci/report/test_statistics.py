"""Claims about statistical tests in a report: all that a test declares stands beside its verdict, and how far off it seems."""

from __future__ import annotations

import dataclasses
import re

from ci.codec import result_from_json, result_to_json
from ci.outcome import Check
from ci.report.markdown import to_markdown
from ci.report.page import to_html
from ci.report.test_findings import outcome
from properties.suite import RATE, CheckResult, Estimate, Statistic
from properties.verdict import Verdict

SOUND = Statistic.judged(
    "a-law", "tokens follow the law", "Pearson chi-square 8.0 on 15 degrees of freedom", n=280_576, alpha=1e-8, tv_min=0.00999,
    power=0.999, p=0.92, estimate=Estimate(0.0, 0.0, 0.0066, 0.99),
)  # fmt: skip
WRONG = Statistic.judged(
    "a-rate", "rare tokens come 0.6% of the time", "Poisson count 2000 where 1462 are expected", n=243_712, alpha=1e-8,
    tv_min=0.00146, power=0.999, p=1e-30, effect=RATE, estimate=Estimate(0.0022, 0.0018, 0.0027, 0.99),
)  # fmt: skip
RESULT = CheckResult("a", Verdict.INVALID, examples=7, statistics=(SOUND, WRONG))
OUTCOME = outcome(Check("a", "sampler statistics", Verdict.INVALID, 7, wall_s=1, result=RESULT))


def test_the_page_has_all_that_a_test_declares() -> None:
    table = to_html(OUTCOME, {}, {}, "report").partition('<table class="statistics">')[2].partition("</table>")[0]
    heads = re.findall(r"<th[^>]*>([^<]+)</th>", table)
    assert heads == [
        "test", "null hypothesis", "statistic", "samples", "false-alarm rate", "smallest effect", "power", "p", "verdict",
        "estimated effect", "sampler statistics: 2 tests, false-alarm rates 2e-08",
    ]  # fmt: skip
    row = re.sub(r"<[^>]+>", "|", table.rpartition("<tr>")[2])
    for said in (WRONG.null, WRONG.statistic, "243,712", "1e-08", "0.146 %", "0.9990", "1e-30", "invalid", "0.18 % to 0.27 %"):
        assert said in row


def test_the_page_says_how_sure_its_intervals_are() -> None:
    assert "with a probability of 99% or more" in to_html(OUTCOME, {}, {}, "report")


def test_the_summary_has_a_line_for_each_check_and_every_test_that_rejects() -> None:
    text = to_markdown(OUTCOME, {}, "report")
    effects = "0.999 % total variation; 0.146 % difference of rates"
    assert f"| sampler statistics | 2 | 2e-08 | {effects} | 0.9990 | 1e-30 (a-rate, 1e-08) | 1 |" in text
    estimated = "estimated difference of rates 0.22% (0.18% to 0.27%, confidence 99%)"
    assert f"- a-rate: {WRONG.null}: {WRONG.statistic}; {estimated}" in text
    assert "- a-law" not in text


def test_a_run_without_tests_says_nothing_of_them() -> None:
    bare = dataclasses.replace(RESULT, statistics=())
    assert "Statistical tests" not in to_markdown(outcome(Check("a", "a", Verdict.VALID, 7, result=bare)), {}, "report")


def test_estimates_come_back_from_the_process_that_made_them() -> None:
    assert result_from_json(result_to_json(RESULT)) == RESULT
    bare = dataclasses.replace(RESULT, statistics=(dataclasses.replace(SOUND, estimate=None),))
    assert result_from_json(result_to_json(bare)) == bare
