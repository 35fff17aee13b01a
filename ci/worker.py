"""The pytest plugin inside each pytest-xdist worker: every job of the jobs file is one item.

Owns how a job gets its process: suites and proofs run in the worker, the second run of a walk and mutants in a child of
it. Never judges: an item always passes, the report file says what happened.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ci.jobs import JOBS_FILE, Job, ProgressFile, Role, load_jobs, read_report, run_suite, write_report
from ci.mutants.mutant import Fate, MutantResult

HUNT_LIMIT_S = 60.0  # of processor time; a hunt begins nothing after 30 s; what it has begun, and shrinking, may take this long
_STUCK_S = 300.0  # a hunt that waits takes no processor time: so much of the clock's, and it is ended


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Collects the jobs file, and nothing else."""
    return JobFile.from_parent(parent, path=file_path) if file_path.name == JOBS_FILE else None


class JobFile(pytest.File):
    """The jobs file as pytest sees it."""

    def collect(self) -> Iterator[pytest.Item]:
        for job in load_jobs(self.path):
            yield JobItem.from_parent(self, name=f"{job.role}:{job.subject}", job=job)


class JobItem(pytest.Item):
    """One job."""

    def __init__(self, job: Job, **rest: Any) -> None:
        super().__init__(**rest)
        self.job = job

    def runtest(self) -> None:
        folder = self.path.parent
        if self.job.role in (Role.SUITE, Role.PROOF):
            run_suite(self.job, folder)
        else:
            _run_in_child(self.job, folder)


def _run_in_child(job: Job, folder: Path) -> None:
    began = time.monotonic()
    ProgressFile(job.number, folder)
    environment = dict(os.environ)
    if job.hash_seed is not None:
        environment["PYTHONHASHSEED"] = str(job.hash_seed)
    is_mutant = job.role is Role.MUTANT
    module = "ci.mutants.child" if is_mutant else "ci.child"
    command = [sys.executable, "-m", module, str(folder / JOBS_FILE), str(job.number)]
    if is_mutant:
        command.append(str(HUNT_LIMIT_S))
        environment["OMP_NUM_THREADS"] = "1"  # the processor time of idle threads would be counted
    limit_s = _STUCK_S if is_mutant else None
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=limit_s)
    except subprocess.TimeoutExpired:
        _survived(job, folder, f"its hunt was stuck: it did not end within {_STUCK_S:g} s", began)
        return
    if is_mutant and done.returncode == -signal.SIGXCPU:
        _survived(job, folder, f"its hunt did not end within {HUNT_LIMIT_S:g} s of processor time", began)
        return
    if read_report(job, folder) is None:
        crash = f"the process of {job.subject} ended with {done.returncode} and no report\n{done.stderr[-4000:]}"
        write_report(job, folder, {"crash": crash}, began)


def _survived(job: Job, folder: Path, why: str, began: float) -> None:
    mutant = (job.payload or {})["mutant"]
    result = MutantResult(mutant["id"], mutant["origin"], Fate.SURVIVED, note=why)
    write_report(job, folder, {"mutant": result.to_json()}, began)
