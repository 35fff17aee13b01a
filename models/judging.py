"""Every predicate before every moment: which apply, how often each was evaluated, and the first violation.

Owns the choice of predicates for a happening and their counts. Never makes a moment and never looks at a target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from engine_under_test.errors import AssayError
from engine_under_test.types import Caps
from properties.invariants.predicate import Predicate
from properties.moment import Happening, Moment
from properties.verdict import Violation


class CheckerCrashed(AssayError):
    """A predicate raised instead of judging: no verdict on the target, hence no violation of its."""


class _Check:
    """A predicate with the count of its evaluations."""

    __slots__ = ("evaluations", "has_evidence", "is_about_change", "judge", "looks", "predicate")

    def __init__(self, predicate: Predicate) -> None:
        self.predicate = predicate
        self.judge = predicate.check
        self.looks = bool(predicate.needs)
        self.has_evidence = predicate.has_evidence
        self.evaluations = 0
        # one for (nearly) every happening looks at the state, which is judged once for each snapshot
        self.is_about_change = predicate.happenings is None or len(predicate.happenings) > len(Happening) // 2

    def applies_to(self, happening: Happening) -> bool:
        return self.predicate.happenings is None or happening in self.predicate.happenings


class Judge:
    """The predicates that a target's caps make observable."""

    def __init__(self, predicates: Iterable[Predicate], caps: Caps) -> None:
        self.checks = [_Check(predicate) for predicate in predicates if predicate.is_observable(caps)]
        self._by_happening = {happening: [c for c in self.checks if c.applies_to(happening)] for happening in Happening}

    @property
    def evaluations(self) -> Counter[str]:
        """How often each predicate was evaluated, by identifier."""
        found: Counter[str] = Counter()
        for check in self.checks:
            found[check.predicate.identifier] += check.evaluations
        return found

    def judge(self, moment: Moment) -> Violation | None:
        """The first violation. Raises CheckerCrashed if a predicate raises."""
        is_still = moment.before is moment.after and not moment.is_audit
        try:
            for check in self._by_happening[moment.happening]:
                if is_still and check.is_about_change:
                    continue
                if check.looks and not check.has_evidence(moment):
                    continue
                check.evaluations += 1
                found = check.judge(moment)
                if found is not None:
                    return found
        except Exception as error:
            name = check.predicate.identifier
            raise CheckerCrashed(f"predicate {name} must judge, but raised {type(error).__name__}: {error}") from error
        return None
