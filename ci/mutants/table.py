"""The kill table: for people, and as a file that a commit shows.

Owns ``ci/mutants/kills.json``, written by ``assay mutants --record``. Never decides a fate.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ci.atomic import write_text
from ci.mutants.catalogue import MUTANTS
from ci.mutants.corpus import document, read_bugs, read_hunted
from ci.mutants.mutant import Fate, MutantResult
from ci.tree import ROOT

PATH = ROOT / "ci" / "mutants" / "kills.json"
PAGE = ROOT / "docs" / "corpus.md"
_HEAD = ("mutant", "re-creates", "killed by", "after", "shrunk to")
_NOTE = 150  # characters
_WIDE = 128
_TIMELESS = ("id", "origin", "verdict", "by", "by_name", "where", "ops", "shrunk", "also", "note")


def table_lines(results: Sequence[MutantResult]) -> Iterator[str]:
    """One line a mutant, in columns as wide as they need; below them, why the others were not killed, and
    what was found where a whole run killed."""
    rows = [_HEAD, *(_row(result) for result in results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD))]
    yield from ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    for result in results:
        if result.fate is not Fate.KILLED:
            yield f"{result.id}: {textwrap.shorten(result.note, _NOTE)}"
        elif result.ops is None and result.note:
            yield from textwrap.wrap(f"{result.id}: {result.note}", _WIDE, subsequent_indent="  ")


def closing_line(results: Sequence[MutantResult], floor: int) -> str:
    """ "16 of 16 killed · floor 16"."""
    killed = sum(result.fate is Fate.KILLED for result in results)
    return f"{killed} of {len(results)} killed · floor {floor}"


def record_kills(results: Sequence[MutantResult]) -> None:
    """Writes these entries of the table, and the page of the corpus, which quotes it."""
    write_kills(results, {mutant.id for mutant in MUTANTS})
    write_text(PAGE, document(read_bugs(), read_hunted()))


def write_kills(results: Sequence[MutantResult], known: Collection[str] = ()) -> None:
    """Entries of the other `known` mutants stay. Times are left out: they differ from machine to machine."""
    told = json.loads(PATH.read_text(encoding="utf-8"))["mutants"] if known and PATH.exists() else []
    entries = {entry["id"]: entry for entry in told if entry["id"] in known}
    entries |= {result.id: _timeless(result) for result in results}
    write_text(PATH, json.dumps({"schema": 1, "mutants": [entries[name] for name in sorted(entries)]}, indent=1) + "\n")


def _timeless(result: MutantResult) -> dict[str, Any]:
    """Without what differs from run to run: times, and what was estimated from samples of one seed."""
    entry = {name: value for name, value in result.to_json().items() if name in _TIMELESS}
    return entry | ({"note": ""} if result.fate is Fate.KILLED and result.ops is None else {})


def _row(result: MutantResult) -> tuple[str, ...]:
    if result.fate is not Fate.KILLED:
        return (result.id, result.origin, result.fate.value.upper(), "", "")
    if result.ops is None or result.shrunk is None:
        return (result.id, result.origin, f"{result.by} {result.by_name}", "a whole run", "")
    shrunk = f"{result.shrunk} ops" + (f" ({result.note})" if result.note else "")
    return (result.id, result.origin, f"{result.by} {result.by_name}", f"{result.ops} ops", shrunk)
