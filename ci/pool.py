"""The processes of a gate: one pytest with xdist workers over the jobs file, watched through the run folder.

Owns starting, watching and ending them. Never reads a verdict out of pytest: a job without a report has no verdict.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ci.jobs import Job, JobReport, read_progress, read_report, save_jobs
from ci.tree import ROOT

_GRACE_S = 3.0


@dataclass(frozen=True, slots=True)
class JobState:
    """Where a job stands. ``progress`` is (done, total) and None before it begins; ``report`` is None until it has ended."""

    job: Job
    progress: tuple[int, int] | None
    report: JobReport | None
    began_s: float | None  # seconds since the pool started

    @property
    def is_running(self) -> bool:
        return self.progress is not None and self.report is None


class Pool:
    """Starts on construction; `poll` until `is_over`, then `stop`."""

    def __init__(self, jobs: tuple[Job, ...], folder: Path, *, workers: int, hash_seed: int) -> None:
        self.jobs = in_order_of_work(jobs, workers)
        self._folder = folder
        self._reports: dict[int, JobReport] = {}
        self._began: dict[int, float] = {}
        self._start_s = time.monotonic()
        path = save_jobs(folder, self.jobs)
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        self._log = (folder / "pytest.log").open("w", encoding="utf-8")
        environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTEST_ADDOPTS": ""}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        command = [sys.executable, "-m", "pytest", "-p", "ci.worker", "-p", "no:cacheprovider", "-q"]
        command += ["-c", str(folder / "pytest.ini"), "--rootdir", str(folder)]
        command += ["-n", str(workers), "--dist", "load", "--maxschedchunk", "1", str(path)]
        # A session of its own: Ctrl-C reaches the gate only, which then ends the whole group.
        self._process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
        )

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._start_s

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def poll(self) -> tuple[JobState, ...]:
        """The state of every job, in the order of work."""
        return tuple(self._state(job) for job in self.jobs)

    def stop(self) -> None:
        """Ends every process of the pool, gently first. Reports written so far stay readable."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, sign)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
        self._log.close()

    def log_tail(self, num_lines: int = 20) -> str:
        lines = (self._folder / "pytest.log").read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-num_lines:])

    def _state(self, job: Job) -> JobState:
        report = self._reports.get(job.number) or read_report(job, self._folder)
        if report is not None:
            self._reports[job.number] = report
        progress = read_progress(job, self._folder)
        if progress is not None:
            self._began.setdefault(job.number, self.elapsed_s)
        return JobState(job, progress, report, self._began.get(job.number))


def in_order_of_work(jobs: tuple[Job, ...], workers: int) -> tuple[Job, ...]:
    """Longest first. xdist hands each worker two jobs at the start and one at each end: the second of each pair is a short
    one, so that no long job waits behind another while a worker is idle."""
    longest_first = sorted(jobs, key=lambda job: (-job.share_s, job.number))
    heads, rest = longest_first[:workers], longest_first[workers:]
    tails = rest[len(rest) - len(heads) :] if len(rest) >= len(heads) else rest
    middle = rest[: len(rest) - len(tails)]
    pairs = [job for place, head in enumerate(heads) for job in (head, *tails[place : place + 1])]
    return (*pairs, *middle)
