"""A fresh process for one suite: ``python -m ci.child JOBS_FILE NUMBER``.

Owns nothing but the choice of what to run. Never printed to: the report file is its only answer.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ci.jobs import load_jobs, run_suite


def main(arguments: list[str]) -> None:
    """Runs the job with the given number."""
    path = Path(arguments[0])
    run_suite(next(job for job in load_jobs(path) if job.number == int(arguments[1])), path.parent)


if __name__ == "__main__":
    main(sys.argv[1:])
