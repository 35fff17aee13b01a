"""A job: one suite (or mutant) to run in a process of its own, and the files through which that process speaks.

Owns the layout of the run folder: ``jobs.assay.json``, and for each job ``N.progress.json`` and ``N.report.json``. Never
decides a verdict: a report is what happened.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import time
import traceback
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from ci.codec import result_from_json, result_to_json
from engine_under_test.errors import AssayError
from properties.suite import CheckResult, Profile, Suite, SuiteContext

JOBS_FILE = "jobs.assay.json"
_PROGRESS_EVERY_S = 0.2


class Role(StrEnum):
    """What a job is run for."""

    SUITE = "suite"
    AGAIN = "again"  # the same suite in a fresh process under another PYTHONHASHSEED
    PROOF = "proof"  # a planted suite that must not come out valid
    MUTANT = "mutant"


@dataclass(frozen=True, slots=True)
class Job:
    """``source`` is the module whose ``SUITES`` holds the suite ``subject``. For mutants ``subject`` is the identifier and
    ``payload`` holds the mutant's columns under "mutant" and the modules with suites to hunt it with under "sources"."""

    number: int
    role: Role
    subject: str
    title: str
    source: str
    profile: Profile
    seed: int
    share_s: float = 10.0
    hash_seed: int | None = None
    payload: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class JobReport:
    """What a job's process left behind: a result, or the mutant's fate, or the traceback of a crash."""

    wall_s: float
    result: CheckResult | None = None
    mutant: dict[str, Any] | None = None
    crash: str = ""


def save_jobs(folder: Path, jobs: tuple[Job, ...]) -> Path:
    path = folder / JOBS_FILE
    path.write_text(json.dumps([dataclasses.asdict(job) for job in jobs]), encoding="utf-8")
    return path


def load_jobs(path: Path) -> tuple[Job, ...]:
    return tuple(
        Job(**{**item, "role": Role(item["role"]), "profile": Profile(item["profile"])})
        for item in json.loads(path.read_text(encoding="utf-8"))
    )


def find_suite(source: str, subject: str) -> Suite:
    found: list[Suite] = [suite for suite in importlib.import_module(source).SUITES if suite.id == subject]
    if len(found) != 1:
        raise AssayError(f"one suite of {source} must bear the identifier {subject!r}, found {len(found)}")
    return found[0]


def run_suite(job: Job, folder: Path) -> None:
    """Runs the suite here and writes its report. A crash of the suite is a report too."""
    began = time.monotonic()
    try:
        suite = find_suite(job.source, job.subject)
        result = suite.run(SuiteContext(job.profile, job.seed, ProgressFile(job.number, folder)))
        report: dict[str, Any] = {"result": result_to_json(result)}
    except KeyboardInterrupt:
        raise
    except BaseException:  # SystemExit and the like out of a suite are crashes, not ends
        report = {"crash": traceback.format_exc()}
    write_report(job, folder, report, began)


def write_report(job: Job, folder: Path, report: dict[str, Any], began: float) -> None:
    """``began`` is on the monotonic clock."""
    report["wall_s"] = time.monotonic() - began
    _replace(folder / f"{job.number}.report.json", report)


def read_report(job: Job, folder: Path) -> JobReport | None:
    """None: the job has not ended, or its process died without a word."""
    try:
        data = json.loads((folder / f"{job.number}.report.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    result = result_from_json(data["result"]) if "result" in data else None
    return JobReport(data["wall_s"], result, data.get("mutant"), data.get("crash", ""))


def read_progress(job: Job, folder: Path) -> tuple[int, int] | None:
    """(done, total), or None before the job has begun."""
    try:
        done, total = json.loads((folder / f"{job.number}.progress.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return done, total


class ProgressFile:
    """A suite's progress, for whoever watches: written at the start, at the end and at most five times a second."""

    def __init__(self, number: int, folder: Path) -> None:
        self._path = folder / f"{number}.progress.json"
        self._due = 0.0
        self(0, 0)

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._due or done >= total:
            self._due = now + _PROGRESS_EVERY_S
            _replace(self._path, [done, total])


def _replace(path: Path, data: Any) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(data), encoding="utf-8")
    os.replace(temporary, path)
