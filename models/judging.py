"""Every predicate before every moment: which apply, how often each was evaluated, and the first violation.

Owns the choice of predicates for a happening and their counts. Never makes a moment and never looks at a target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import repeat
from operator import attrgetter, is_
from typing import Final

from engine_under_test.caps import Caps
from engine_under_test.errors import AssayError
from engine_under_test.types import Snapshot
from properties.invariants.predicate import Predicate
from properties.invariants.view import BITS, EVERY_COLUMN, bits_of
from properties.moment import Happening, Moment
from properties.verdict import Violation

_ALWAYS_NEEDED: Final = ("planned", "result")  # two columns at least, so that `attrgetter` gives a tuple
_NONE: Final = repeat(None)
_MOST_WAITING: Final = 64  # moments
_SEEN_SINCE: Final = frozenset({"races", "misdeclared"})  # columns that say what was seen since the last moment


# happening, nothing moved, columns that changed, which of the columns that predicates need are None, evidence that there is
_Situation = tuple[str, bool, int, tuple[bool, ...], int]


class CheckerCrashed(AssayError):
    """A predicate raised instead of judging: no verdict on the target, hence no violation of its."""


class _Check:
    """A predicate with what it reads and the evidence that it needs, as bits, and the numbers of the columns that it needs."""

    __slots__ = ("can_wait", "evidence", "is_about_change", "judge", "needs", "predicate", "reads")

    def __init__(self, predicate: Predicate, needs: tuple[int, ...]) -> None:
        self.predicate = predicate
        self.judge = predicate.check
        self.can_wait = predicate.can_wait
        self.needs = needs
        self.evidence = bits_of(predicate.only_with)
        self.reads = sum(BITS[column] for column in predicate.reads)
        # one for (nearly) every happening looks at the state, which is judged once for each snapshot
        is_general = predicate.happenings is None or len(predicate.happenings) > len(Happening) // 2
        self.is_about_change = is_general and not _SEEN_SINCE.intersection(predicate.needs)

    def applies_to(self, happening: Happening) -> bool:
        return self.predicate.happenings is None or happening in self.predicate.happenings


class _Choice:
    """The predicates to ask in one situation, in their order, and how often all of them were: `judges` at once, `later` when
    many moments wait for it."""

    __slots__ = ("checks", "judges", "later", "times")

    def __init__(self, checks: tuple[_Check, ...], may_wait: bool) -> None:
        self.checks = checks
        self.judges = tuple(check.judge for check in checks if not (check.can_wait and may_wait))
        self.later = tuple(check.judge for check in checks if check.can_wait and may_wait)
        self.times = 0

    def up_to(self, judge: Callable[[Moment], Violation | None]) -> Iterable[_Check]:
        """Those up to and with one."""
        return self.checks[: [check.judge for check in self.checks].index(judge) + 1]


class Judge:
    """The predicates that a target's caps make observable.

    ``may_wait``: those that can wait are asked of many moments at once: by `settle`, or as soon as another finds something. The
    first violation of a run is the same, found some moments later.
    """

    def __init__(self, predicates: Iterable[Predicate], caps: Caps, may_wait: bool = False) -> None:
        self._may_wait = may_wait
        self._waiting: list[tuple[Moment, _Choice]] = []
        observable = [predicate for predicate in predicates if predicate.is_observable(caps)]
        needs = list(dict.fromkeys([*_ALWAYS_NEEDED, *(column for predicate in observable for column in predicate.needs)]))
        self._needed = attrgetter(*needs)
        self.checks = [_Check(p, tuple(needs.index(column) for column in p.needs)) for p in observable]
        self._chosen: dict[_Situation, _Choice] = {}
        self._applicable: dict[tuple[str, bool, tuple[bool, ...]], list[_Check]] = {}  # those of a situation but for its bits
        self._last: Counter[str] = Counter()  # asked at the moment that ended a run
        self._whole = frozenset(h.value for h in Happening if all(check.applies_to(h) for check in self.checks if check.reads))
        self._held_of: Snapshot | None = None  # the last snapshot of which every predicate that declares its columns held

    @property
    def evaluations(self) -> Counter[str]:
        """How often each predicate was evaluated, by identifier."""
        found = self._last.copy()
        for choice in self._chosen.values():
            for check in choice.checks:
                found[check.predicate.identifier] += choice.times
        return +found

    def judge(self, moment: Moment) -> Violation | None:
        """The first violation. Raises CheckerCrashed if a predicate raises.

        A predicate that declares what it reads is not asked again where nothing of that changed since it held: never at an
        audit, and only if it held of this moment's very `before`.
        """
        before, after, is_audit, name = moment.before, moment.after, moment.is_audit, moment.happening._value_
        is_known = before is self._held_of and not is_audit
        try:
            view = moment.view
            evidence = view.evidence
        except Exception as error:
            what = f"raised {type(error).__name__}: {error}"
            raise CheckerCrashed(f"what a moment holds must be seen before it is judged, but looking {what}") from error
        changed = view.changed if is_known else EVERY_COLUMN
        missing = tuple(map(is_, self._needed(moment), _NONE))
        situation = (name, before is after and not is_audit, changed, missing, evidence)
        choice = self._chosen.get(situation)
        if choice is None:
            choice = self._chosen[situation] = _Choice(self._choose(moment.happening, situation), self._may_wait)
        self._held_of = None
        try:
            for judge in choice.judges:
                found = judge(moment)
                if found is not None:
                    break
            else:
                found = None
        except Exception as error:
            if (earlier := self.settle()) is not None:
                return earlier
            raise self._crashed(choice, moment, error) from error
        if found is not None:
            return self.settle() or self._first_of(choice, moment, judge, found)
        choice.times += 1
        if choice.later:
            self._waiting.append((moment, choice))
        if name in self._whole and (is_known or before is not after or is_audit):
            self._held_of = after
        return None

    @property
    def is_full(self) -> bool:
        return len(self._waiting) >= _MOST_WAITING

    def settle(self) -> Violation | None:
        """Asks those that waited, in the order of their moments."""
        waiting, self._waiting = self._waiting, []
        for moment, choice in waiting:
            try:
                for judge in choice.later:
                    if (found := judge(moment)) is not None:
                        choice.times -= 1
                        self._last.update(check.predicate.identifier for check in choice.up_to(judge))
                        return found
            except Exception as error:
                raise self._crashed(choice, moment, error) from error
        return None

    def _first_of(
        self, choice: _Choice, moment: Moment, asked: Callable[[Moment], Violation | None], found: Violation
    ) -> Violation:
        """What one that was asked has found, or what one in front of it finds that would have waited. Counts them. Nobody is
        asked twice: who keeps a count of what it saw would not find it again."""
        for check in choice.checks:
            self._last[check.predicate.identifier] += 1
            if check.judge is asked:
                break
            if check.judge in choice.later and (earlier := check.judge(moment)) is not None:
                return earlier
        return found

    def _crashed(self, choice: _Choice, moment: Moment, error: Exception) -> CheckerCrashed:
        """Says which of them raised."""
        for check in choice.checks:
            self._last[check.predicate.identifier] += 1
            try:
                check.judge(moment)
            except Exception:
                break
        name = check.predicate.identifier
        return CheckerCrashed(f"predicate {name} must judge, but raised {type(error).__name__}: {error}")

    def _choose(self, happening: Happening, situation: _Situation) -> tuple[_Check, ...]:
        """Those to ask, in their order: they apply, have what they look at, and may find what they did not find before."""
        name, is_still, changed, missing, evidence = situation
        applicable = self._applicable.get((name, is_still, missing))
        if applicable is None:
            applicable = self._applicable[name, is_still, missing] = [
                check
                for check in self.checks
                if check.applies_to(happening)
                and not any(missing[number] for number in check.needs)
                and not (is_still and check.is_about_change)
            ]
        lacking = ~evidence
        return tuple([c for c in applicable if not c.evidence & lacking and (not c.reads or c.reads & changed)])
