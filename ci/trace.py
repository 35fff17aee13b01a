"""`assay trace`: a file of requests that somebody recorded, through engine, models and invariants.

Owns the printing. The form of the file is in docs/trace.md; reading and running it is `models/trace/`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from ci.jobs import Job, JobReport, Role
from ci.judging import judge
from ci.outcome import Check
from ci.report.verdict_json import failure_to_json, figure_to_json
from ci.wording import duration, work
from models.trace.requests import load_trace
from models.trace.suite import SETTINGS, Origin, run_trace
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


def run_trace_file(path: Path, console: Console) -> Check:
    """The verdict on the file's requests, all of them. The floors of reach of the shipped slice do not apply to another."""
    requests = load_trace(path)
    console.print(f"{len(requests)} requests of {path} …", markup=False, soft_wrap=True)
    began = time.monotonic()
    origin = Origin("trace", f"trace file {path.name}")
    result = run_trace(SuiteContext(Profile.QUICK, 0), requests, SETTINGS, origin)
    result = replace(result, missed=(), verdict=Verdict.INVALID if result.failures else Verdict.VALID)
    job = Job(0, Role.SUITE, origin.identifier, str(path), "models.trace.suite", Profile.QUICK, 0)
    check = judge(job, JobReport(time.monotonic() - began, result))
    for figure in result.figures:
        console.print(
            f"  {figure.name:<44} {figure.value:>12,.6g} {figure.unit}  {figure.label.value}", markup=False, soft_wrap=True
        )
    for failure in check.failures:
        console.print(f"  {failure.violation.invariant} {failure.violation.sentence}", markup=False, soft_wrap=True)
    for reason in () if check.failures else check.reasons:
        console.print(f"  {reason}", markup=False, soft_wrap=True)
    console.print(f"{check.verdict.value.upper()}  {work(result)}  {duration(check.wall_s)}", markup=False, soft_wrap=True)
    return check


def to_json(check: Check) -> dict[str, Any]:
    figures = check.result.figures if check.result else ()
    return {
        "schema": 1,
        "verdict": check.verdict.value,
        "reasons": list(check.reasons),
        "failures": [failure_to_json(check, failure) for failure in check.failures],
        "figures": [figure_to_json(figure) for figure in figures],
    }
