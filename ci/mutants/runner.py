"""Hunts mutants, each in a process of its own, through the same pool as a gate.

Owns the choice of mutants by name and the jobs for them. Never applies one here.
"""

from __future__ import annotations

import dataclasses
import difflib
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ci.jobs import Job, JobReport, Role
from ci.judging import last_line
from ci.mutants.catalogue import MUTANTS
from ci.mutants.mutant import Fate, Mutant, MutantResult
from ci.pool import Pool
from ci.progress import progress_for
from engine_under_test.errors import BadInput
from properties.suite import Profile

STORIES = "ci.mutants.stories"
SUITES = ("differential.suites", "models.suites")  # after the stories
_SHARE_S = 8.0
_POLL_S = 0.1


def select(ids: Sequence[str], mutants: tuple[Mutant, ...] = MUTANTS) -> tuple[Mutant, ...]:
    """Those with the given identifiers, or all."""
    known = {mutant.id: mutant for mutant in mutants}
    for name in ids:
        if name not in known:
            near = ", ".join(difflib.get_close_matches(name, known, n=3, cutoff=0.0)) or "none"
            raise BadInput(
                f"a mutant is named by its identifier, found {name!r}; the nearest of {len(known)} are: {near}; "
                "ci/mutants/ holds them all"
            )
    return tuple(known[name] for name in dict.fromkeys(ids)) or mutants


def mutant_job(mutant: Mutant, number: int, seed: int, stories: str = STORIES, sources: tuple[str, ...] = SUITES) -> Job:
    """The job that hunts one mutant."""
    payload: dict[str, Any] = {"mutant": dataclasses.asdict(mutant), "stories": stories, "sources": list(sources)}
    return Job(number, Role.MUTANT, mutant.id, f"mutant {mutant.id}", "", Profile.QUICK, seed, _SHARE_S, payload=payload)


def hunt_all(mutants: tuple[Mutant, ...], seed: int, workers: int, console: Console) -> tuple[MutantResult, ...]:
    """The fate of each, in the order given."""
    jobs = tuple(mutant_job(mutant, number, seed) for number, mutant in enumerate(mutants))
    progress = progress_for(console)
    with tempfile.TemporaryDirectory(prefix="assay-mutants-") as folder:
        pool = Pool(jobs, Path(folder), workers=min(workers, max(1, len(jobs))), hash_seed=0)
        try:
            while True:
                is_over = pool.is_over  # read before the files, so that the last reports are seen
                states = pool.poll()
                progress.update(states, pool.elapsed_s)
                if is_over or all(state.report for state in states):
                    break
                time.sleep(_POLL_S)
        finally:
            progress.close()
            pool.stop()
        why = last_line(pool.log_tail())
    reports = {state.job.subject: state.report for state in states}
    return tuple(fate_of(mutant.id, mutant.origin, reports[mutant.id], why) for mutant in mutants)


def fate_of(name: str, origin: str, report: JobReport | None, why_missing: str) -> MutantResult:
    """The fate that a job's report tells; no report is no kill."""
    if report is not None and report.mutant is not None:
        data = dict(report.mutant)
        also = tuple(data.pop("also", ()))
        return MutantResult(fate=Fate(data.pop("verdict")), also=also, **data)
    if report is not None:
        return MutantResult(name, origin, Fate.BROKEN, note=last_line(report.crash))
    return MutantResult(name, origin, Fate.NOT_RUN, note=why_missing or "its process died without a report")
