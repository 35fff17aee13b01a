"""DI-1 and DI-2: a good history, and for each thing that must hold one that differs from it in one field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from engine_under_test.events import Event, EventKind, RankEvent, RankEventKind
from engine_under_test.types import Admission, FinishReason, Logprobs, Output, Request, RowId, SamplingParams
from properties.checkers import Checker, run_checkers
from properties.history import History, OpRecord, Record
from properties.op import Op, OpKind
from properties.rank_checkers import AGREEMENT, DEATHS, NO_FALSE_ALARM, TOLD
from properties.rank_endings import Terms, endings_by, starts_by
from properties.verdict import Verdict

K = RankEventKind
ROW, OTHER = RowId("a", 0, 1, 0), RowId("b", 0, 2, 0)
SUMS = ("sum of layer one 1", "sum of digests 1")


def joined(rank: int, generation: int = 1) -> RankEvent:
    return RankEvent(K.JOINED, generation, 1.0, rank, pool=(8, 4), window=1)


def sent(sequence: int, generation: int = 1) -> RankEvent:
    return RankEvent(K.SENT, generation, 2.0, sequence=sequence, plan_id=10 + sequence, rows=(ROW,))


def executed(rank: int, sequence: int, generation: int = 1) -> RankEvent:
    return RankEvent(K.EXECUTED, generation, 3.0, rank, sequence, 10 + sequence, (ROW,), SUMS)


GOOD = (joined(0), joined(1), sent(1), sent(2), executed(1, 1), executed(0, 1), executed(0, 2), executed(1, 2))


def judged(records: tuple[Record, ...], checker: Checker = AGREEMENT) -> tuple[Verdict, str]:
    (verdict,) = run_checkers(History(records=records), (checker,))
    return verdict.verdict, "" if verdict.violation is None else verdict.violation.sentence


def with_one(records: tuple[Record, ...], place: int, **changes: Any) -> tuple[Record, ...]:
    event = records[place]
    assert isinstance(event, RankEvent)
    return (*records[:place], event._replace(**changes), *records[place + 1 :])


def test_ranks_that_agree_are_valid() -> None:
    assert judged(GOOD) == (Verdict.VALID, "")


def test_a_history_without_ranks_is_unknown() -> None:
    assert judged(())[0] is Verdict.UNKNOWN
    assert judged(GOOD, DEATHS)[0] is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("place", "changes", "found"),
    [
        (1, {"pool": (9, 4)}, "a pool of 9 blocks of 4"),
        (5, {"plan_id": 12}, "plan 12 executed"),
        (5, {"rows": (OTHER,)}, "rows "),
        (5, {"collectives": SUMS[:1]}, "collectives "),
        (6, {"sequence": 3}, "executed behind step 1"),
        (6, {"sequence": 1}, "executed behind step 1"),
        (4, {"rank": 2}, "executed before the rank has joined"),
        (2, {"sequence": 4}, "plan 11 executed"),
    ],
    ids=["another pool", "another plan", "other rows", "a collective less", "a step left out", "a step twice", "a stranger",
         "a step nobody sent"],
)  # fmt: skip
def test_ranks_that_do_not_agree_are_found(place: int, changes: dict[str, object], found: str) -> None:
    verdict, sentence = judged(with_one(GOOD, place, **changes))
    assert verdict is Verdict.INVALID
    assert found in sentence


def test_a_rank_that_runs_ahead_is_found_at_the_first_step_too_many() -> None:
    ahead = (joined(0), joined(1), sent(1), sent(2), executed(0, 1), executed(0, 2), executed(1, 1))
    assert "2 steps ahead of rank 1" in judged(ahead)[1]
    assert judged(with_one(with_one(ahead, 0, window=2), 1, window=2))[0] is Verdict.VALID


# DI-2

ASKED = Request("a", (1, 2, 3), SamplingParams(max_tokens=2))


def added(name: str, incarnation: int) -> OpRecord:
    request = Request(name, ASKED.prompt, ASKED.sampling)
    return OpRecord(Op(OpKind.ADD, request=request), admission=Admission(name, incarnation))


DIED: tuple[Record, ...] = (
    added("twin", 9),
    Output("twin", 0, 9, 0, (4, 5), FinishReason.LENGTH),
    added("a", 1),
    joined(0),
    joined(1),
    RankEvent(K.STRUCK, 1, 5.0, 1, bound_s=20.0, reason="killed"),
    RankEvent(K.LOST, 1, 9.0, 1, reason="was killed by SIGKILL"),
    RankEvent(K.RESTARTED, 2, 10.0),
    Output("a", 0, 1, 0, (4,)),
    Output("a", 0, 1, 1, (5,), FinishReason.LENGTH),
)
BLOW, LOSS, RESTART, FIRST, LAST = 5, 6, 7, 8, 9


def output(place: int, **changes: Any) -> tuple[Record, ...]:
    told = DIED[place]
    assert isinstance(told, Output)
    return (*DIED[:place], replace(told, **changes), *DIED[place + 1 :])


def test_a_death_that_is_noticed_and_outlived_is_valid() -> None:
    assert judged(DIED, DEATHS) == (Verdict.VALID, "")


def test_a_request_may_end_with_an_error_that_says_why() -> None:
    told = output(LAST, token_ids=(), finish_reason=FinishReason.ERROR, message="rank 1 was killed")
    assert judged(told, DEATHS) == (Verdict.VALID, "")


@pytest.mark.parametrize(
    ("bad", "found"),
    [
        (lambda: with_one(DIED, LOSS, at_s=25.5), "noticed after 20.500 s"),
        (lambda: with_one(DIED, BLOW, least_s=5.0), "not before 5 s"),
        (lambda: with_one(DIED, LOSS, rank=0), "rank 0 named for it"),
        (lambda: with_one(DIED, LOSS, rank=None), "no rank named for it"),
        (lambda: with_one(DIED, LOSS, generation=2), "never noticed"),
        (lambda: with_one(DIED, RESTART, generation=1), "nothing behind it"),
        (lambda: output(LAST, token_ids=(6,)), "tokens (4, 6)"),
        (lambda: output(LAST, token_ids=()), "tokens (4,)"),
        (lambda: output(FIRST, finish_reason=FinishReason.LENGTH), "behind its end"),
        (lambda: output(LAST, finish_reason=None), "no end"),
        (lambda: output(LAST, finish_reason=FinishReason.ERROR), "an error without a word"),
        (lambda: (*DIED[:RESTART], executed(0, 1), *DIED[RESTART:]), "executed step 1 behind it"),
    ],
    ids=["too late", "too soon", "another rank is named", "nobody is named", "never noticed",
         "no new generation", "another token", "a token less", "two ends", "no end", "an error without a word",
         "a dead generation computes"],
)  # fmt: skip
def test_a_death_that_is_not_answered_is_found(bad: Callable[[], tuple[Record, ...]], found: str) -> None:
    verdict, sentence = judged(bad(), DEATHS)
    assert verdict is Verdict.INVALID
    assert found in sentence


PASSED = (*with_one(DIED, BLOW, bound_s=0.0)[:LOSS], *DIED[FIRST:])


def test_a_blow_without_a_bound_may_pass_unnoticed() -> None:
    assert judged(PASSED, DEATHS) == (Verdict.VALID, "")


def test_a_request_that_suffers_from_a_blow_that_passed_is_found() -> None:
    told = PASSED[-1]
    assert isinstance(told, Output)
    verdict, sentence = judged((*PASSED[:-1], replace(told, token_ids=(6,))), DEATHS)
    assert verdict is Verdict.INVALID
    assert "tokens (4, 6)" in sentence


def test_a_blow_to_nobody_in_particular_may_be_named_by_any() -> None:
    assert judged(with_one(DIED, BLOW, rank=None), DEATHS)[0] is Verdict.VALID


@pytest.mark.parametrize(
    "bad",
    [with_one(DIED, BLOW, generation=2), with_one(DIED, BLOW, bound_s=0.0), (*DIED[:BLOW], *DIED[LOSS:])],
    ids=["a blow to another generation", "a blow that may pass", "no blow"],
)
def test_a_loss_for_nothing_is_a_false_alarm(bad: tuple[Record, ...]) -> None:
    assert judged(DIED, NO_FALSE_ALARM)[0] is Verdict.VALID
    assert "since nothing befell them" in judged(bad, NO_FALSE_ALARM)[1]


# What is told

_ONE, _TWO = Logprobs((5, 9), (-0.5, -0.25)), Logprobs((7,), (-1.0,))
_TOLD = Request("twin", (1, 5), SamplingParams(max_tokens=2, logprobs=1, prompt_logprobs=1))


def _history(**changes: Any) -> tuple[Record, ...]:
    """A twin, and a request that was told the same but for these changes."""
    asked = [_TOLD, replace(_TOLD, request_id="a")]
    ops = [OpRecord(Op(OpKind.ADD, request=each), False, Admission(each.request_id, 1)) for each in asked]
    news = Output("twin", 0, 1, 0, (7,), FinishReason.LENGTH, logprobs=(_TWO,), prompt_logprobs=(_ONE,))
    return (*ops, news, replace(news, request_id="a", **changes))


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, ""),
        ({"prompt_logprobs": (Logprobs((5, 3), (-0.5001, -0.25)),)}, ""),
        ({"prompt_logprobs": (Logprobs((5, 9), (-0.6, -0.25)),)}, "place 0 of its prompt"),
        ({"logprobs": (Logprobs((6,), (-1.0,)),)}, "place 0 of its output"),
        ({"logprobs": (Logprobs((7, 8), (-1.0, -2.0)),)}, "place 0 of its output"),
    ],
    ids=["as its twin", "as its twin, summed in another order", "another value", "of another token", "one token more"],
)
def test_ranks_tell_what_one_rank_tells(changes: dict[str, Any], found: str) -> None:
    verdict, sentence = judged(_history(**changes), TOLD)
    assert verdict is (Verdict.INVALID if found else Verdict.VALID)
    assert found in sentence


# Endings, by the terms of a supervisor

ENDS = endings_by(Terms(ends_in_flight=True))
KILLED: tuple[Record, ...] = (
    joined(0),
    joined(1),
    Event(EventKind.SCHEDULED, ROW, 11),
    sent(1),
    executed(0, 1),
    RankEvent(K.LOST, 1, 9.0, 1, reason="was killed by SIGKILL"),
    RankEvent(K.RESTARTED, 2, 10.0),
)


def ended(name: str, incarnation: int, reason: FinishReason, message: str = "") -> Output:
    return Output(name, 0, incarnation, 0, (), reason, message)


BLAMED, BYSTANDER = ended("a", 1, FinishReason.ERROR, "rank 1: was killed"), ended("b", 2, FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("outputs", "terms", "found"),
    [
        ((BLAMED, BYSTANDER), Terms(True), ""),
        ((ended("a", 1, FinishReason.LENGTH), BYSTANDER), Terms(), ""),
        ((BYSTANDER,), Terms(True), "no end"),
        ((ended("a", 1, FinishReason.LENGTH),), Terms(True), "ended by length"),
        ((ended("a", 1, FinishReason.ERROR, "rank 0: was killed"),), Terms(True), "an error that names rank 1"),
        ((BLAMED, ended("b", 2, FinishReason.ERROR, "rank 1: was killed")), Terms(True), "request b"),
        ((BLAMED,), Terms(), "its tokens, as the policy says"),
        ((BLAMED,), Terms(max_losses=1), ""),
    ],
    ids=["as END says", "as CONTINUE says", "END, and no end", "END, and nobody ends", "another rank is named",
         "END, and a bystander ends", "CONTINUE, and somebody ends", "CONTINUE, for the last time"],
)  # fmt: skip
def test_requests_end_as_the_policy_says(outputs: tuple[Output, ...], terms: Terms, found: str) -> None:
    verdict, sentence = judged((*KILLED, *outputs), endings_by(terms))
    assert (verdict is Verdict.INVALID) == bool(found)
    assert found in sentence


def test_whoever_was_answered_by_all_is_not_to_blame() -> None:
    whole = (*KILLED[:5], executed(1, 1), Event(EventKind.COMMITTED, None, 11), *KILLED[5:])
    assert judged((*whole, ended("a", 1, FinishReason.LENGTH)), ENDS)[0] is Verdict.VALID
    assert "its tokens" in judged((*whole, BLAMED), ENDS)[1]


@pytest.mark.parametrize(
    ("failed", "is_closed", "found"),
    [(2, False, ""), (3, True, ""), (4, True, "start 4 in a row that failed"), (2, True, "closed after 2 starts")],
    ids=["up at the third", "given up", "given up late", "given up early"],
)
def test_a_group_is_given_up_in_time(failed: int, is_closed: bool, found: str) -> None:
    lost = tuple(RankEvent(K.LOST, generation, 9.0) for generation in range(1, failed + 2))
    last = RankEvent(K.CLOSED if is_closed else K.RESTARTED, failed + 2, 9.0)
    assert found in judged((*lost, last), starts_by(Terms()))[1]
    assert (judged((*lost, last), starts_by(Terms()))[0] is Verdict.INVALID) == bool(found)
