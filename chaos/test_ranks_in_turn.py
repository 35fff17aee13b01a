"""Played ranks: a good case and bad ones, each with what a driver that heeds its terms does not do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from chaos import ranks_in_turn
from chaos.ranks_in_turn import SUITE_ID, Case, cases, check_ranks_in_turn, run_case
from chaos.scripted_blows import Blow, Moment, Turn
from chaos.scripted_time import VirtualTime
from engine_under_test.distributed.rank_supervisor import Policy, RankSupervisor
from engine_under_test.events import RankEvent, RankEventKind
from engine_under_test.types import FinishReason, Output
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

FROZEN = next(
    case
    for case in cases()
    for turn in case.turns
    if (turn.blow, turn.moment, turn.rank) == (Blow.FREEZE, Moment.IN_COLLECTIVE, 1) and not case.away_s
)


def test_a_frozen_rank_is_lost_to_the_virtual_second_and_named() -> None:
    run = run_case(FROZEN)
    assert run.violation is None
    struck, lost = (
        next(event for event in run.history.of(RankEvent) if event.kind is kind)
        for kind in (RankEventKind.STRUCK, RankEventKind.LOST)
    )
    assert lost.rank == struck.rank == 1
    assert struck.least_s <= lost.at_s - struck.at_s <= struck.bound_s < struck.least_s + 1.1


def test_a_case_has_the_same_history_each_time() -> None:
    assert list(run_case(FROZEN).history.lines()) == list(run_case(FROZEN).history.lines())


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"named": 0}, "rank 1 named for it"),
        ({"bound_s": 3.0}, "noticed after "),
        ({"least_s": 9.0}, "not before 9 s"),
    ],
    ids=["another name", "too late", "too soon"],
)
def test_another_expectation_is_not_met(changes: dict[str, Any], found: str) -> None:
    (turn,) = FROZEN.turns
    run = run_case(replace(FROZEN, turns=(replace(turn, **changes),)))
    assert run.violation is not None
    assert found in run.violation.sentence


def test_a_loss_without_a_blow_is_found() -> None:
    rests = Turn(Blow.REST, Moment.BEFORE_PLAN, 0, rest_s=9.0, named=0)  # far longer than a silence may last
    run = run_case(Case(2, Policy.CONTINUE, 1, (rests,)))
    assert run.violation is not None
    assert "nothing befell them" in run.violation.sentence


def test_an_ending_that_the_policy_does_not_allow_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    case = replace(FROZEN, policy=Policy.CONTINUE)
    monkeypatch.setattr(
        ranks_in_turn, "RankSupervisor", lambda engine, group, _policy: RankSupervisor(engine, group, Policy.END)
    )
    run = run_case(case)
    assert any(output.finish_reason is FinishReason.ERROR for output in run.history.of(Output))
    assert run.violation is not None
    assert "its tokens, as the policy says" in run.violation.sentence


def test_a_group_that_stays_down_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(
        each for each in cases() if each.turns and each.turns[-1].blow is Blow.UNBORN and len(each.turns[-1].generations) > 9
    )
    assert run_case(case).violation is None
    monkeypatch.setattr(
        ranks_in_turn, "RankSupervisor", lambda engine, group, policy: RankSupervisor(engine, group, policy, max_starts=10**6)
    )
    run = run_case(case)
    assert run.violation is not None
    assert "and still not over" in run.violation.found


def test_answers_that_nobody_compares_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_under_test.distributed.rank_launch.RankLaunch.disagreement", lambda _launch: None)
    case = next(each for each in cases() if each.turns and each.turns[0].column == "tokens")
    run = run_case(case)
    assert run.violation is not None
    assert "never noticed" in run.violation.sentence


def test_every_blow_falls_at_every_moment_where_it_can() -> None:
    met = Counter((turn.blow, turn.moment) for case in cases() for turn in case.turns)
    assert {blow for blow, _ in met} == set(Blow)
    for blow in (Blow.KILL, Blow.FREEZE, Blow.RAISE):
        assert {moment for each, moment in met if each is blow} >= set(Moment) - {Moment.BIRTH}


def test_the_quick_suite_is_valid() -> None:
    result = check_ranks_in_turn(SuiteContext(Profile.QUICK, 7))
    assert result.id == SUITE_ID
    assert result.failures == ()
    assert result.verdict is Verdict.VALID
    assert result.reached["losses"] > 20


def test_what_is_due_at_the_same_time_happens_by_turn() -> None:
    time, done = VirtualTime(9.0), list[str]()
    for turn, name in ((1, "second"), (0, "first"), (2, "third")):
        time.later(1.0, partial(done.append, name), turn)
    time.go_on(2.0)
    assert (done, time.now()) == (["first", "second", "third"], 2.0)
