"""A mutant as data: a bug that somebody once shipped, as one exact replacement in one file of the source.

Owns the value and its fate. Never applies anything (`loader.py`); imports the standard library only, so that a child process
can read the list before any mutated module is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Mutant:
    """``origin`` names the public bug that it re-creates ("vllm 45357"), ``url`` where it is described. ``file`` is relative
    to the repository ("engine_under_test/kv/transaction.py"). ``snippet`` must occur in it exactly once. ``note`` says in a
    sentence what the bug does. ``hunts``: the suites that look for it, in this order; none: the stories and every suite that
    needs no optional part of the installation. ``over_corrects``: another mutant's identifier, if this is what a fix of that
    one's bug becomes when it goes too far: nothing is corrupted any more, but something leaks, hangs or thrashes."""

    id: str
    origin: str
    url: str
    file: str
    snippet: str
    replacement: str
    note: str
    hunts: tuple[str, ...] = ()
    over_corrects: str = ""

    @property
    def module(self) -> str:
        """The dotted name under which the file is imported."""
        return self.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class Fate(StrEnum):
    """What became of a mutant. Only `KILLED` counts as killed."""

    KILLED = "killed"  # a catalogue predicate or a statistical test over a run saw it
    SURVIVED = "survived"  # the hunt ended, or had 30 s of processor time, without a kill
    STALE = "stale"  # its snippet does not occur exactly once: nothing was tested
    VOID = "void"  # killed, but the engine is broken without it
    NOT_RUN = "not run"  # its hunt never began or ended: interrupted, capped, the process died, a package is missing
    BROKEN = "broken"  # the mutated source does not import or crashes: that proves nothing about the harness


@dataclass(frozen=True, slots=True)
class MutantResult:
    """One line of the kill table. ``ops`` is how many operations the hunt had done in the world that was killed, ``shrunk``
    how many are left after shrinking; None where a statistical test killed it. ``note``: why it was not killed, or what the
    shrunk workload of a language model or a text still holds, or what was found over a whole run: a law, and how far off."""

    id: str
    origin: str
    fate: Fate
    by: str = ""  # identifier of the predicate or the test
    by_name: str = ""
    where: str = ""  # the suite or walk that killed it
    ops: int | None = None
    shrunk: int | None = None
    wall_s: float = 0.0
    note: str = ""
    also: tuple[str, ...] = ()  # every identifier whose predicates, each on its own, find the shrunk story

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "origin": self.origin,
            "verdict": self.fate.value,
            "by": self.by,
            "by_name": self.by_name,
            "where": self.where,
            "ops": self.ops,
            "shrunk": self.shrunk,
            "wall_s": round(self.wall_s, 2),
            "note": self.note,
            "also": list(self.also),
        }
