"""What a predicate is, and the words that violations are written in.

Owns the tie between a function and its entry of the catalogue. Judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from engine_under_test.caps import Caps
from properties.invariants.catalogue import CATALOGUE
from properties.invariants.view import SEQUENCES, TABLES, bits_of
from properties.moment import Happening, Moment
from properties.verdict import Violation

__all__ = ["HOLDERS", "SEQUENCES", "TABLES", "Predicate", "blocks_named", "predicate", "row_named", "violation"]


def _always(_caps: Caps) -> bool:
    return True


HOLDERS: Final = (TABLES, "reservations", "pinned")


@dataclass(frozen=True, slots=True)
class Predicate:
    """A function that judges one moment, with the invariant that it judges.

    ``happenings``: which moments it applies to; None: all. ``needs``: columns of the moment ("planned",
    "after.ref_counts") without which it has nothing to look at. ``only_with``: names of `view.EVIDENCE` without which it has
    nothing to look at either, whatever else is wrong. ``reads``: the columns of the snapshots (or `TABLES`) on which
    its answer depends, and nothing else does: where `after` equals `before` in all of them, what held of `before` holds of
    `after` and need not be judged again, but for an audit. Empty: it is judged at every moment. ``can_wait``: it looks at
    nothing of a moment that may become another later, so that it can be asked of many moments at once, in their order.
    ``is_observable``: whether a
    target with these caps shows what it looks at; if not, the invariant is *not observable* there, which is never passed.
    """

    identifier: str
    name: str
    statement: str
    source: str
    check: Callable[[Moment], Violation | None]
    is_observable: Callable[[Caps], bool] = _always
    happenings: frozenset[Happening] | None = None
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    only_with: tuple[str, ...] = ()
    can_wait: bool = False
    _looks: tuple[Callable[[Moment], object], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_looks", tuple(attrgetter(column) for column in self.needs))

    @property
    def sentence(self) -> str:
        """The predicate's own positive sentence, as its function is named."""
        return self.check.__name__.replace("_", " ")

    def applies(self, moment: Moment) -> bool:
        """True if this moment holds what the predicate looks at: then its evaluation counts."""
        return (self.happenings is None or moment.happening in self.happenings) and self.has_evidence(moment)

    def has_evidence(self, moment: Moment) -> bool:
        wanted = bits_of(self.only_with)
        return all(look(moment) is not None for look in self._looks) and not wanted & ~moment.view.evidence


def predicate(
    identifier: str,
    check: Callable[[Moment], Violation | None],
    *happenings: Happening,
    needs: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    only_with: tuple[str, ...] = (),
    can_wait: bool = False,
    is_observable: Callable[[Caps], bool] = _always,
) -> Predicate:
    """Ties a function to its entry of the catalogue. No happenings: it applies to every moment.

    The source is what the function's docstring says behind "Source:".
    """
    entry = CATALOGUE[identifier]
    source = " ".join((check.__doc__ or "").partition("Source:")[2].split())
    return Predicate(*entry, source, check, is_observable, frozenset(happenings) or None, needs, reads, only_with, can_wait)


def violation(identifier: str, subject: str, found: object, expected: object, *facts: str) -> Violation:
    """A violation of a catalogue entry, with both sides."""
    return Violation(identifier, CATALOGUE[identifier].name, subject, str(found), str(expected), facts)


def blocks_named(blocks: Iterable[int]) -> str:
    """ "block 3", "blocks 3, 4": in rising order."""
    found = sorted(set(blocks))
    return f"block{'s' if len(found) != 1 else ''} {', '.join(map(str, found))}"


def row_named(row: tuple[str, int, int, int]) -> str:
    """The row, a `RowId` or an equal tuple, in a person's words; a choice only where it is not the first."""
    request_id, choice, incarnation, epoch = row
    return f"request {request_id}{f', choice {choice}' if choice else ''} (incarnation {incarnation}, epoch {epoch})"
