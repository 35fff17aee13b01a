"""The hunt for whatever is wrong: the suites of profile quick, shortest first, seed after seed, until the first kill.

Owns what counts as a kill: a predicate of the catalogue, or a statistical test over a run. An exception of the target or of
a suite does not. It knows nothing of mutants: it would hunt any bug like this.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from ci.mutants.mutant import Fate
from properties.suite import CheckResult, Profile, Suite, SuiteContext
from properties.verdict import Verdict

_ROUNDS = 8  # each with another seed; the time limit of the process usually ends it earlier


def hunt(sources: Sequence[str], seed: int) -> dict[str, Any]:
    """The columns of a `MutantResult` that the hunt fills in."""
    crashes: list[str] = []
    for suite, stage_seed in stages(sources, seed):
        try:
            result = suite.run(SuiteContext(Profile.QUICK, stage_seed))
        except Exception as error:
            crashes.append(f"{suite.id}: {type(error).__name__}: {error}")
            continue
        if kill := kill_in(result):
            return kill
        crashes += [f"{suite.id}: {failure.violation.sentence}" for failure in result.failures]
    note = f"crashed, which proves nothing: {crashes[0]}" if crashes else "every suite of the hunt was valid"
    return {"fate": Fate.SURVIVED, "note": note}


def stages(sources: Sequence[str], seed: int) -> Iterator[tuple[Suite, int]]:
    """Shortest suites first; then everything again from the next seed."""
    suites: list[Suite] = []
    for source in sources:
        suites += [suite for suite in importlib.import_module(source).SUITES if Profile.QUICK in suite.profiles]
    suites.sort(key=lambda suite: suite.share_s)
    return ((suite, seed + number) for number, suite in itertools.product(range(_ROUNDS), suites))


def kill_in(result: CheckResult) -> dict[str, Any] | None:
    """The first thing in a result that counts as a kill."""
    for failure in result.failures:
        if is_of_the_catalogue(failure.violation.invariant):
            return {
                "fate": Fate.KILLED,
                "by": failure.violation.invariant,
                "by_name": failure.violation.name,
                "where": result.id,
                "ops": failure.ops_found or len(failure.ops),
                "shrunk": len(failure.ops),
            }
    for statistic in result.statistics:
        if statistic.verdict is Verdict.INVALID:
            return {"fate": Fate.KILLED, "by": statistic.id, "by_name": statistic.null, "where": result.id}
    return None


def is_of_the_catalogue(invariant: str) -> bool:
    """Whether the identifier is one of docs/invariants.md: two letters, a dash, a number."""
    letters, _, number = invariant.partition("-")
    return len(letters) == 2 and letters.isupper() and number.isdecimal()
