"""Who may enter and who must leave: seats, needless victims, returning victims, the declared order (SC-2, SC-7 to SC-9).

What single rows of a plan may be is judged in `scheduler_plan`.
"""

from __future__ import annotations

from typing import Final

from engine_under_test.caps import Caps, DeclaredOrder, ReferenceModel, VictimSet
from engine_under_test.types import SequenceSnapshot
from properties.invariants.predicate import Predicate, predicate, row_named, violation
from properties.invariants.reading import ChoiceKey, plan_reading
from properties.moment import Happening, Moment
from properties.verdict import Violation


def running_choices_have_seats(moment: Moment) -> Violation | None:
    """SC-2: no more choices run than the stated number of sequences.

    Source: nano-vllm pull 265 (the limit counted only the requests chosen in this step).
    """
    running, most = len(moment.after.running), moment.caps.max_num_seqs
    if running > most:
        return violation("SC-2", "running choices", running, f"at most {most}")
    return None


def nobody_is_preempted_needlessly(moment: Moment) -> Violation | None:
    """SC-9: no further victim is taken while free and quarantined blocks cover the next token of everybody who runs.

    The one judged is the victim taken last, the first in order; what the others gave up is counted as coming.
    Source: vllm-ascend #16315 (deferred frees were not counted, and everybody was preempted).
    """
    gone, before = moment.view.victims, moment.before
    counts, running = before.ref_counts, before.running
    if not gone or counts is None:
        return None
    last, others = gone[0], gone[1:]
    left: dict[int, int] = {}
    for victim in others:
        for block in (*victim.table, *victim.reserved):
            left[block] = left.get(block, counts[block]) - 1
    available = len(before.free) + len(before.quarantined) + sum(count == 0 for count in left.values())
    need = sum(_needs_block(s, counts, before.block_size) for s in running if s not in others)
    if need <= available:
        found, expected = f"preempted while {available} blocks are free or coming and {need} needed", "kept"
        return violation("SC-9", row_named(last.row_id), found, expected)
    return None


def _needs_block(s: SequenceSnapshot, counts: tuple[int, ...], block_size: int) -> bool:
    """Whether its next token needs a new block: it has no slot left, or the slot lies in a block that others share."""
    if s.scheduled_len >= s.allocated_len:
        return True
    number, offset = divmod(s.scheduled_len, block_size)
    blocks = s.table + s.reserved
    return offset > 0 and number < len(blocks) and counts[blocks[number]] > 1


def victims_return_when_their_plans_have_landed(moment: Moment) -> Violation | None:
    """SC-9: a preempted choice is not planned again while a plan of its older epoch is in flight.

    Source: vllm pull 47900 (a frame launched before the preemption was applied to the request that had resumed).
    """
    assert moment.planned is not None
    if not moment.in_flight or not any(moment.planned.plan.epochs):
        return None
    flights = [plan_reading(step.plan) for step in moment.in_flight]
    older = {row[:3]: (row[3], flight.plan.plan_id) for flight in flights for row in flight.rows}
    for row in moment.view.planned.rows:
        epoch, plan_id = older.get(row[:3], (row[3], 0))
        if epoch < row[3]:
            found = f"planned while plan {plan_id} of its epoch {epoch} is in flight"
            return violation("SC-9", row_named(row), found, "waiting until that has landed")
    return None


def preemptions_lead_somewhere(moment: Moment) -> Violation | None:
    """SC-7: a choice emits a token before it has been preempted more often in a row than stated, faults apart.

    Source: vllm #25538 (a long prompt resumed on the blocks of one chunk, and preempted at the next).
    """
    bound, counts = moment.caps.preemption_bound, moment.facts.preemptions_in_a_row()
    if bound is None or not counts or moment.has_fault or max(counts.values()) <= bound:
        return None
    key = max(counts, key=counts.__getitem__)
    found = f"preempted {counts[key]} times without a token between"
    return violation("SC-7", f"request {key[0]}, choice {key[1]}", found, f"at most {bound}, the stated bound")


def the_declared_order_is_kept(moment: Moment) -> Violation | None:
    """SC-8: nobody enters before a waiting choice that is more urgent, unless it has come of age, or had entered before and its
    plan was lost, or refused its blocks and undone: the second try of that comes first. Who waits for a load, or a slot for its
    adapter, is passed over.

    Source: lightllm pull 706 (the selected policy was overwritten by the default).
    """
    left = {_key(s) for s in moment.after.waiting}
    entered = [s for s in moment.before.waiting if _key(s) not in left and _key(s) in moment.view.after.by_choice]
    if not left or not entered:
        return None
    live = moment.facts.live()
    excused = {*moment.facts.came_of_age(), *moment.facts.retried, *moment.facts.perhaps_retried}
    rank = {key: (facts.request.priority, number) for number, (key, facts) in enumerate(live.items())}
    stayed = {_key(s) for s in moment.before.waiting}.intersection(left, rank)
    stayed.difference_update([row[:3] for row in moment.after.loading])
    stayed -= moment.facts.adapters.lacking
    for s in entered:
        key = _key(s)
        if key in rank and key not in excused:
            passed = [other for other in stayed if rank[other] < rank[key] and other[::2] != key[::2]]
            if passed:
                first = min(passed, key=rank.__getitem__)
                return violation("SC-8", row_named(s.row_id), f"planned before request {first[0]}", "the declared order")
    return None


def who_came_of_age_stays_first(moment: Moment) -> Violation | None:
    """SC-8: while one waits that was overtaken as often as stated before this plan, nobody enters that came later, whatever
    befell it since: preempted, begun anew, or without a slot for its adapter. A lost plan's second try comes first.

    Source: `Sequence.is_aged` in engine_under_test/sequence.py; vllm #25538 (whoever was put out began at the end again).
    """
    first = moment.facts.of_age()
    if not first:
        return None
    loading = {row[:3] for row in moment.after.loading}
    stayed = {_key(s) for s in moment.before.waiting}.intersection(first, map(_key, moment.after.waiting)) - loading
    if not stayed:
        return None
    place = {key: number for number, key in enumerate(moment.facts.live())}
    left, excused = {_key(s) for s in moment.after.waiting}, {*moment.facts.retried, *moment.facts.perhaps_retried}
    for s in moment.before.waiting:
        key = _key(s)
        if key not in left and key in moment.view.after.by_choice and key in place and key not in excused:
            passed = [other for other in stayed if place[other] < place[key] and other[::2] != key[::2]]
            if passed:
                return violation(
                    "SC-8", row_named(s.row_id), f"planned before request {passed[0][0]}", "that one first: of age"
                )
    return None


def what_victims_gave_up_is_for_those_who_run(moment: Moment) -> Violation | None:
    """SC-9: nobody enters with a plan for which somebody was preempted.

    Source: `View.may_admit` in engine_under_test/scheduling/scheduler.py; vllm #25538 (who was put out came back on what it had
    given up).
    """
    step = moment.planned
    assert step is not None
    if not step.preempted:
        return None
    running = {_key(s) for s in moment.before.running}
    running.difference_update([row[:3] for row in step.preempted])
    began = [row for row in moment.view.planned.rows if row[:3] not in running]
    if began:
        found = f"entered with the plan for which {row_named(step.preempted[0])} was preempted"
        return violation("SC-9", row_named(began[0]), found, "what was given up is for those who run")
    return None


def _key(s: SequenceSnapshot) -> ChoiceKey:
    return (s.request_id, s.choice, s.incarnation)


def _preempts_in_order(caps: Caps) -> bool:
    return caps.victims is VictimSet.LAST_IN_ORDER and caps.reference_model is ReferenceModel.PER_TABLE


def _by_priority(caps: Caps) -> bool:
    return caps.order is DeclaredOrder.PRIORITY


def _preempts(caps: Caps) -> bool:
    return caps.victims is not VictimSet.NONE


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("SC-2", running_choices_have_seats, Happening.PLANNED, is_observable=lambda caps: caps.has_running_bound),
    predicate(
        "SC-9",
        nobody_is_preempted_needlessly,
        Happening.PLANNED,
        needs=("before.ref_counts",),
        is_observable=_preempts_in_order,
        only_with=("victims",),
    ),
    predicate(
        "SC-9",
        victims_return_when_their_plans_have_landed,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=_preempts,
        only_with=("older epochs",),
    ),
    predicate(
        "SC-7",
        preemptions_lead_somewhere,
        Happening.PLANNED,
        needs=("caps.preemption_bound",),
        is_observable=lambda caps: caps.preemption_bound is not None,
    ),
    predicate("SC-8", the_declared_order_is_kept, Happening.PLANNED, is_observable=_by_priority),
    predicate("SC-8", who_came_of_age_stays_first, Happening.PLANNED, is_observable=_by_priority),
    predicate(
        "SC-9",
        what_victims_gave_up_is_for_those_who_run,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=lambda caps: caps.is_closed_behind_victims,
        only_with=("preempted rows",),
    ),
)
