"""Claims about replays of what only a whole history shows: it fails again, or nothing is claimed of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ci.doubles.failing import OPS, WORLD
from ci.replay import Replayed, lines, replay, to_json
from ci.replay_file import replay_of
from properties import checkers
from properties.checkers import CHECKERS, Checker, Finding
from properties.history import Record
from properties.op import Op, OpKind
from properties.suite import Failure
from properties.verdict import Verdict, Violation

DRAINED = (*OPS, Op(OpKind.DRAIN))


def replayed(identifier: str, ops: tuple[Op, ...] = DRAINED) -> Replayed:
    return replay(replay_of("a", Failure(Violation(identifier, "", "the history", "", ""), "7", WORLD, ops)))


def put_in(monkeypatch: pytest.MonkeyPatch, broken: Checker) -> None:
    """This checker instead of its like. The replay's own list of identifiers stays as it was."""
    changed = tuple(broken if item.identifier == broken.identifier else item for item in CHECKERS)
    monkeypatch.setattr(checkers, "CHECKERS", changed)


def rejecting(identifier: str) -> Checker:
    """Finds something, as it would on an engine that is broken in this way."""

    def check(_records: Sequence[Record]) -> Finding:
        return Finding(1, Violation(identifier, "of a history", "block 1", "this", "that"))

    return Checker(identifier, check)


@pytest.mark.parametrize("identifier", [checker.identifier for checker in CHECKERS])
def test_what_a_checker_found_still_fails_and_ends_the_story(monkeypatch: pytest.MonkeyPatch, identifier: str) -> None:
    put_in(monkeypatch, rejecting(identifier))
    found = replayed(identifier)
    assert (found.verdict, found.closing.strip()) == (Verdict.INVALID, f"still fails: {identifier}")
    assert found.scenes[-1].violation == found.violation
    assert "  block 1" in list(lines(found))
    assert to_json(found)["violation"]["invariant"] == identifier


def test_another_sentence_that_breaks_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    put_in(monkeypatch, rejecting("SC-5"))
    assert "now SC-5 of a history breaks" in replayed("SE-2").closing


@pytest.mark.parametrize("identifier", ["SC-5", "SC-11", "SC-14", "SK-3", "SE-2"])
def test_a_sentence_that_holds_of_the_history_no_longer_fails(identifier: str) -> None:
    found = replayed(identifier)
    assert (found.verdict, found.closing[:15]) == (Verdict.VALID, "no longer fails")


@pytest.mark.parametrize(
    ("identifier", "ops"),
    [
        pytest.param("SC-11", OPS, id="a drain that never came"),
        pytest.param("SK-3", OPS[:1], id="a plan that was never launched"),
    ],
)
def test_a_sentence_about_nothing_in_the_history_is_unknown(identifier: str, ops: tuple[Op, ...]) -> None:
    found = replayed(identifier, ops)
    assert found.verdict is Verdict.UNKNOWN
    assert f"{identifier} was not judged" in found.closing


def test_a_checker_that_crashes_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_records: Sequence[Record]) -> Finding:
        raise RuntimeError("no")

    put_in(monkeypatch, Checker("SC-5", crash))
    found = replayed("SE-2")
    assert found.verdict is Verdict.UNKNOWN
    assert "SC-5: the checker crashed: RuntimeError: no" in found.closing


@pytest.mark.parametrize("identifier", ["DI-3", "NU-1"])
def test_a_sentence_that_nobody_judged_here_proves_nothing(identifier: str) -> None:
    found = replayed(identifier)
    assert found.verdict is Verdict.UNKNOWN
    assert found.closing.startswith(f"{identifier} was not judged")
