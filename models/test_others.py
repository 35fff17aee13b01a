"""An engine written by others behind the portable verbs: what it needs to be driven, judged and replayed like ours.

Whether it is right is not a test's business: that is `assay props --engine transformers`.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, cast

import pytest

from engine_under_test.errors import BadInput
from engine_under_test.types import PlannedStep
from models.build import target_from, world_from
from models.machines.driving import Driver
from models.other_suites import family_suite, suites_of, way_of
from models.others import TRANSFORMERS, Family
from models.reach import Reach
from models.scenarios import DRAIN, PLAN, STEP, Scenario, abort, add, land
from models.walk import walk_ops
from properties.op import Op
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict, Violation

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="the extra `reference` is not installed"
)
RESET, SHARING, SWAP, CHOICES, OVERLAP, OUTGROWN = TRANSFORMERS


def driven(spec: dict[str, Any], *ops: Op) -> Driver:
    driver = Driver(spec)
    driver.run(ops)
    driver.judge_history()
    return driver


@needs_transformers
@pytest.mark.parametrize("family", [RESET, SHARING, SWAP], ids=lambda family: family.title)
def test_it_passes_what_is_judged_of_it(family: Family) -> None:
    shape = family.walk()
    world = world_from(shape.spec())
    world.run(islice(walk_ops(3, shape), 120))
    assert world.violation is None
    assert world.checked_steps > 50
    assert {"KV-1", "KV-2", "KV-4", "KV-5", "KV-12", "SC-1", "SC-3", "SC-10", "SE-1", "SE-2"} <= world.evaluations.keys()
    assert "SC-8" not in world.evaluations  # it states no order


@needs_transformers
def test_with_overlap_tokens_in_flight_are_taken_over() -> None:
    driver = Driver(OVERLAP.spec(8, 4))
    pending: list[int] = []
    plan = driver.world.target.plan

    def watched() -> PlannedStep | None:
        step = plan()
        pending.extend(step.plan.num_pending if step is not None else ())
        return step

    cast("Any", driver.world.target).plan = watched
    driver.run((add("a", 6, 6), add("b", 3, 4), PLAN, PLAN, *[land(), PLAN] * 8, DRAIN))
    assert driver.violation is None
    assert 1 in pending


@needs_transformers
def test_what_it_swaps_out_comes_back_with_its_content() -> None:
    story = next(story for story in SWAP.stories() if story.name == "put out and resumed")
    driver = driven(story.spec, *story.ops)
    assert driver.violation is None
    assert driver.witness.counts[Reach.RESUMED_SWAPPED] > 0
    assert driver.snapshot.host_blocks == ()


@needs_transformers
def test_a_copy_that_goes_astray_is_found() -> None:
    """What the device is told to copy is what transformers copied, so that a wrong one shows in the cells that are read."""
    story = next(story for story in SWAP.stories() if story.name == "put out and resumed")
    driver = Driver(story.spec)
    manager = cast("Any", driver.world.target)._processor.offloading_manager
    copy_out = manager._offload_to_cpu

    def copy_out_backwards(victims: Any, tables: dict[str, dict[str, list[int]]]) -> Any:
        return copy_out(victims, {name: {kind: table[::-1] for kind, table in own.items()} for name, own in tables.items()})

    manager._offload_to_cpu = copy_out_backwards
    driver.run(story.ops)
    assert driver.violation is not None
    assert driver.violation.invariant == "SE-1"


@needs_transformers
def test_a_cancelled_choice_holds_its_blocks_until_its_batch_has_ended() -> None:
    driver = Driver(RESET.spec(4, 4))
    driver.run((add("a", 6, 3), PLAN, abort("a")))
    assert driver.snapshot.running == ()
    assert len(driver.snapshot.reservations[1]) == 2
    driver.run((land(), DRAIN))
    assert driver.violation is None
    assert len(driver.snapshot.free) == 4


@needs_transformers
def test_an_identifier_may_come_back_while_its_cancelled_life_is_in_flight() -> None:
    driver = driven(RESET.spec(4, 4), add("a", 6, 3), PLAN, abort("a"), add("a", 5, 2), land(), STEP, DRAIN)
    assert driver.violation is None


@needs_transformers
def test_forked_choices_are_planned_under_their_request() -> None:
    driver = Driver(CHOICES.spec(6, 4))
    seen: set[int] = set()
    plan = driver.world.target.plan

    def watched() -> PlannedStep | None:
        step = plan()
        seen.update(step.plan.choices if step is not None else ())
        return step

    cast("Any", driver.world.target).plan = watched  # a look at what passes by
    driver.run((add("a", 6, 3, n=3), DRAIN))
    assert driver.violation is None
    assert seen == {0, 1, 2}


@needs_transformers
@pytest.mark.parametrize(
    ("world", "complaint"),
    [
        ({"config": {"num_blocks": 4, "block_size": 2}}, "at least 4 tokens"),
        ({"options": {"scheduler": "lifo"}}, "scheduler is one of"),
        ({"options": {"swap": 3}}, "found \\['swap'\\]"),
        ({"options": {"safety_margin": 2.0}}, "between 0 and 1"),
        ({"config": {"num_blocks": 4, "block_size": 8}, "options": {"sector_blocks": 8}}, "choose fewer blocks"),
    ],
    ids=[
        "a page too small",
        "a scheduler that it has not",
        "an option that it has not",
        "a share above 1",
        "a sector too fine",
    ],
)
def test_a_world_that_it_has_not_is_refused_in_a_sentence(world: dict[str, Any], complaint: str) -> None:
    config = {"num_blocks": 4, "block_size": 4, "max_num_seqs": 2, "max_tokens_per_step": 8}
    with pytest.raises(BadInput, match=complaint):
        target_from({"target": "transformers", "config": config} | world)


def test_options_are_for_others_engines_only() -> None:
    with pytest.raises(BadInput, match="options are for"):
        target_from({"target": "assay", "options": {"host_blocks": 4}})


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from engine_under_test.adapters import transformers_parts

    transformers_parts.load_library.cache_clear()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadInput, match=r"needs the extra `reference`.*pip install"):
        target_from(RESET.spec(4, 4))


def test_another_engine_is_named() -> None:
    assert {suite.id for suite in suites_of("transformers")} == {f"transformers-{family.label}" for family in TRANSFORMERS}
    with pytest.raises(BadInput, match="an engine is assay or one of"):
        suites_of("vllm")


def test_two_violations_that_differ_in_numbers_broke_in_the_same_way() -> None:
    one = Violation("SC-7", "progress", "request a", "nothing planned, 4 blocks free", "it needs 3")
    other = Violation("SC-7", "progress", "request b", "nothing planned, 12 blocks free", "it needs 1")
    assert way_of(one) == way_of(other)
    assert way_of(one) != way_of(Violation("SC-7", "progress", "request a", "no token in 4 plans", "it needs 3"))


def _told(*stories: Scenario) -> Any:
    def tell(_spec: Any) -> Iterator[Scenario]:
        yield from stories

    return tell


@needs_transformers
def test_a_clean_run_that_missed_a_floor_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.other_suites._EXAMPLES", dict.fromkeys(Profile, 1))
    monkeypatch.setattr("models.other_suites._WALKS", dict.fromkeys(Profile, (0, 0)))
    story = Scenario("nothing much", RESET.spec(4, 4), (add("a", 3, 2), DRAIN))
    family = replace(RESET, tells=_told(story), floors=(Reach.RESUMED_SWAPPED,))
    result = family_suite(family).run(SuiteContext(Profile.QUICK, 1))
    assert result.verdict is Verdict.UNKNOWN
    assert result.missed == ("preempted, resumed from the swap pool: 0 of 1",)
