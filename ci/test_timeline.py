"""Claims about the story of a run: it says what changed, names blocks by their state, and marks what broke."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ci.doubles.failing import OPS, WORLD
from ci.op_words import describe_op
from ci.replay import lines, replay, to_json
from ci.replay_file import replay_of
from ci.report.picture import timeline_svg
from ci.self_proof import BlindTarget
from ci.timeline import block_histories, block_states, tell
from engine_under_test.types import Adapter, Media, Request, SamplingParams
from models.build import target_from, world_from
from models.world import World
from properties.op import Op, OpKind
from properties.suite import Failure
from properties.verdict import Violation


def blind_world() -> World:
    """A world whose target breaks KV-1 at once."""
    return World(BlindTarget(target_from(WORLD)), hasher=None)


def test_each_operation_says_what_it_changed() -> None:
    scenes = tell(world_from(WORLD), (*OPS, Op(OpKind.ABORT, request_id="a"), Op(OpKind.POLL)))
    assert scenes[0].changes == ("a: waiting",)
    assert scenes[1].changes[0].startswith("a: running  blocks 1 2  committed 0 → 8")
    assert "a: ended" in scenes[3].changes
    assert "blocks 1 2 3 → quarantine(2)" in scenes[3].changes  # a step's fence passes with the next step, or when polled
    assert "blocks 1 2 → cached" in scenes[4].changes


def test_an_operation_that_does_not_apply_is_told_as_such() -> None:
    scenes = tell(world_from(WORLD), (Op(OpKind.ABORT, request_id="nobody"),))
    assert scenes[0].is_noop


def test_the_story_ends_at_the_first_violation() -> None:
    world = blind_world()
    scenes = tell(world, OPS)
    assert world.violation is not None
    assert [scene.violation for scene in scenes] == [world.violation]


def test_a_block_that_no_list_names_is_nowhere_and_one_in_two_places_shows_both() -> None:
    snapshot = world_from(WORLD).target.snapshot()
    states = block_states(replace(snapshot, free=(*snapshot.free[1:], 2)))
    assert (states[1], states[2], states[3]) == ("nowhere", "empty + empty", "empty")


def test_the_history_of_a_block_follows_it_through_its_states() -> None:
    scenes = tell(world_from(WORLD), (*OPS, Op(OpKind.ABORT, request_id="a"), Op(OpKind.POLL)))
    violation = Violation("KV-4", "freed once", "block 1", "twice", "once")
    assert block_histories(scenes, violation) == ("block 1   empty → owned(a) → quarantine(2) → cached ✗",)


def test_the_picture_has_a_cell_for_each_block_and_operation_and_escapes_names() -> None:
    hostile = replace(OPS[0], request=Request("<b>", tuple(range(9)), SamplingParams(max_tokens=4)))
    replayed = replay(replay_of("a", Failure(Violation("KV-4", "", "block 1", "", ""), "7", WORLD, (hostile, *OPS[1:]))))
    picture = timeline_svg(to_json(replayed))
    assert picture.count("<title>") == 3 * len(OPS)
    assert "<b>" not in picture
    assert "owned(&lt;b&gt;)" in picture


def test_verbose_shows_the_whole_state_after_each_operation() -> None:
    replayed = replay(replay_of("a", Failure(Violation("KV-4", "", "block 1", "", ""), "7", WORLD, OPS)))
    assert sum("free, next first" in line for line in lines(replayed, is_verbose=True)) == len(OPS)


@pytest.mark.parametrize("kind", list(OpKind))
def test_every_kind_of_operation_has_words(kind: OpKind) -> None:
    title, _ = describe_op(Op(kind))
    assert title


def test_a_request_is_told_without_its_defaults() -> None:
    columns: dict[str, Any] = {"adapter": Adapter("lora", 2), "media": (Media("cat", 1, 3),), "deadline_s": 4.0, "tenant": "t"}
    request = Request("a", (1, 2, 3, 4, 5), SamplingParams(max_tokens=2, n=3, temperature=0.5), **columns)
    told = describe_op(Op(OpKind.ADD, request=request))[1]
    assert told == "prompt 5 tokens, max 2, temperature 0.5, n 3, tenant t, deadline 4 s, adapter lora v2, media cat at 1..3"
