"""A row that is no number, and a slot that holds none: whose request ends, and who is not to notice."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from chaos.memory_suite import run_memory
from chaos.spoiled_suite import run_spoiled
from engine_under_test.adapters.ours import AssayTarget
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.types import FinishReason, Output
from models.build import world_from
from models.scenarios import DRAIN, PLAN, STEP, add, spec
from models.world import World
from properties.op import Op, OpKind
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

QUICK = SuiteContext(Profile.QUICK, 5, shrink_s=3.0)
THREE = (add("a", 5, 4), add("b", 3, 4, leaves_at=0, variant=1), add("c", 7, 4, leaves_at=0, variant=2))
SICK = (PLAN, Op(OpKind.SICK_ROW, k=1))


def told(*ops: Op, depth: int = 1) -> tuple[World, dict[str, FinishReason]]:
    world = world_from({**spec(24, 2, max_plans_in_flight=1 + depth), "device": "streams"})
    world.run((*ops, DRAIN))
    return world, {each.request_id: each.finish_reason for each in world.history.of(Output) if each.finish_reason}


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_the_request_of_a_sick_row_ends_and_its_batch_mates_notice_nothing(depth: int) -> None:
    world, ends = told(*THREE, STEP, *SICK, PLAN, depth=depth)
    assert world.violation is None
    assert sorted(ends.values()) == [FinishReason.ERROR, FinishReason.LENGTH, FinishReason.LENGTH]
    assert ends["b"] is FinishReason.ERROR


_SAME = (add("a", 9, 2), STEP, STEP, STEP, add("b", 9, 4), PLAN, Op(OpKind.STUCK_ROW, k=0), Op(OpKind.LAND))


def test_a_row_that_asks_for_what_can_not_be_done_leaves_the_prefix_that_it_shared_to_others() -> None:
    world, ends = told(*_SAME, add("c", 9, 1), depth=0)
    assert world.violation is None
    assert ends == {"a": FinishReason.LENGTH, "b": FinishReason.ERROR, "c": FinishReason.LENGTH}
    assert sum(event.kind is EventKind.HIT for event in world.history.of(Event)) == 2  # b's and c's


def test_an_engine_that_forgets_what_such_a_row_has_read_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    abandon = AssayTarget.abandon

    def doubting(self: AssayTarget, plan_id: int, reason: str, to_blame: Collection[int] = (), *, distrusts: bool) -> bool:
        del distrusts
        return abandon(self, plan_id, reason, to_blame)

    monkeypatch.setattr(AssayTarget, "abandon", doubting)
    world, _ = told(*_SAME, depth=0)
    assert world.violation is not None
    assert world.violation.invariant == "KV-15"


def test_a_slot_without_a_number_ends_its_reader_alone() -> None:
    world, ends = told(*THREE, STEP, STEP, Op(OpKind.SPOIL, request_id="c", k=2))
    assert world.violation is None
    assert [name for name, reason in sorted(ends.items()) if reason is FinishReason.ERROR] == ["c"]


def test_an_engine_that_ends_the_whole_batch_for_one_row_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    abandon = AssayTarget.abandon

    def everybody(self: AssayTarget, plan_id: int, reason: str, to_blame: Collection[int] = (), *, distrusts: bool) -> bool:
        did = abandon(self, plan_id, reason, to_blame, distrusts=distrusts)
        for live in list(self._engine._book.live.values()) if to_blame else ():
            self._engine._ends.end_request(live, FinishReason.ERROR, reason)
        return did

    monkeypatch.setattr(AssayTarget, "abandon", everybody)
    world, _ = told(*THREE, STEP, *SICK)
    assert world.violation is not None
    assert world.violation.invariant == "SC-12"


def test_an_engine_that_tries_a_sick_row_again_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    abandon = AssayTarget.abandon

    def nobody(self: AssayTarget, plan_id: int, reason: str, to_blame: Collection[int] = (), *, distrusts: bool) -> bool:
        del to_blame, distrusts
        return abandon(self, plan_id, reason)

    monkeypatch.setattr(AssayTarget, "abandon", nobody)
    world, _ = told(*THREE, STEP, *SICK)
    assert world.violation is not None
    assert world.violation.invariant == "SC-7"


def test_every_spoiled_slot_is_noticed_by_its_first_reader_and_by_nobody_else() -> None:
    result = run_spoiled(QUICK)
    assert (result.verdict, result.missed) == (Verdict.VALID, ())
    assert result.reached["slots that were read"] > 8


def test_a_model_that_does_not_look_at_all_it_should_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    read = FingerprintRunner._read

    def first_block_alone(self: FingerprintRunner, blocks: Any) -> Any:
        return read(self, [blocks[0]] * len(blocks))

    monkeypatch.setattr(FingerprintRunner, "_read", first_block_alone)
    assert run_spoiled(QUICK).verdict is Verdict.INVALID


def test_a_step_that_does_not_ask_for_host_memory_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_memory(QUICK).verdict is Verdict.VALID
    monkeypatch.setattr("engine_under_test.execution.streams._ALLOCATIONS", ())
    result = run_memory(QUICK)
    assert result.verdict is Verdict.UNKNOWN
    assert any("allocations of the host, none asked for" in each for each in result.missed)
