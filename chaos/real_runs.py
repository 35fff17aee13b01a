"""What suites on real processes share: an end in bounded time, and a finding with its account.

Owns the words of a hang. Never what a run does, or which bound it has. Real processes are not bit-for-bit repeatable, so a
finding comes with the account of what happened, and there is nothing to shrink.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from chaos.watchdog import Hang, within
from properties.invariants.predicate import violation
from properties.suite import Failure
from properties.verdict import Violation


def hang_in(title: str, run: Callable[[], None], seconds: float, invariant: str) -> Violation | None:
    """Runs it; what breaks the invariant if it is not over by then (nothing hangs, whatever befalls the others)."""
    try:
        with within(seconds):
            run()
    except Hang as hang:
        found = f"not over after {seconds:g} s, at {hang.where}"
        return violation(invariant, title, found, "an end in bounded time, whatever befalls the others")
    return None


def failure_of(suite_id: str, found: Violation, title: str, facts: Iterable[str] = ()) -> Failure:
    """A finding with the account of what happened."""
    return Failure(replace(found, facts=(*found.facts, *facts)), f"{suite_id}: {title}")
