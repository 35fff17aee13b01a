"""Pass, fail or unknown: the three verdicts, how they merge, and a violation with both of its sides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import reduce


class Verdict(StrEnum):
    """valid < unknown < invalid. Unknown is not a pass: a crashed checker, an empty suite, a floor of reach missed."""

    VALID = "valid"
    UNKNOWN = "unknown"
    INVALID = "invalid"

    @property
    def exit_code(self) -> int:
        return {Verdict.VALID: 0, Verdict.INVALID: 1, Verdict.UNKNOWN: 2}[self]


_RANK = {Verdict.VALID: 0, Verdict.UNKNOWN: 1, Verdict.INVALID: 2}


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; nothing at all is unknown."""
    found = list(verdicts)
    if not found:
        return Verdict.UNKNOWN
    return reduce(lambda one, other: one if _RANK[one] >= _RANK[other] else other, found)


def verdict_of(failed: object, missed: object) -> Verdict:
    """A suite's: invalid if anything failed, else unknown if anything that was due was missed. Nothing of a kind is false."""
    return Verdict.INVALID if failed else Verdict.UNKNOWN if missed else Verdict.VALID


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold: its sentence, and what was found against what was expected.

    ``subject`` names what it is about in a person's words ("block 3", "request a, choice 0"). ``facts`` are further
    lines of the story (who acquired it, when it was freed).
    """

    invariant: str  # identifier of the catalogue, e.g. "KV-4"
    name: str  # its name there, e.g. "freed once"
    subject: str
    found: str
    expected: str
    facts: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        return f"{self.subject}: found {self.found}, expected {self.expected}"
