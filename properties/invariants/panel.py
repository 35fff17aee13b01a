"""Puts every observable predicate to a moment and counts the evaluations.

Owns which predicates a target can be judged by; stops at the first violation. Catches nothing: a predicate that crashes is a
fault of the harness, never of the target.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from engine_under_test.caps import Caps
from properties.invariants.predicate import Predicate
from properties.moment import Happening, Moment
from properties.verdict import Violation


class Panel:
    """``not_observable``: identifiers of which no predicate can be judged on this target."""

    def __init__(self, caps: Caps, predicates: Sequence[Predicate]) -> None:
        seen = [predicate for predicate in predicates if predicate.is_observable(caps)]
        observable = {predicate.identifier for predicate in seen}
        self.not_observable = tuple(dict.fromkeys(p.identifier for p in predicates if p.identifier not in observable))
        self._by_happening = {
            happening: tuple(p for p in seen if p.happenings is None or happening in p.happenings) for happening in Happening
        }

    def judge(self, moment: Moment, evaluations: Counter[str]) -> Violation | None:
        """The first violation, in the order of the predicates, or None. ``evaluations`` counts by identifier."""
        for predicate in self._by_happening[moment.happening]:
            if not predicate.has_evidence(moment):
                continue
            evaluations[predicate.identifier] += 1
            found = predicate.check(moment)
            if found is not None:
                return found
        return None
