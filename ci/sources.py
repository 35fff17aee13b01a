"""Modules with suites that a person named: each is there and offers `SUITES`, or one sentence says what is wrong.

Owns these complaints, and the folder of a gate over named suites. A module that is there but does not import is not refused:
the gate says unknown, with its traceback.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Sequence

from engine_under_test.errors import BadInput

KNOWN = ("models.suites", "differential.suites", "chaos.suites")
_LONGEST = 120  # characters of a folder's name; file systems take 255


def check_sources(sources: Sequence[str]) -> None:
    """Raises BadInput at the first one that names no module with suites."""
    for source in sources:
        if not all(part.isidentifier() for part in source.split(".")):
            raise BadInput(f"--suites takes the dotted name of a module, as {KNOWN[0]}, found {source!r}")
        try:
            module = importlib.import_module(source)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{source}.".startswith(f"{error.name}."):
                raise BadInput(f"--suites takes a module, but there is none named {source!r}; {_hint(source)}") from error
            continue  # it is there, and something that it imports is not
        except Exception:  # whatever an import raises, the gate shows it
            continue
        if not isinstance(getattr(module, "SUITES", None), tuple):
            raise BadInput(f"--suites takes a module with a tuple SUITES, but {source} has none; {_hint(source)}")


def folder_of(label: str, sources: Sequence[str], mutant: str | None = None) -> str:
    """The name of the report folder: a gate over named suites, or over an engine with a bug that was put back, never writes
    over the one of a whole gate."""
    names = "+".join(dict.fromkeys(re.sub(r"[^\w.]", "-", source) for source in sources))
    return f"{label}{f'-with-{mutant}' if mutant else ''}{f'-only-{names}' if names else ''}"[:_LONGEST]


def _hint(source: str) -> str:
    near = difflib.get_close_matches(source, KNOWN, n=1)
    return f"did you mean {near[0]}?" if near else f"the engine's suites are in {' and '.join(KNOWN)}"
