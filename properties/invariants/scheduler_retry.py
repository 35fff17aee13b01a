"""What becomes of a lost step: tried once more by half, then its requests end with an error that says why (SC-5, SC-7).

That nobody else ends with an error is judged where ends are (SC-12, by the model of requests).
"""

from __future__ import annotations

from typing import Final

from engine_under_test.caps import Caps
from engine_under_test.types import FinishReason
from properties.invariants.predicate import Predicate, predicate, row_named, violation
from properties.moment import Happening, Moment
from properties.verdict import Violation


def a_lost_plan_is_tried_again_by_half(moment: Moment) -> Violation | None:
    """SC-7: the plan behind a first loss holds at most half of the lost rows, rounded up, and nobody else, unless as
    many were left out because they can not run.

    Source: `FinishReason.ERROR` in engine_under_test/types.py (a step fails twice before its requests end: by halves, one that
    always fails is found and the others are spared).
    """
    lost = moment.facts.retried
    if not lost:
        return None
    assert moment.planned is not None
    plan, rows = moment.planned.plan, moment.view.planned.rows
    most = -(-len(lost) // 2)
    again = [row for row in rows if row[:3] in lost]
    if len(again) > most:
        found, expected = f"{len(again)} of the {len(lost)} rows of the lost plan", f"at most {most}, half of them"
        return violation("SC-7", f"plan {plan.plan_id}, behind a lost one", found, expected)
    if len(again) < plan.num_rows and len(lost) - len(again) < most:
        other = next(row for row in rows if row not in again)
        found = f"with {row_named(other)}, who was not in the lost plan"
        return violation("SC-7", f"plan {plan.plan_id}, behind a lost one", found, "rows of the lost plan alone")
    return None


def requests_lost_twice_end(moment: Moment) -> Violation | None:
    """SC-7: behind the loss of a second try the requests of its rows have ended.

    Source: `FinishReason.ERROR` in engine_under_test/types.py; text-generation-inference pull 1731 (a wait without end).
    """
    left = sorted(key for key in moment.facts.lost_twice if key in moment.facts.live())
    if left:
        subject = f"request {left[0][0]}, choice {left[0][1]}"
        return violation("SC-7", subject, "live behind the second loss of its step", "an end by error")
    return None


def errors_say_why(moment: Moment) -> Violation | None:
    """SC-5: the terminal event of an end by error carries what failed.

    Source: `Output.message` in engine_under_test/types.py.
    """
    for output in moment.outputs:
        if output.finish_reason is FinishReason.ERROR and not output.message:
            subject = f"request {output.request_id}, choice {output.choice}"
            return violation("SC-5", subject, "an end by error without a message", "what failed")
    return None


def _recovers(caps: Caps) -> bool:
    """What recovers from faults as a whole engine; block management alone leaves to its user what is tried again."""
    return caps.has_transaction and caps.has_restart


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate(
        "SC-7",
        a_lost_plan_is_tried_again_by_half,
        Happening.PLANNED,
        Happening.ROLLED_BACK,
        needs=("planned",),
        is_observable=_recovers,
        only_with=("retried rows",),
    ),
    predicate("SC-7", requests_lost_twice_end, Happening.ABANDONED, is_observable=_recovers),
    predicate("SC-5", errors_say_why, Happening.DELIVERED, only_with=("told ends",)),
)
