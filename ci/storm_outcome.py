"""What a run of storms came to, whatever they struck: a verdict, the counts of its kind, and the file that tells of what broke.

Owns the value, its JSON, when the next storm begins, and the words of what broke. What a storm is stands in `chaos`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console

from ci.atomic import write_all
from ci.codec import violation_to_json
from ci.ending import INTERRUPTED, heard, ignore_further_signals, in_words
from ci.report.write import shown_path
from ci.tree import ROOT
from properties.verdict import Verdict, Violation

FOLDER = ROOT / "reports" / "chaos"


@dataclass(frozen=True, slots=True)
class StormsOutcome:
    """``storms``: run to their end, the failing one included. ``counts``: by name, what was done and seen. ``has_shown``: all
    that it was to show. ``file``: what is left of the failing one, in JSON under the name ``file_is`` ("replay")."""

    seed: int
    storms: int
    has_shown: bool
    failing: str = ""
    violation: Violation | None = None
    file: str = ""
    file_is: str = "history"
    is_repeatable: bool = False
    counts: Mapping[str, Any] = field(default_factory=dict)
    ended_by: str = ""  # Ctrl-C or SIGTERM, in words: the storms are those before it

    @property
    def verdict(self) -> Verdict:
        if self.violation is not None:
            return Verdict.INVALID
        return Verdict.VALID if self.has_shown and not self.ended_by else Verdict.UNKNOWN

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.ended_by else self.verdict.exit_code

    def told(self, words: str) -> str:
        """The closing line: verdict, what was done, and what ended it early."""
        return f"{self.verdict.name}  {words}{f'; {self.ended_by}' if self.ended_by else ''}"

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "verdict": self.verdict.value,
            "seed": f"{self.seed:#x}",
            "storms": self.storms,
            "interrupted": bool(self.ended_by),
            **self.counts,
            "is_repeatable": self.is_repeatable,
            "storm": self.failing or None,
            "violation": violation_to_json(self.violation) if self.violation else None,
            self.file_is: self.file or None,
        }


def turns(budget_s: float | None, number: int | None, now: Callable[[], float] = time.monotonic) -> Iterator[int]:
    """The storms one after the other, until the time is over or the number is reached."""
    ends = None if budget_s is None else now() + budget_s
    done = 0
    while (number is None or done < number) and (ends is None or now() < ends):
        yield done
        done += 1


class Ending:
    """`with ending:` around storms: a Ctrl-C or a SIGTERM ends them, and what they found so far is still told."""

    def __init__(self) -> None:
        self.words = ""

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, _type: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None) -> bool:
        end = heard() if isinstance(error, Exception) else error  # it may have become another error
        if not isinstance(end, KeyboardInterrupt):
            return False
        ignore_further_signals()
        self.words = in_words(end)
        return True


def keep(
    folder: Path, name: str, text: str, violation: Violation, facts: Iterable[str], told: str, console: Console
) -> str:  # fmt: skip
    """Writes what is left of a storm that broke something, and says what broke, with the account; the file's name as shown."""
    write_all(folder, {name: text})
    shown = shown_path(folder / name)
    console.print(f"\n{violation.invariant} {violation.sentence}", markup=False, soft_wrap=True)
    for fact in facts:
        console.print(f"  {fact}", markup=False, soft_wrap=True)
    console.print(f"  {told} {shown}\n", markup=False, soft_wrap=True)
    return shown
