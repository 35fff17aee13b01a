"""When each suite that does not run everywhere was last seen: ``docs/last-seen.json``.

Owns reading the file. Never guesses: a suite without an entry was never seen.
"""

from __future__ import annotations

import json
from pathlib import Path

from ci.outcome import NotRun
from ci.tree import ROOT
from engine_under_test.errors import BadInput

PATH = ROOT / "docs" / "last-seen.json"


def read_last_seen(path: Path = PATH) -> tuple[NotRun, ...]:
    """Every entry; a missing file is an empty list."""
    if not path.is_file():
        return ()
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["suites"]
        return tuple(
            NotRun(entry["suite"], entry["why"], entry.get("last_seen", ""), entry.get("commit", "")) for entry in entries
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(
            f'{path} must hold {{"suites": [{{"suite", "why", "last_seen", "commit"}}, ...]}}, found {error!r}; repair it'
        ) from error


def not_run(seen_elsewhere: tuple[NotRun, ...], left_out: dict[str, str], ran: set[str]) -> tuple[NotRun, ...]:
    """What this run did not include: suites left out by the profile (id -> why) and entries of the file that did not run."""
    dates = {entry.suite: entry for entry in seen_elsewhere}
    found = [
        NotRun(suite, why, dates[suite].last_seen if suite in dates else "", dates[suite].commit if suite in dates else "")
        for suite, why in left_out.items()
    ]
    found += [entry for entry in seen_elsewhere if entry.suite not in ran and entry.suite not in left_out]
    return tuple(found)
