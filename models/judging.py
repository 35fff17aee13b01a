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
from properties.invariants.reading import OF_QUEUE, OF_SEQUENCES, OF_TABLES, reading
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


_Situation = tuple[str, bool, int, int]  # happening, nothing moved, columns that changed, columns that are missing


class CheckerCrashed(AssayError):
    """A predicate raised instead of judging: no verdict on the target, hence no violation of its."""


class _Check:
    """A predicate with the count of its evaluations. ``needs`` and ``reads``: its columns as bits."""

    __slots__ = ("evaluations", "is_about_change", "judge", "needs", "predicate", "reads")

    def __init__(self, predicate: Predicate, needs: int) -> None:
        self.predicate = predicate
        self.judge = predicate.check
        self.needs = needs
        self.reads = sum(_BITS[column] for column in predicate.reads)
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
        self._chosen: dict[_Situation, tuple[_Check, ...]] = {}
        self._whole = frozenset(h for h in Happening if all(check.applies_to(h) for check in self.checks if check.reads))
        self._held_of: Snapshot | None = None  # the last snapshot of which every predicate that declares its columns held

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
        before, after, happening = moment.before, moment.after, moment.happening
        is_known = before is self._held_of and not moment.is_audit
        changed = _changed(before, after) if is_known else _ALL
        missing = sum([bit for bit, look in self._needs if look(moment) is None])
        situation = (happening.value, before is after and not moment.is_audit, changed, missing)
        checks = self._chosen.get(situation)
        if checks is None:
            checks = self._chosen[situation] = self._choose(happening, situation)
        self._held_of = None
        try:
            for check in checks:
                check.evaluations += 1
                found = check.judge(moment)
                if found is not None:
                    return found
        except Exception as error:
            name = check.predicate.identifier
            raise CheckerCrashed(f"predicate {name} must judge, but raised {type(error).__name__}: {error}") from error
        if happening in self._whole and (is_known or before is not after or moment.is_audit):
            self._held_of = after
        return None

    def _choose(self, happening: Happening, situation: _Situation) -> tuple[_Check, ...]:
        """Those to ask, in their order: they apply, have what they look at, and may find what they did not find before."""
        _, is_still, changed, missing = situation
        return tuple(
            check
            for check in self.checks
            if check.applies_to(happening)
            and not check.needs & missing
            and not (is_still and check.is_about_change)
            and (not check.reads or check.reads & changed)
        )


def _changed(before: Snapshot, after: Snapshot) -> int:
    """The columns in which two snapshots differ, as bits; all of them across a generation."""
    if before is after:
        return 0
    if _frame_of(before) != _frame_of(after):
        return _ALL
    pairs: zip[tuple[int, Any, Any]] = zip(_COLUMN_BITS, _columns_of(before), _columns_of(after), strict=True)
    changed = sum([bit for bit, one, other in pairs if one is not other and one != other])
    earlier, now = reading(before), reading(after)
    if not changed & _SEQUENCES:
        now.take_over(earlier, OF_SEQUENCES)
    elif earlier.tables == now.tables:
        now.take_over(earlier, OF_TABLES)
    else:
        changed |= _BITS[TABLES]
    if not changed & _BITS["free"]:
        now.take_over(earlier, OF_QUEUE)
    return changed
