"""`assay props`: the suites, predicates and tests that match a pattern, in profile quick. A developer's seconds.

Owns the matching. The suites run here, one after another, without workers: starting those would take longer than the work.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from ci.atomic import write_all
from ci.ending import INTERRUPTED
from ci.gate import DEFAULT_SOURCES, collect
from ci.jobs import Job, Role, read_report, run_suite
from ci.judging import judge
from ci.outcome import Check
from ci.replay_file import replay_of, to_text
from ci.report.verdict_json import failure_to_json
from ci.report.write import shown_path
from ci.storm_outcome import Ending
from ci.tree import ROOT
from ci.wording import duration, work
from engine_under_test.errors import BadInput
from properties.suite import Profile, Suite
from properties.verdict import Verdict, merge

OUR_ENGINE = "assay"
_TEST_FOLDERS = ("properties", "models")
_NO_TESTS = 5  # pytest's exit code when nothing was selected


@dataclass(frozen=True, slots=True)
class PropsOutcome:
    """What ran. ``tests`` is pytest's closing line, empty if no test matched."""

    verdict: Verdict
    predicates: tuple[str, ...]
    checks: tuple[Check, ...]
    tests: str
    ended_by: str = ""  # Ctrl-C or SIGTERM, in words: the checks are those before it

    @property
    def exit_code(self) -> int:
        return INTERRUPTED if self.ended_by else self.verdict.exit_code

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "verdict": self.verdict.value,
            "interrupted": bool(self.ended_by),
            "predicates": list(self.predicates),
            "checks": [
                {"id": check.id, "verdict": check.verdict.value, "reasons": list(check.reasons)} for check in self.checks
            ],
            "failures": [failure_to_json(check, failure) for check in self.checks for failure in check.failures],
            "tests": self.tests,
        }


def sources_of(engine: str) -> tuple[Sequence[str], Callable[[Suite], bool]]:
    """Where the suites of an engine stand, and which of those there are its own."""
    if engine == OUR_ENGINE:
        return DEFAULT_SOURCES, lambda _suite: True
    from models.other_suites import suites_of

    own = {suite.id for suite in suites_of(engine)}
    return ("models.other_suites",), lambda suite: suite.id in own


def run_props(
    pattern: str, seed: int, console: Console, sources: Sequence[str] | None = None, engine: str = OUR_ENGINE
) -> PropsOutcome:
    """Runs what matches; nothing that matches is a BadInput that says what there is. Tests are of our engine alone."""
    known, is_own = sources_of(engine)
    collection = collect(known if sources is None else sources, Profile.QUICK)
    if collection.broken:
        name, text = next(iter(collection.broken.items()))
        raise BadInput(f"suites must be there and bear names of their own, but {name}: {text.splitlines()[0]}; repair that")
    predicates = tuple(name for name in predicate_names() if is_match(pattern, name))
    offered = [(source, suite) for source, suite in collection.suites if is_own(suite)]
    suites = [(source, suite) for source, suite in offered if is_match(pattern, suite.id, suite.title)]
    if not suites and predicates:
        suites = offered  # a predicate is judged in every suite
    for name in predicates if pattern else ():
        console.print(name, markup=False, soft_wrap=True)
    checks: list[Check] = []
    verdicts: list[Verdict] = []
    tests = ""
    with Ending() as ending:
        for source, suite in suites:
            checks.append(_run(suite, source, seed, console))
            verdicts.append(checks[-1].verdict)
        tests = _run_tests(pattern, console, verdicts) if engine == OUR_ENGINE else ""
    if ending.words:
        told = f"{ending.words}: {len(checks)} of {len(suites)} suites had ended, the tests had not"
        console.print(f"UNKNOWN  {told}", markup=False, soft_wrap=True)
        return PropsOutcome(merge([*verdicts, Verdict.UNKNOWN]), predicates, tuple(checks), tests, ending.words)
    if not verdicts:
        names = ", ".join(suite.id for _source, suite in offered)
        raise BadInput(f"a pattern must match a suite, a predicate or a test, found {pattern!r}; suites are: {names or 'none'}")
    return PropsOutcome(merge(verdicts), predicates, tuple(checks), tests)


def predicate_names() -> Iterable[str]:
    """ "KV-4 freed once" for each predicate."""
    from properties.invariants import ALL

    return (f"{predicate.identifier} {predicate.name}" for predicate in ALL)


def is_match(pattern: str, *texts: str) -> bool:
    """Case, blanks, dashes and underscores do not count; an identifier such as KV-1 does not match KV-10."""
    wanted = _flat(pattern)
    return any(
        re.search(rf"{re.escape(wanted)}(?!\d)" if wanted[-1:].isdigit() else re.escape(wanted), _flat(text)) for text in texts
    )


def _flat(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.lower())


def _run(suite: Suite, source: str, seed: int, console: Console) -> Check:
    """One suite, here. Its failures become replay files."""
    job = Job(0, Role.SUITE, suite.id, suite.title, source, Profile.QUICK, seed)
    console.print(f"{suite.title} …", markup=False, soft_wrap=True)
    with tempfile.TemporaryDirectory(prefix="assay-props-") as folder:
        began = time.monotonic()
        run_suite(job, Path(folder))
        check = judge(job, read_report(job, Path(folder)))
        took = time.monotonic() - began
    text = work(check.result) if check.result else check.reasons[0]
    console.print(f"{check.verdict.value:<8} {suite.title}  {text}  {duration(took)}", markup=False, soft_wrap=True)
    replays = {
        f"{failure.violation.invariant}-{suite.id}-{place}.json": to_text(replay_of(suite.id, failure))
        for place, failure in enumerate(check.failures)
        if failure.ops
    }
    if replays:
        write_all(ROOT / "reports" / "props", replays)
    for failure in check.failures:
        console.print(f"  {failure.violation.invariant} {failure.violation.sentence}", markup=False, soft_wrap=True)
    for name in replays:
        console.print(f"  assay replay {shown_path(ROOT / 'reports' / 'props' / name)}", markup=False, soft_wrap=True)
    for reason in () if check.failures else check.reasons:
        console.print(f"  {reason.splitlines()[0]}", markup=False, soft_wrap=True)
    return check


def _run_tests(pattern: str, console: Console, verdicts: list[Verdict]) -> str:
    """The tests of properties/ and models/ whose names match; adds their verdict. Returns pytest's closing line."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", *_TEST_FOLDERS]
    if pattern:
        words = {pattern.lower(), re.sub(r"[\s-]+", "_", pattern.lower()), _flat(pattern)}
        command += ["-k", " or ".join(sorted(word for word in words if re.fullmatch(r"[\w.+-]+", word))) or "nothing"]
    console.print(f"tests in {' and '.join(_TEST_FOLDERS)} …", markup=False, soft_wrap=True)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == _NO_TESTS:
        console.print("no test matches", markup=False, soft_wrap=True)
        return ""
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    if done.returncode != 0:
        console.print("\n".join(lines[:-1]), markup=False, soft_wrap=True)
    console.print(lines[-1], markup=False, soft_wrap=True)
    verdicts.append({0: Verdict.VALID, 1: Verdict.INVALID}.get(done.returncode, Verdict.UNKNOWN))
    return lines[-1]
