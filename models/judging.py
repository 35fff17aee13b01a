"""Every predicate before every moment: which apply, how often each was evaluated, and the first violation.

Owns the choice of predicates for a happening and their counts. Never makes a moment and never looks at a target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, Final

from engine_under_test.errors import AssayError
from engine_under_test.types import Caps, Snapshot
from properties.invariants.predicate import SEQUENCES, TABLES, Predicate
from properties.invariants.reading import reading
from properties.moment import Happening, Moment
from properties.verdict import Violation

_COLUMNS: Final = (
    "free", "cached", "ref_counts", "reservations", "pinned", "quarantined", "plans", "unsettled", "waiting", "running",
)  # fmt: skip
_BITS: Final = {column: 1 << number for number, column in enumerate((*_COLUMNS, TABLES))}
_COLUMN_BITS: Final = [_BITS[column] for column in _COLUMNS]
_ALL: Final = sum(_BITS.values())
_SEQUENCES: Final = sum(_BITS[column] for column in SEQUENCES)
_columns_of = attrgetter(*_COLUMNS)
_frame_of = attrgetter("generation", "cache_generation", "block_size", "num_blocks")


class CheckerCrashed(AssayError):
    """A predicate raised instead of judging: no verdict on the target, hence no violation of its."""


class _Check:
    """A predicate with the count of its evaluations.

    ``needs`` and ``reads``: its columns as bits. ``held_of``: the last snapshot of which it is known to hold, for a predicate
    that declares what it reads.
    """

    __slots__ = ("evaluations", "held_of", "is_about_change", "judge", "needs", "predicate", "reads")

    def __init__(self, predicate: Predicate, needs: int) -> None:
        self.predicate = predicate
        self.judge = predicate.check
        self.needs = needs
        self.reads = sum(_BITS[column] for column in predicate.reads)
        self.held_of: Snapshot | None = None
        self.evaluations = 0
        # one for (nearly) every happening looks at the state, which is judged once for each snapshot
        self.is_about_change = predicate.happenings is None or len(predicate.happenings) > len(Happening) // 2

    def applies_to(self, happening: Happening) -> bool:
        return self.predicate.happenings is None or happening in self.predicate.happenings


class Judge:
    """The predicates that a target's caps make observable."""

    def __init__(self, predicates: Iterable[Predicate], caps: Caps) -> None:
        observable = [predicate for predicate in predicates if predicate.is_observable(caps)]
        needs = list(dict.fromkeys(column for predicate in observable for column in predicate.needs))
        self._needs = [(1 << number, attrgetter(column)) for number, column in enumerate(needs)]
        self.checks = [_Check(p, sum(1 << needs.index(column) for column in p.needs)) for p in observable]
        self._by_happening = {happening: [c for c in self.checks if c.applies_to(happening)] for happening in Happening}

    @property
    def evaluations(self) -> Counter[str]:
        """How often each predicate was evaluated, by identifier."""
        found: Counter[str] = Counter()
        for check in self.checks:
            found[check.predicate.identifier] += check.evaluations
        return found

    def judge(self, moment: Moment) -> Violation | None:
        """The first violation. Raises CheckerCrashed if a predicate raises.

        A predicate that declares what it reads is not asked again where nothing of that changed since it held: never at an
        audit, and only if it held of this moment's very `before`.
        """
        before, after = moment.before, moment.after
        is_still = before is after and not moment.is_audit
        changed = _ALL if moment.is_audit else _changed(before, after)
        missing = sum([bit for bit, look in self._needs if look(moment) is None])
        try:
            for check in self._by_happening[moment.happening]:
                if (is_still and check.is_about_change) or check.needs & missing:
                    continue
                if check.reads:
                    if check.held_of is before and not check.reads & changed:
                        check.held_of = after
                        continue
                    check.held_of = None
                check.evaluations += 1
                found = check.judge(moment)
                if found is not None:
                    return found
                check.held_of = after
        except Exception as error:
            name = check.predicate.identifier
            raise CheckerCrashed(f"predicate {name} must judge, but raised {type(error).__name__}: {error}") from error
        return None


def _changed(before: Snapshot, after: Snapshot) -> int:
    """The columns in which two snapshots differ, as bits; all of them across a generation."""
    if before is after:
        return 0
    if _frame_of(before) != _frame_of(after):
        return _ALL
    pairs: zip[tuple[int, Any, Any]] = zip(_COLUMN_BITS, _columns_of(before), _columns_of(after), strict=True)
    changed = sum([bit for bit, one, other in pairs if one is not other and one != other])
    if changed & _SEQUENCES and reading(before).tables != reading(after).tables:
        changed |= _BITS[TABLES]
    return changed
