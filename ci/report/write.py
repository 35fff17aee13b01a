"""Puts the whole report in place, all files or none, and tells the story of each failure by replaying it.

Owns the names of the files in a report folder. Never decides a verdict.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jsonschema import validate

from ci.atomic import write_all
from ci.outcome import Outcome
from ci.replay_file import replay_of, to_text
from ci.report import junit, markdown, page, verdict_json
from ci.tree import ROOT

_REPLAY_S = 20.0  # a counterexample is short; one that hangs must not hang the report
_MOST_TOLD = 5
_MOST_OF_A_NAME = 80  # characters of a seed: file systems take 255 with what stands around it


def write_report(outcome: Outcome, folder: Path) -> dict[int, str]:
    """Writes verdict.json, junit.xml, summary.md, index.html and replay/*.json; returns the replay files by failure."""
    replays = name_replays(outcome)
    texts = {name: to_text(replay_of(*_named(outcome, place))) for place, name in replays.items()}
    leads = [finding.lead for finding in outcome.findings if finding.lead in replays]
    told = tell_failures({place: texts[replays[place]] for place in leads})
    data = verdict_json.to_json(outcome, replays)
    validate(data, verdict_json.schema())
    shown = shown_path(folder)
    texts |= {
        "junit.xml": junit.to_xml(outcome),
        "summary.md": markdown.to_markdown(outcome, replays, shown),
        "index.html": page.to_html(outcome, replays, told, shown),
        "verdict.json": json.dumps(data, indent=1) + "\n",  # last: whoever sees it sees a whole report
    }
    stale = _earlier_replays(folder) - set(replays.values())
    write_all(folder, texts)
    for name in stale:
        (folder / name).unlink(missing_ok=True)
    return replays


def name_replays(outcome: Outcome) -> dict[int, str]:
    """ "replay/KV-4-1187.json" for each failure with operations: the invariant, and the last part of its seed."""
    names: dict[int, str] = {}
    for place, (check, failure) in enumerate(outcome.failures):
        if not failure.ops:
            continue
        seed = failure.seed.rsplit("#", 1)[-1].partition(":")[0]  # a storm's is followed by what strikes in it
        stem = _plain(f"{failure.violation.invariant}-{seed}")[:_MOST_OF_A_NAME]
        options = [stem, f"{stem}-{_plain(check.id)}", f"{stem}-{_plain(check.id)}-{place}"]
        names[place] = next(name for option in options if (name := f"replay/{option}.json") not in names.values())
    return names


def tell_failures(texts: Mapping[int, str]) -> dict[int, dict[str, Any]]:
    """The timeline of each failure, told by a process of its own, so that nothing a counterexample does ends the report."""
    told: dict[int, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="assay-replay-") as folder:
        for place, text in list(texts.items())[:_MOST_TOLD]:
            path = Path(folder) / "replay.json"
            path.write_text(text, encoding="utf-8")
            command = [sys.executable, "-m", "ci.cli", "replay", str(path), "--json"]
            try:
                done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_REPLAY_S, check=False)
                told[place] = json.loads(done.stdout)
            except (subprocess.TimeoutExpired, ValueError):
                continue  # the failure is shown without a picture; its sentence and its file stand
    return told


def shown_path(path: Path) -> str:
    """Relative to where the person stands, if it lies below."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _named(outcome: Outcome, place: int) -> tuple[str, Any]:
    check, failure = outcome.failures[place]
    return check.id, failure


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")


def _earlier_replays(folder: Path) -> set[str]:
    """Replay files that an earlier report in the same folder put there."""
    try:
        failures = json.loads((folder / "verdict.json").read_text(encoding="utf-8"))["failures"]
        return {entry["replay"] for entry in failures if re.fullmatch(r"replay/[A-Za-z0-9.-]+\.json", entry["replay"] or "")}
    except (OSError, ValueError, KeyError, TypeError):
        return set()
