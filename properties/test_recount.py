"""A recount adds up events, and says what differs from an engine's own counters."""

from __future__ import annotations

from engine_under_test.events import Counters, Event, EventKind
from engine_under_test.types import FinishReason, RowId
from properties.recount import Recount, differences, recount


def test_each_total_is_recounted_from_its_own_events() -> None:
    found = recount(
        [
            Event(EventKind.ACCEPTED),
            Event(EventKind.REFUSED),
            Event(EventKind.SCHEDULED, tokens=5),
            Event(EventKind.HIT, blocks=(1,), tokens=4),
            Event(EventKind.EMITTED, tokens=1),
            Event(EventKind.PREEMPTED),
            Event(EventKind.EVICTED, blocks=(1, 2)),
            Event(EventKind.FINISHED, reason="length"),
            Event(EventKind.LAUNCHED),
            Event(EventKind.COMMITTED),
            Event(EventKind.ABANDONED),
            Event(EventKind.ROLLED_BACK),
            Event(EventKind.RESULT_DROPPED),
            Event(EventKind.ROW_DROPPED),
            Event(EventKind.SETTLED),
        ]
    )
    assert found == Counters(1, 1, 5, 4, 1, 1, 2, {FinishReason.LENGTH: 1}, 1, 1, 1, 1, 1, 1)


def test_differences_name_both_sides() -> None:
    one, other = Counters(launched=2, finished={FinishReason.STOP: 1}), Counters(launched=3)
    assert differences(one, other) == ("launched is 2, the events add up to 3", "finished by stop is 1, the events add up to 0")


def test_a_reason_that_never_came_is_no_difference() -> None:
    assert differences(Counters(finished={FinishReason.STOP: 0}), Counters()) == ()


ROW, OTHER = RowId("a", 0, 1, 0), RowId("a", 1, 1, 0)


def test_a_table_is_recounted_from_what_rows_own_fork_copy_and_release() -> None:
    counting = Recount()
    counting.add([Event(EventKind.OWNED, ROW, 1, (4, 2)), Event(EventKind.FORKED, OTHER, blocks=(4, 2))])
    assert counting.tables == {ROW: (4, 2), OTHER: (4, 2)}
    counting.add([Event(EventKind.COPIED, OTHER, 2, (2, 7)), Event(EventKind.OWNED, OTHER, 2, (7,))])
    assert counting.tables == {ROW: (4, 2), OTHER: (4, 7)}
    counting.add([Event(EventKind.RELEASED, ROW, blocks=(2, 4)), Event(EventKind.OWNED, OTHER, 3, (9,))])
    assert counting.tables == {OTHER: (4, 7, 9)}


def test_a_copy_of_a_plan_that_was_lost_takes_no_place_later() -> None:
    counting = Recount()
    counting.add([Event(EventKind.OWNED, ROW, 1, (4, 2)), Event(EventKind.COPIED, ROW, 2, (2, 7))])
    counting.add([Event(EventKind.OWNED, ROW, 3, (7,))])
    assert counting.tables == {ROW: (4, 2, 7)}


def test_after_a_restart_nobody_owns_anything() -> None:
    counting = Recount()
    counting.add([Event(EventKind.OWNED, ROW, 1, (4,))])
    counting.restarted()
    assert counting.tables == {}
