"""Hunts mutants, each in a process of its own, through the same pool as a gate.

Owns the choice of mutants by name, which can be hunted in this installation, and the jobs for them. Never applies one here.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ci.jobs import Job, JobReport, Role
from ci.judging import last_line
from ci.mutants.baseline import void
from ci.mutants.catalogue import MUTANTS
from ci.mutants.loader import StaleMutant, mutated_source
from ci.mutants.mutant import Fate, Mutant, MutantResult
from ci.pool import Pool
from ci.progress import progress_for
from ci.storm_outcome import Ending
from ci.tree import ROOT
from differential.suites import is_installed
from engine_under_test.errors import BadInput
from properties.suite import Profile, Suite
from properties.verdict import Verdict

STORIES = "ci.mutants.stories"
SUITES = ("differential.suites", "models.suites", "chaos.suites")  # after the stories
_SHARE_S = 8.0
_SHARE_OF_A_MODEL_S = 20.0  # torch is imported, and shrinking asks two oracles
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


def select_one(name: str) -> Mutant:
    """The one with this identifier, which must fit the source."""
    mutant = select((name,))[0]
    try:
        mutated_source(mutant, ROOT)
    except StaleMutant as error:
        raise BadInput(str(error)) from error
    return mutant


def missing_extras(mutant: Mutant) -> tuple[str, ...]:
    """The optional parts of the installation that its hunt needs and that are not there."""
    needed = dict.fromkeys(extra for suite in suites_of(mutant) for extra in suite.extras)
    return tuple(extra for extra in needed if not is_installed(extra))


def suites_of(mutant: Mutant) -> tuple[Suite, ...]:
    """Those that its hunt names; none, if it names none."""
    return tuple(suite for source in SUITES for suite in _offered_by(source) if suite.id in mutant.hunts)


def _offered_by(source: str) -> tuple[Suite, ...]:
    suites: tuple[Suite, ...] = importlib.import_module(source).SUITES
    return suites


def mutant_job(mutant: Mutant, number: int, seed: int, stories: str = STORIES, sources: tuple[str, ...] = SUITES) -> Job:
    """The job that hunts one mutant."""
    payload: dict[str, Any] = {"mutant": dataclasses.asdict(mutant), "stories": stories, "sources": list(sources)}
    share_s = _SHARE_OF_A_MODEL_S if mutant.hunts else _SHARE_S
    return Job(number, Role.MUTANT, mutant.id, f"mutant {mutant.id}", "", Profile.QUICK, seed, share_s, payload=payload)


def hunt_all(
    mutants: tuple[Mutant, ...], seed: int, workers: int, console: Console, ending: Ending | None = None
) -> tuple[MutantResult, ...]:
    """The fate of each, in the order given. ``ending``: what a Ctrl-C or a SIGTERM leaves, the rest being not run."""
    ending = Ending() if ending is None else ending
    lacking = {mutant.id: missing for mutant in mutants if (missing := missing_extras(mutant))}
    hunted = [mutant for mutant in mutants if mutant.id not in lacking]
    jobs = tuple(mutant_job(mutant, number, seed) for number, mutant in enumerate(hunted))
    jobs += tuple(_suite_jobs(hunted, len(jobs), seed))
    progress = progress_for(console)
    with tempfile.TemporaryDirectory(prefix="assay-mutants-") as folder:
        pool = Pool(jobs, Path(folder), workers=min(workers, max(1, len(jobs))), hash_seed=0)
        try:
            with ending:
                while True:
                    is_over = pool.is_over  # read before the files, so that the last reports are seen
                    states = pool.poll()
                    progress.update(states, pool.elapsed_s)
                    if is_over or all(state.report for state in states):
                        break
                    time.sleep(_POLL_S)
            states = pool.poll()
        finally:
            progress.close()
            pool.stop()
        why = ending.words or last_line(pool.log_tail())
    reports = {state.job.subject: state.report for state in states}
    told = {
        name: f"its hunt needs {' and '.join(parts)}; say pip install -e '.[model,reference]'"
        for name, parts in lacking.items()
    }
    fates = (fate_of(each.id, each.origin, reports.get(each.id), told.get(each.id, why)) for each in mutants)
    return tuple(
        fate if all(_is_valid(reports.get(name)) for name in each.hunts) else void((fate,))[0]
        for each, fate in zip(mutants, fates, strict=True)
    )


def _suite_jobs(mutants: Sequence[Mutant], first: int, seed: int) -> Iterator[Job]:
    """The suites that these mutants name, on the engine as it is: a kill by a suite that fails anyway proves nothing."""
    offered = {suite.id: (source, suite) for source in SUITES for suite in _offered_by(source)}
    for number, name in enumerate(dict.fromkeys(name for mutant in mutants for name in mutant.hunts), start=first):
        source, suite = offered[name]
        yield Job(number, Role.SUITE, name, suite.title, source, Profile.QUICK, seed, _SHARE_S)


def _is_valid(report: JobReport | None) -> bool:
    return report is not None and report.result is not None and report.result.verdict is Verdict.VALID


def fate_of(name: str, origin: str, report: JobReport | None, why_missing: str) -> MutantResult:
    """The fate that a job's report tells; no report is no kill."""
    if report is not None and report.mutant is not None:
        data = dict(report.mutant)
        also = tuple(data.pop("also", ()))
        return MutantResult(fate=Fate(data.pop("verdict")), also=also, **data)
    if report is not None:
        return MutantResult(name, origin, Fate.BROKEN, note=last_line(report.crash))
    return MutantResult(name, origin, Fate.NOT_RUN, note=why_missing or "its process died without a report")
