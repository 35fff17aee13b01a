"""Claims about verdicts: what a suite makes of its counts, and that the directed stories reach what they were made for."""

from __future__ import annotations

from itertools import islice

import pytest

from models.machines.directed import run_stories
from models.machines.driving import Driver
from models.machines.tally import Tally
from models.reach import Reach, floor
from models.refusals import num_blocks_taken, refusal_stories
from models.scenarios import (
    STEP,
    Scenario,
    add,
    preempted,
    refused_block,
    spec,
    trap,
    without_drains,
)
from models.stories import odd_hash_stories, stories
from models.suites import DIRECTED_FLOORS, SUITES, result_of, story_suite
from properties.op import Op, OpKind
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict, Violation

QUICK = SuiteContext(Profile.QUICK, 1)


def tally_of(reached: dict[Reach, int], ops: int = 10, noops: int = 0) -> Tally:
    tally = Tally()
    tally.examples, tally.ops, tally.noops = 1, ops, noops
    tally.reached.update({name.value: count for name, count in reached.items()})
    return tally


def test_a_suite_that_reached_its_floors_is_valid() -> None:
    result = result_of("x", tally_of({Reach.COPIED: floor(Profile.QUICK)}), QUICK, [Reach.COPIED])
    assert (result.verdict, result.missed) == (Verdict.VALID, ())


def test_a_floor_missed_by_one_is_unknown_and_named() -> None:
    result = result_of("x", tally_of({Reach.COPIED: floor(Profile.QUICK) - 1}), QUICK, [Reach.COPIED])
    assert result.verdict is Verdict.UNKNOWN
    assert result.missed == ("copy on write: 4 of 5",)


def test_two_counts_that_disagree_are_unknown() -> None:
    tally = tally_of({})
    tally.missed.append("restart: 1 by the events, 2 by the moments")
    assert result_of("x", tally, QUICK, []).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(("noops", "verdict"), [(10, Verdict.VALID), (11, Verdict.UNKNOWN)], ids=["half", "more than half"])
def test_at_most_half_of_the_operations_may_be_noops(noops: int, verdict: Verdict) -> None:
    assert result_of("x", tally_of({}, 10, noops), QUICK, []).verdict is verdict


def test_a_failure_is_shrunk_and_invalid_whatever_was_missed() -> None:
    tally = tally_of({})
    unlisted = Op(OpKind.ADD, request=None)
    broken = Violation("KV-0", "no such invariant", "x", "a", "b")
    tally.failure = (spec(4, 2), (unlisted, STEP), broken)
    result = result_of("x", tally, QUICK, [Reach.COPIED])
    assert (result.verdict, result.missed) == (Verdict.INVALID, ())
    assert result.failures[0].violation == broken
    assert result.failures[0].ops_found == 2


def test_a_story_that_misses_its_aim_makes_its_suite_unknown() -> None:
    astray = Scenario("nothing happens", spec(4, 2), (add("a", 3), STEP), (Reach.COPIED,))
    suite = story_suite("x", "x", lambda _copies: iter([astray]), (), 1.0)
    result = suite.run(QUICK)
    assert result.verdict is Verdict.UNKNOWN
    assert result.missed == ("nothing happens: copy on write",)


def test_every_directed_story_reaches_its_aim_and_all_of_them_the_floors() -> None:
    told = tuple(stories(1))
    assert len({story.name for story in told}) == len(told) > 200
    tally, astray = run_stories(told)
    result = result_of("directed", tally, QUICK, DIRECTED_FLOORS, astray=astray)
    assert (result.verdict, result.missed) == (Verdict.VALID, ())


@pytest.mark.parametrize("hasher", ["two_bit", "constant"])
def test_a_hash_that_collides_costs_nothing_but_hits(hasher: str) -> None:
    tally, astray = run_stories(odd_hash_stories(hasher, 1))
    assert tally.failure is None
    assert astray == ()


@pytest.mark.parametrize("num_free", [1, 2, 3])
def test_a_free_queue_of_blocks_about_to_be_hit_admits_nobody_too_early(num_free: int) -> None:
    driver = Driver(trap(3, num_free, num_free).spec)
    driver.run(trap(3, num_free, num_free).ops)
    assert driver.violation is None
    assert driver.reached()[0][Reach.FREE_NEED.value] >= 1


def test_every_single_block_of_a_small_world_is_refused_once() -> None:
    base = without_drains(preempted(2, 2, 5))
    num_blocks = num_blocks_taken(base)
    told = [story for story in refusal_stories(1) if story.name.startswith(base.name)]
    assert [story.ops[0].k for story in told] == list(range(1, num_blocks + 1))
    tally, astray = run_stories(told)
    assert (tally.failure, astray) == (None, ())
    assert tally.reached[Reach.REFUSED_BLOCK.value] == num_blocks


def test_a_block_that_is_never_taken_is_never_refused() -> None:
    base = without_drains(preempted(2, 2, 5))
    _, astray = run_stories([refused_block(base, num_blocks_taken(base) + 1)])
    assert len(astray) == 1


def test_suites_have_identifiers_of_their_own_and_say_what_they_take() -> None:
    assert len({suite.id for suite in SUITES}) == len(SUITES)
    assert all(suite.share_s > 0 and suite.title for suite in SUITES)
    assert next(islice(stories(1), 1)).name == next(islice(stories(1), 1)).name
