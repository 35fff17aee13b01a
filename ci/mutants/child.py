"""A fresh process for one mutant: ``python -m ci.mutants.child JOBS_FILE NUMBER [SECONDS]``; it gets so much processor time.

Owns the order that makes a mutant real: first the loader, then the mutated module, only then anything that imports the
engine. Hence nothing of the project but `mutant`, `loader` and `planted` is imported at the top.
"""

from __future__ import annotations

import atexit
import json
import math
import resource
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ci.mutants.loader import MutationTooLate, StaleMutant, install
from ci.mutants.mutant import Fate, Mutant, MutantResult
from ci.mutants.planted import write_customization

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str]) -> None:
    """Installs the mutant of the job with the given number, hunts it, and writes the job's report."""
    began = time.monotonic()
    path, number = Path(arguments[0]), int(arguments[1])
    for seconds in map(float, arguments[2:]):  # one, or none; then the system ends it with SIGXCPU
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(seconds), resource.getrlimit(resource.RLIMIT_CPU)[1]))
    data = next(item for item in json.loads(path.read_text(encoding="utf-8")) if item["number"] == number)
    payload = data["payload"]
    mutant = Mutant(**{**payload["mutant"], "hunts": tuple(payload["mutant"]["hunts"])})
    result = run_mutant(mutant, payload["stories"], tuple(payload["sources"]), data["seed"])
    from ci.jobs import load_jobs, write_report

    job = next(job for job in load_jobs(path) if job.number == number)
    write_report(job, path.parent, {"mutant": result.to_json()}, began)


def _reach_children(mutant: Mutant) -> None:
    """Interpreters that are started with the search path of this one install the mutant as well, before anything else."""
    folder = tempfile.mkdtemp(prefix="assay-mutant-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    write_customization(Path(folder), mutant, ROOT)
    sys.path.insert(0, folder)


def run_mutant(mutant: Mutant, stories: str, sources: tuple[str, ...], seed: int) -> MutantResult:
    """The mutant's fate. Whatever goes wrong before the hunt is no kill."""
    began = time.monotonic()
    try:
        if {"ranks", "connectors", "covering-array"} & set(mutant.hunts):
            _reach_children(mutant)
        install(mutant, ROOT)
        from ci.mutants.hunt import hunt

        found: dict[str, Any] = hunt(stories, sources, seed, mutant.hunts)
    except (StaleMutant, MutationTooLate) as error:
        return MutantResult(mutant.id, mutant.origin, Fate.STALE, note=str(error))
    except Exception as error:
        note = f"nothing ran: {type(error).__name__}: {error}"
        return MutantResult(mutant.id, mutant.origin, Fate.BROKEN, note=note)
    return MutantResult(mutant.id, mutant.origin, wall_s=time.monotonic() - began, **found)


if __name__ == "__main__":
    main(sys.argv[1:])
