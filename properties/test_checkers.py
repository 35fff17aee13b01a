"""Each checker passes a small good run, finds one wrong record in it, and is unknown without evidence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pytest

from engine_under_test.events import Counters, Event, EventKind
from engine_under_test.types import Admission, FinishReason, Output, Request, RowId, SamplingParams
from properties import history as histories
from properties.checkers import CHECKERS, Checker, Finding, merged, run_checkers
from properties.history import History, Landing, OpRecord, Record
from properties.moment import NoiseAddress
from properties.op import Op, OpKind
from properties.verdict import Verdict

_HOT = SamplingParams(max_tokens=2, temperature=1.0, seed=5)
A, B, C = Request("a", (1, 2, 3), _HOT), Request("b", (1, 2, 3), _HOT), Request("c", (9,))
ROW_A, ROW_B, ROW_C = RowId("a", 0, 1, 0), RowId("b", 0, 2, 0), RowId("c", 0, 3, 0)
NOISE = (NoiseAddress(5, 0, 3, 0), NoiseAddress(5, 0, 4, 0))


def _added(request: Request, row: RowId) -> list[Record]:
    accepted = Event(EventKind.ACCEPTED, row, tokens=len(request.prompt))
    return [OpRecord(Op(OpKind.ADD, request=request), False, Admission(request.request_id, row.incarnation)), accepted]


def _step(plan_id: int, row: RowId, token: int, index: int, address: NoiseAddress) -> list[Record]:
    end = FinishReason.LENGTH if index == 1 else None
    ended: list[Record] = [] if end is None else [Event(EventKind.FINISHED, row, reason=end.value)]
    return [
        OpRecord(Op(OpKind.STEP)),
        Event(EventKind.LAUNCHED, plan_id=plan_id, tokens=1),
        Event(EventKind.SCHEDULED, row, plan_id, tokens=3 if index == 0 else 1),
        Event(EventKind.COMMITTED, plan_id=plan_id),
        Event(EventKind.EMITTED, row, plan_id, tokens=1),
        *ended,
        Event(EventKind.QUARANTINED, plan_id=plan_id, blocks=(plan_id,)),
        Landing(plan_id, 0, (row,), ((token,),), (address,)),
        Output(row.request_id, 0, row.incarnation, index, (token,), end),
        Event(EventKind.SETTLED, plan_id=plan_id),
        Event(EventKind.FREED, blocks=(plan_id,)),
    ]


GOOD: tuple[Record, ...] = (
    *_added(A, ROW_A),
    *_step(1, ROW_A, 7, 0, NOISE[0]),
    *_step(2, ROW_A, 8, 1, NOISE[1]),
    *_added(B, ROW_B),
    *_step(3, ROW_B, 7, 0, NOISE[0]),
    *_step(4, ROW_B, 8, 1, NOISE[1]),
    *_added(C, ROW_C),
    OpRecord(Op(OpKind.ABORT, request_id="c")),
    Event(EventKind.FINISHED, ROW_C, reason="abort"),
    Output("c", 0, 3, 0, (), FinishReason.ABORT),
    OpRecord(Op(OpKind.DRAIN)),
    Counters(
        accepted=3,
        scheduled_tokens=8,
        emitted_tokens=4,
        launched=4,
        committed=4,
        finished={FinishReason.LENGTH: 2, FinishReason.ABORT: 1},
    ),
)


class Bad(NamedTuple):
    identifier: str
    claim: str
    old: Callable[[Record], bool]  # the last record for which this holds
    new: Sequence[Record]  # stands in its place


def _is_output(request_id: str, index: int) -> Callable[[Record], bool]:
    return lambda r: isinstance(r, Output) and (r.request_id, r.index) == (request_id, index)


def _is(kind: EventKind, plan_id: int | None = None) -> Callable[[Record], bool]:
    return lambda r: isinstance(r, Event) and r.kind is kind and r.plan_id == plan_id


_DRAIN = OpRecord(Op(OpKind.DRAIN))
BAD = (
    Bad("SC-5", "an index is told twice", _is_output("a", 1), (Output("a", 0, 1, 0, (8,)),)),
    Bad("SC-5", "an index is left out", _is_output("a", 1), (Output("a", 0, 1, 2, (8,)),)),
    Bad("SC-5", "it ends twice", _is_output("c", 0), (Output("c", 0, 3, 0, (), FinishReason.ABORT),) * 2),
    Bad("SC-5", "it never ends", _is_output("c", 0), ()),
    Bad("SC-6", "a plan names it", lambda r: r == _DRAIN, (Event(EventKind.SCHEDULED, ROW_C, 5, tokens=1), _DRAIN)),
    Bad("SC-11", "a block is left", _is(EventKind.FREED), ()),
    Bad("SC-11", "a plan is left", _is(EventKind.SETTLED, 4), ()),
    Bad("SC-11", "a request is left", _is(EventKind.FINISHED), ()),
    Bad("SC-14", "an event is missing", _is(EventKind.EMITTED, 4), ()),
    Bad("SK-3", "an identifier comes again", _is(EventKind.LAUNCHED, 4), (Event(EventKind.LAUNCHED, plan_id=3),)),
    Bad(
        "ST-3",
        "the earlier draw is used again",
        lambda r: isinstance(r, Landing) and r.plan_id == 4,
        (Landing(4, 0, (ROW_B,), ((8,),), NOISE[:1]),),
    ),
    Bad("ST-3", "nobody drew", lambda r: isinstance(r, Landing) and r.plan_id == 4, ()),
    Bad("SE-2", "b gets another token than a", _is_output("b", 1), (Output("b", 0, 2, 1, (9,), FinishReason.LENGTH),)),
)
_BY_IDENTIFIER = {checker.identifier: checker for checker in CHECKERS}


def _changed(case: Bad) -> list[Record]:
    place = max(place for place, record in enumerate(GOOD) if case.old(record))
    return [*GOOD[:place], *case.new, *GOOD[place + 1 :]]


def test_a_good_run_is_valid() -> None:
    verdicts = run_checkers(History({}, GOOD))
    assert {v.sentence: (v.verdict, v.note) for v in verdicts} == {c.sentence: (Verdict.VALID, "") for c in CHECKERS}
    assert merged(verdicts) is Verdict.VALID


@pytest.mark.parametrize("case", BAD, ids=lambda case: f"{case.identifier} - {case.claim}")
def test_a_run_that_is_wrong_in_one_record_is_invalid(case: Bad) -> None:
    (verdict,) = run_checkers(History({}, _changed(case)), [_BY_IDENTIFIER[case.identifier]])
    assert verdict.verdict is Verdict.INVALID
    assert verdict.violation is not None
    assert verdict.violation.invariant == case.identifier


def test_every_checker_has_a_bad_case() -> None:
    assert {case.identifier for case in BAD} == set(_BY_IDENTIFIER)


def test_an_empty_history_is_unknown_everywhere() -> None:
    verdicts = run_checkers(History())
    assert {verdict.verdict for verdict in verdicts} == {Verdict.UNKNOWN}
    assert all(verdict.note for verdict in verdicts)


def test_no_checker_at_all_is_unknown() -> None:
    assert merged(run_checkers(History({}, GOOD), [])) is Verdict.UNKNOWN


def test_a_checker_that_crashes_is_unknown() -> None:
    def crashes(_records: Sequence[Record]) -> Finding:
        raise ZeroDivisionError("by nobody")

    verdicts = run_checkers(History({}, GOOD), [*CHECKERS, Checker("SC-5", crashes)])
    assert verdicts[-1].note == "the checker crashed: ZeroDivisionError: by nobody"
    assert merged(verdicts) is Verdict.UNKNOWN


def test_a_target_without_events_is_judged_by_its_outputs_only() -> None:
    assert {v.identifier for v in run_checkers(History({"has_events": False}, GOOD))} == {"SC-5", "SE-2"}


def test_verdicts_are_the_same_on_the_file() -> None:
    history = History({}, _changed(BAD[0]))
    back = histories.parse("".join(line + "\n" for line in history.lines()))
    assert run_checkers(back) == run_checkers(history)


def test_an_abandoned_plan_may_draw_again_at_its_addresses() -> None:
    lost = [Event(EventKind.LAUNCHED, plan_id=0), Event(EventKind.ABANDONED, plan_id=0), Event(EventKind.SETTLED, plan_id=0)]
    drawn = Landing(0, 0, (ROW_A,), ((7,),), NOISE[:1])
    (verdict,) = run_checkers(History({}, (*GOOD[:2], *lost, drawn, *GOOD[2:])), [_BY_IDENTIFIER["ST-3"]])
    assert verdict.verdict is Verdict.VALID


def test_a_restart_voids_what_was_in_flight() -> None:
    records = [record for record in GOOD if not _is(EventKind.SETTLED, 4)(record)]
    records.insert(-2, OpRecord(Op(OpKind.RESTART)))
    (verdict,) = run_checkers(History({}, records), [_BY_IDENTIFIER["SC-11"]])
    assert verdict.verdict is Verdict.VALID


def test_a_shorter_answer_to_the_same_request_agrees_as_far_as_it_goes() -> None:
    short = replace(B, sampling=replace(_HOT, max_tokens=1))
    records = [
        r._replace(op=Op(OpKind.ADD, request=short)) if isinstance(r, OpRecord) and r.op.request == B else r for r in GOOD
    ]
    (verdict,) = run_checkers(History({}, records), [_BY_IDENTIFIER["SE-2"]])
    assert verdict.verdict is Verdict.VALID
