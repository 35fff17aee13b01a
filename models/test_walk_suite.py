"""The walk as a suite: what it counts, and what it hands over when a target is broken."""

from __future__ import annotations

import pytest

from engine_under_test.adapters.ours import AssayTarget
from engine_under_test.types import Output
from models import walk_suite
from models.shrink import run_once
from models.walk import small_shape
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> SuiteContext:
    """One walk of 120 ops in each of two worlds."""
    monkeypatch.setattr(walk_suite, "SHAPES", {"small": small_shape(), "deep": small_shape(1)})
    monkeypatch.setitem(walk_suite._WORK, Profile.QUICK, (1, 120))
    return SuiteContext(Profile.QUICK, 9)


def test_a_sound_target_is_valid_and_its_work_is_counted(short: SuiteContext) -> None:
    result = walk_suite.run_walks(short)
    assert result.verdict is Verdict.VALID
    assert result.examples == 2
    assert result.ops > 200
    assert sorted(result.digests) == ["deep#0x2328", "small#0x2328"]
    assert result.invariants["KV-4"] > 0
    assert result.invariants["SC-14"] > 0
    assert result.reached["same prompt twice"] > 0


def test_the_same_seed_gives_the_same_digests(short: SuiteContext) -> None:
    assert walk_suite.run_walks(short).digests == walk_suite.run_walks(short).digests


def test_a_broken_target_is_invalid_with_the_shortest_story(short: SuiteContext, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = AssayTarget.take_outputs

    def twice(target: AssayTarget) -> tuple[Output, ...]:
        return honest(target) * 2

    monkeypatch.setattr(AssayTarget, "take_outputs", twice)
    result = walk_suite.run_walks(short)
    assert result.verdict is Verdict.INVALID
    failure = result.failures[0]
    assert failure.violation.invariant == "SC-5"
    assert len(failure.ops) <= 3 < failure.ops_found
    again = run_once(failure.world, failure.ops)
    assert again == failure.violation
