"""The hunt for whatever is wrong: stories one by one, whole suites of profile quick, longer stories, until the first kill; or
the suites that were asked for, and nothing else.

Owns what counts as a kill: a predicate of the catalogue, or a statistical test over a run. An exception of the target or of
a suite does not. It knows nothing of mutants: it would hunt any bug like this.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from ci.mutants.mutant import Fate
from ci.wording import count
from models.build import world_from
from models.shrink import shrink_world
from properties.invariants import ALL
from properties.op import Op, OpKind
from properties.suite import CheckResult, Profile, Suite, SuiteContext
from properties.verdict import Verdict, Violation

HUNT_S = 30.0  # of this process's processor time; nothing new is begun after it: it survived
_SHRINK_S = 12.0  # of a story
_SHRINK_IN_SUITE_S = 8.0
_OF_A_MODEL = ("transformer", "text")  # targets whose worlds `models.build` does not build


class Crashed(Exception):
    """A story or suite ended with an exception: neither a kill nor the end of the hunt."""


def hunt(
    stories: str,
    sources: Sequence[str],
    seed: int,
    only: Sequence[str] = (),
    now: Callable[[], float] = time.process_time,
) -> dict[str, Any]:
    """The columns of a `MutantResult` that the hunt fills in. ``stories``: a module with `sequence` and `longer`, or "" for
    none; ``sources``: modules with `SUITES`; ``only``: the identifiers of those that are run, if not all."""
    ends_s = now() + HUNT_S
    crash = ""
    for stage in _chosen(only, sources, seed) if only else _stages(stories, sources, seed):
        if now() >= ends_s:
            late = f"not killed within {HUNT_S:g} s of processor time"
            return {"fate": Fate.SURVIVED, "note": late + (f"; {crash}" if crash else "")}
        try:
            kill = stage()
        except Crashed as error:
            crash = crash or f"a crash, which proves nothing: {error}"
            continue
        if kill is not None:
            return kill
    return {"fate": Fate.SURVIVED, "note": crash or "every suite of the hunt was valid"}


def _stages(stories: str, sources: Sequence[str], seed: int) -> Iterator[Callable[[], dict[str, Any] | None]]:
    told = importlib.import_module(stories) if stories else None
    if told is not None:
        yield from map(_hearing, told.sequence(seed))
    for source in sources:
        suites = (suite for suite in _suites(source) if Profile.QUICK in suite.profiles and not suite.extras)
        for suite in sorted(suites, key=lambda suite: suite.share_s):
            yield partial(_run, suite, seed)
    if told is not None:
        yield from map(_hearing, told.longer(seed))


def _chosen(only: Sequence[str], sources: Sequence[str], seed: int) -> Iterator[Callable[[], dict[str, Any] | None]]:
    known = {suite.id: suite for source in sources for suite in _suites(source)}
    yield from [partial(_run, known[name], seed) for name in only]


def _suites(source: str) -> tuple[Suite, ...]:
    suites: tuple[Suite, ...] = importlib.import_module(source).SUITES
    return suites


def _hearing(story: Any) -> Callable[[], dict[str, Any] | None]:
    return partial(_hear, story)


def _hear(story: Any) -> dict[str, Any] | None:
    """Runs one story in a world of its own; a violation is shrunk."""
    try:
        world = world_from(story.spec)
        world.run(story.ops)
    except Exception as error:
        raise Crashed(f"{story.name}: {type(error).__name__}: {error}") from error
    violation = world.violation
    if violation is None:
        return None
    if not is_of_the_catalogue(violation.invariant):
        raise Crashed(f"{story.name}: {violation.sentence}")
    told = story.ops[: world.ops + world.noops]
    shrunk = shrink_world(story.spec, told, violation, max_seconds=_SHRINK_S)
    also = witnesses(shrunk.spec, shrunk.ops)
    return _killed(violation.invariant, violation.name, story.name, ops=len(told), shrunk=len(shrunk.ops), also=also)


def witnesses(spec: Mapping[str, Any], ops: Sequence[Op]) -> tuple[str, ...]:
    """The identifiers whose predicates find the story when nothing else is judged, a drain behind it included.

    A run ends at its first violation, so that the one that is named hides the others: this is how they are proven.
    """
    found = []
    for identifier in dict.fromkeys(predicate.identifier for predicate in ALL):
        alone = [predicate for predicate in ALL if predicate.identifier == identifier]
        try:
            world = world_from(spec, predicates=alone)
            world.run((*ops, Op(OpKind.DRAIN)))
        except Exception:  # a predicate that raises has found nothing
            continue
        if world.violation is not None and world.violation.invariant == identifier:
            found.append(identifier)
    return tuple(found)


def _run(suite: Suite, seed: int) -> dict[str, Any] | None:
    try:
        result = suite.run(SuiteContext(Profile.QUICK, seed, shrink_s=_SHRINK_IN_SUITE_S))
    except Exception as error:
        raise Crashed(f"{suite.id}: {type(error).__name__}: {error}") from error
    kill = kill_in(result)
    if kill is None and result.failures:
        raise Crashed(f"{suite.id}: {result.failures[0].violation.sentence}")
    if kill is None and not result.examples:
        raise Crashed(f"{suite.id}: it did nothing: {result.note}")
    return kill


def kill_in(result: CheckResult) -> dict[str, Any] | None:
    """The first thing in a result that counts as a kill."""
    for failure in result.failures:
        violation = failure.violation
        if is_of_the_catalogue(violation.invariant):
            if not failure.ops:
                return _killed(violation.invariant, violation.name, result.id, note=_measured(violation, result))
            found = failure.ops_found or len(failure.ops)
            is_of_a_model = failure.world.get("target") in _OF_A_MODEL
            also = witnesses(failure.world, failure.ops) if "config" in failure.world and not is_of_a_model else ()
            note = size_in_words(failure.ops) if is_of_a_model else ""
            name = violation.name
            return _killed(violation.invariant, name, result.id, ops=found, shrunk=len(failure.ops), also=also, note=note)
    for statistic in result.statistics:
        if statistic.verdict is Verdict.INVALID:
            return _killed(statistic.id, statistic.null, result.id, note=f"{statistic.statistic}; {statistic.estimated}")
    return None


def _measured(violation: Violation, result: CheckResult) -> str:
    """What was found over a whole run, and the first estimate of a test that rejects, where there is one."""
    said = f"{violation.subject}: {violation.found}"
    rejects = (each for each in result.statistics if each.verdict is Verdict.INVALID and each.estimate is not None)
    first = next(rejects, None)
    return said if first is None or first.estimated in said else f"{said}; {first.id} by drawing: {first.estimated}"


def size_in_words(ops: Sequence[Op]) -> str:
    """ "1 request, 9 tokens": prompts, and as many tokens of each choice as may come."""
    requests = [op.request for op in ops if op.request is not None]
    tokens = sum(len(each.prompt) + each.sampling.n * each.sampling.max_tokens for each in requests)
    return f"{count(len(requests), 'request')}, {count(tokens, 'token')}"


def _killed(
    by: str,
    by_name: str,
    where: str,
    ops: int | None = None,
    shrunk: int | None = None,
    also: Sequence[str] = (),
    note: str = "",
) -> dict[str, Any]:
    columns = {"by": by, "by_name": by_name, "where": where, "ops": ops, "shrunk": shrunk, "also": also, "note": note}
    return {"fate": Fate.KILLED, **columns}


def is_of_the_catalogue(invariant: str) -> bool:
    """Whether the identifier is one of the invariant catalogue: two letters, a dash, a number."""
    letters, _, number = invariant.partition("-")
    return len(letters) == 2 and letters.isupper() and number.isdecimal()
