"""One gate: collects the suites, runs them as processes, judges what they left behind and merges the verdicts.

Owns the order of these steps and the cap on time. Never runs a suite itself, never renders (`report/`), never prints
(`progress.py`, `cli.py`).
"""

from __future__ import annotations

import importlib
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ci import environment
from ci.ending import ignore_further_signals, in_words
from ci.evaluated import never_evaluated
from ci.jobs import Job, Role
from ci.judging import budget_doubt, judge, judge_pair, last_line
from ci.last_seen import not_run, read_last_seen
from ci.mutants.baseline import void
from ci.mutants.catalogue import MUTANTS
from ci.mutants.draw import draw_mutants
from ci.mutants.mutant import Fate, Mutant, MutantResult
from ci.mutants.runner import fate_of, mutant_job
from ci.outcome import Check, Outcome, Proof
from ci.pool import JobState, Pool
from ci.progress import Progress
from ci.self_proof import SUITES as PLANTED
from ci.self_proof import prove
from ci.tree import Tree
from properties.suite import Profile, Suite
from properties.verdict import Verdict, merge

DEFAULT_SOURCES = ("models.suites", "differential.suites", "chaos.suites")
DEFAULT_BUDGET_S = {Profile.QUICK: 240.0, Profile.PR: 600.0, Profile.NIGHTLY: 3 * 3600.0}
_POLL_S = 0.1
_MODULO = 2**32 - 1  # PYTHONHASHSEED is a number below 2**32


@dataclass(frozen=True, slots=True)
class GateSettings:
    """``sources`` are modules with a tuple ``SUITES``. ``budget_s`` is a cap: counts fix the work.
    ``planted``: the bug that every process of the run has, if one was put back; then no run is valid."""

    profile: Profile
    tree: Tree
    seed: int
    budget_s: float
    command: str
    sources: tuple[str, ...] = DEFAULT_SOURCES
    workers: int = 2
    mutants: tuple[Mutant, ...] = MUTANTS
    planted: Mutant | None = None


@dataclass(frozen=True, slots=True)
class Collection:
    """What the sources offer for a profile. ``broken``: a source or a suite -> why it can not be run, one sentence in the
    first line and whatever else is known behind it."""

    suites: tuple[tuple[str, Suite], ...]
    left_out: dict[str, str]
    broken: dict[str, str]


@dataclass(frozen=True, slots=True)
class End:
    """How the run came to its end. ``why`` is empty if all of its jobs did."""

    why: str = ""
    is_interrupted: bool = False


def run_gate(settings: GateSettings, make_progress: Callable[[], Progress]) -> Outcome:
    """Runs everything and returns what was learned, also when Ctrl-C ended it early."""
    started_at = datetime.now(UTC).isoformat(timespec="seconds")
    began = time.monotonic()
    collection = collect(settings.sources, settings.profile)
    jobs = plan_jobs(settings, collection)
    with tempfile.TemporaryDirectory(prefix="assay-") as folder:
        pool = Pool(jobs, Path(folder), workers=settings.workers, hash_seed=hash_seeds(settings.seed)[0])
        end = _watch(pool, settings.budget_s, make_progress())
        states = pool.poll()
        log = pool.log_tail()
    cause = "" if end.why else _death(log)  # what ended the whole run is said once, not with each of its parts
    checks = judge_suites(states, hash_seeds(settings.seed), cause) + _broken(collection, settings.seed)
    proofs = tuple(prove(s.job, s.report, _where(s, cause)) for s in states if s.job.role is Role.PROOF)
    fates = tuple(fate_of(s.job.subject, "", s.report, _where(s, cause)) for s in states if s.job.role is Role.MUTANT)
    if any(check.verdict is Verdict.INVALID for check in checks):
        fates = void(fates)
    doubts = (_of_planted(settings.planted), end.why, "" if checks else "no suite was collected", budget_doubt(checks))
    reasons = tuple(doubt for doubt in doubts if doubt)
    if settings.sources == DEFAULT_SOURCES and (silent := never_evaluated(checks)):
        reasons = (*reasons, silent)
    return Outcome(
        verdict=merge_all(checks, proofs, fates, reasons),
        tree=settings.tree,
        seed=settings.seed,
        profile=settings.profile,
        command=settings.command,
        wall_s=time.monotonic() - began,
        started_at=started_at,
        checks=checks,
        proofs=proofs,
        mutants=tuple(fate.to_json() for fate in fates),
        not_run=not_run(read_last_seen(), collection.left_out, {check.id for check in checks}),
        reasons=reasons,
        is_interrupted=end.is_interrupted,
        environment=environment.describe(),
    )


def collect(sources: Sequence[str], profile: Profile) -> Collection:
    """Every suite of the sources. One that the profile does not list is left out by name, never silently."""
    suites: list[tuple[str, Suite]] = []
    left_out: dict[str, str] = {}
    broken: dict[str, str] = {}
    owners: dict[str, list[str]] = {}
    for source in dict.fromkeys(sources):
        try:
            offered: tuple[Suite, ...] = tuple(importlib.import_module(source).SUITES)
        except Exception as error:  # whatever an import raises, the gate goes on and says so
            sentence = traceback.format_exception_only(error)[-1].strip()
            broken[source] = f"could not be imported: {sentence}\n{traceback.format_exc()}"
            continue
        if not offered or not all(isinstance(suite, Suite) for suite in offered):
            broken[source] = (
                "its SUITES is empty: nothing of it was run" if not offered else "its SUITES holds what is no Suite"
            )
            continue
        for suite in offered:
            owners.setdefault(suite.id, []).append(source)
        suites += [(source, suite) for suite in offered if profile in suite.profiles]
        left_out |= {
            suite.id: f"not in profile {profile}; runs in {', '.join(sorted(suite.profiles))}"
            for suite in offered
            if profile not in suite.profiles
        }
    for name, named in owners.items():
        if len(named) > 1:
            broken[name] = (
                f"{len(named)} suites bear this identifier (in {', '.join(dict.fromkeys(named))}): none of them was run"
            )
            left_out.pop(name, None)
    return Collection(tuple((source, suite) for source, suite in suites if suite.id not in broken), left_out, broken)


def plan_jobs(settings: GateSettings, collection: Collection) -> tuple[Job, ...]:
    """Suites, second runs of walks, plants and mutants, numbered."""
    jobs: list[Job] = []

    def add(role: Role, suite: Suite, source: str, hash_seed: int | None = None) -> None:
        common = (role, suite.id, suite.title, source, settings.profile, settings.seed, suite.share_s, hash_seed)
        jobs.append(Job(len(jobs), *common))

    for source, suite in collection.suites:
        add(Role.SUITE, suite, source)
        if suite.has_walk_seeds:
            add(Role.AGAIN, suite, source, hash_seeds(settings.seed)[1])
    for plant in PLANTED:
        add(Role.PROOF, plant, "ci.self_proof")
    for mutant in draw_mutants(settings.mutants, settings.seed, settings.profile):
        jobs.append(mutant_job(mutant, len(jobs), settings.seed))
    return tuple(jobs)


def hash_seeds(seed: int) -> tuple[int, int]:
    """PYTHONHASHSEED of the first and of the second run of a walk; both follow from the seed, and they differ."""
    first = seed % _MODULO
    return first, (first + 1) % _MODULO


def judge_suites(states: Sequence[JobState], seeds: tuple[int, int], why_missing: str) -> tuple[Check, ...]:
    """A check for each suite, a walk's two runs compared."""
    again = {state.job.subject: state for state in states if state.job.role is Role.AGAIN}
    checks = []
    for state in sorted(states, key=lambda state: state.job.number):
        if state.job.role is not Role.SUITE:
            continue
        check = judge(state.job, state.report, _where(state, why_missing))
        if second := again.get(state.job.subject):
            check = judge_pair(check, second.report, seeds, _where(second, why_missing))
        checks.append(check)
    return tuple(checks)


def merge_all(
    checks: Sequence[Check], proofs: Sequence[Proof], fates: Sequence[MutantResult], reasons: Sequence[str]
) -> Verdict:
    """The verdict of the run. A plant that came out wrong, a mutant that lives, a cap or a Ctrl-C make it unknown: they say
    something about the tester, not about the engine."""
    verdicts = [check.verdict for check in checks]
    doubts = [not proof.is_as_planted for proof in proofs] + [fate.fate is not Fate.KILLED for fate in fates]
    if reasons or any(doubts) or not proofs:
        verdicts.append(Verdict.UNKNOWN)
    return merge(verdicts)


def _watch(pool: Pool, budget_s: float, progress: Progress) -> End:
    """Waits for the pool until its jobs have ended, or it has to be ended early."""
    try:
        while True:
            is_over = pool.is_over  # read before the files, so that the last reports are seen
            states = pool.poll()
            progress.update(states, pool.elapsed_s)
            if is_over or all(state.report for state in states):
                return End()
            if pool.elapsed_s >= budget_s:
                return End(f"the cap of {budget_s:g} s was hit before the work was done; raise --budget")
            time.sleep(_POLL_S)
    except KeyboardInterrupt as interrupt:
        ignore_further_signals()
        return End(in_words(interrupt), is_interrupted=True)
    finally:
        progress.close()
        pool.stop()


def _where(state: JobState, cause: str) -> str:
    """How far a job came that left no report. ``cause``: why it left none, if that is not said of the whole run."""
    done, total = state.progress or (0, 0)
    reached = f"ended early, at {done} of {total}" if total else "ended early"
    if state.progress is None:
        reached = "did not begin"
    return f"{reached}: {cause}" if cause else reached


def _of_planted(mutant: Mutant | None) -> str:
    """Why nothing is said of the engine as it is."""
    if mutant is None:
        return ""
    told = f"{mutant.origin}: {mutant.note.rstrip('.')}"
    return f"the bug {mutant.id} was put back ({told}), so nothing is said of the engine as it is"


def _death(log: str) -> str:
    """Why a job may have no report although nobody ended the pool: its worker died, or pytest itself did not start."""
    if "crashed while running" in log:
        return "its worker process died without a report"
    return f"its worker process left no report; the last line of its log: {last_line(log)}"


def _broken(collection: Collection, seed: int) -> tuple[Check, ...]:
    return tuple(
        Check(name, name, Verdict.UNKNOWN, seed, tuple(dict.fromkeys((text.splitlines()[0], text.strip()))))
        for name, text in collection.broken.items()
    )
