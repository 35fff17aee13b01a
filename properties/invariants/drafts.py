"""What drafts may be, and what may be left of those that fell (KV-5, SC-2, SC-12, SC-13, ST-1)."""

from __future__ import annotations

from typing import Final

from engine_under_test.caps import Caps
from engine_under_test.types import Plan
from properties.invariants.predicate import Predicate, predicate, row_named, violation
from properties.moment import Happening, Moment
from properties.verdict import Violation


def drafts_change_no_token(moment: Moment) -> Violation | None:
    """ST-1: the tokens of a row with drafts are those that the law gives one after the other: drafts that stand, and one more.

    Source: Leviathan, Kalman, Matias, ICML 2023, arXiv 2211.17192; vllm pull 54282.
    """
    assert moment.execution is not None
    plan, result, expected = moment.execution.step.plan, moment.execution.result, moment.execution.lawful.tokens
    for row, (num, found, due) in enumerate(zip(_num_drafts(plan), result.tokens, expected, strict=True)):
        if num and found != due:
            subject = f"{row_named(plan.row_id(row))} with {num} drafts"
            return violation("ST-1", subject, f"tokens {list(found)}", f"{list(due)}, the law's")
    return None


def drafts_stay_within_their_width(moment: Moment) -> Violation | None:
    """SC-2: a row has at most as many drafts as the target states, and only behind the token that it computes to go on.

    Source: engine_under_test/caps.py, Caps.
    """
    assert moment.planned is not None
    plan, most = moment.planned.plan, moment.caps.max_drafts
    for row, num in enumerate(plan.num_drafts):
        if num > most:
            return violation("SC-2", row_named(plan.row_id(row)), f"{num} drafts", f"at most {most}")
        if num and not (plan.samples[row] and not plan.num_pending[row] and plan.num_tokens[row] == num + 1):
            found = f"{num} drafts of {plan.num_tokens[row]} input tokens"
            return violation("SC-2", row_named(plan.row_id(row)), found, "one known token before them, sampling")
    return None


def drafts_reach_no_further_than_the_choice(moment: Moment) -> Violation | None:
    """SC-12: no draft stands where the choice, with all that it may say, has no place any more.

    Source: vllm pull 44954 (a drafter near the longest length).
    """
    assert moment.planned is not None
    plan = moment.planned.plan
    for row, (num, end) in enumerate(zip(_num_drafts(plan), moment.view.planned.ends, strict=True)):
        request = plan.requests[row]
        most = len(request.prompt) + request.sampling.max_tokens - 1
        if num and end > most:
            found = f"drafts up to position {end}"
            return violation("SC-12", row_named(plan.row_id(row)), found, f"up to {most}, as max_tokens says")
    return None


def fallen_drafts_keep_no_block(moment: Moment) -> Violation | None:
    """KV-5: behind a row with drafts, what is allocated is what is committed, in whole blocks.

    Source: vllm pull 43650 (a block of look-ahead that was not given back).
    """
    assert moment.landed is not None
    plan, size = moment.landed.plan, moment.after.block_size
    if plan.plan_id in moment.after.plans or plan.generation != moment.after.generation:
        return None
    for num, s in zip(_num_drafts(plan), moment.view.landed_after, strict=True):
        if num and s is not None and not s.plans and s.allocated_len != -(-s.committed_len // size) * size:
            found = f"allocated {s.allocated_len} for {s.committed_len} committed"
            return violation("KV-5", row_named(s.row_id), found, "blocks for what is committed, and no more")
    return None


def drafts_take_no_block_that_others_want(moment: Moment) -> Violation | None:
    """SC-9: no block is taken for drafts alone while anybody waits, nor one that those who run may want next: speculation
    is the cause of no preemption.

    Source: vllm pull 99 of local-inference-lab (slots ahead took KV that others could have used); scheduling/scheduler.py.
    """
    assert moment.planned is not None
    plan, reservation, size = moment.planned.plan, moment.planned.reservation, moment.after.block_size
    for row, (num, end) in enumerate(zip(_num_drafts(plan), moment.view.planned.ends, strict=True)):
        num_before = len(reservation.tables[row]) - len(reservation.new_blocks[row])
        if not num or -(-end // size) <= max(num_before, -(-(end - num) // size)):
            continue
        if moment.after.waiting:
            found = f"a block for drafts, while {row_named(moment.after.waiting[0].row_id)} waits"
            return violation("SC-9", row_named(plan.row_id(row)), found, "none: it takes room from who waits")
        free, running = len(moment.after.free), len(moment.after.running)
        if free < running:
            found = f"a block for drafts, {free} left for {running} who run"
            return violation("SC-9", row_named(plan.row_id(row)), found, "one left for each of them")
    return None


def a_second_try_has_no_drafts(moment: Moment) -> Violation | None:
    """SC-7: the rows of a lost plan are tried again without drafts: these may have been what broke it.

    Source: engine_under_test/drafting.py; `FinishReason.ERROR` in engine_under_test/types.py.
    """
    lost = tuple(moment.facts.retried)
    assert moment.planned is not None
    plan = moment.planned.plan
    if (
        not lost
        or not any(plan.num_drafts)
        or not {row[:3] for row in moment.view.planned.rows} <= {*lost[: -(-len(lost) // 2)]}
    ):
        return None
    return violation(
        "SC-7", f"plan {plan.plan_id}, behind a lost one", f"{sum(plan.num_drafts)} drafts", "none in a second try"
    )


def proposers_keep_what_stands(moment: Moment) -> Violation | None:
    """SC-13: what a proposer keeps of a row is the beginning of its tokens, and nothing of a row that is not there any more.

    Source: vllm pull 46899 (drafts that survived a step in which their request was not planned), sglang #36855.
    """
    assert moment.kept_drafts is not None
    if moment.strange_drafts:
        return violation("SC-13", "the proposer", moment.strange_drafts[0], "what stands of each row, as it was told")
    live = moment.view.after.by_row
    if gone := [row for row in moment.kept_drafts if row not in live]:
        row = min(gone)
        return violation("SC-13", row_named(row), "kept by the proposer", "nothing: its epoch is over")
    return None


def _num_drafts(plan: Plan) -> tuple[int, ...]:
    return plan.num_drafts or (0,) * plan.num_rows


def _speculates(caps: Caps) -> bool:
    return caps.max_drafts > 0


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate(
        "ST-1",
        drafts_change_no_token,
        Happening.LANDED,
        needs=("execution",),
        is_observable=_speculates,
        only_with=("drafts",),
    ),
    predicate(
        "SC-2",
        drafts_stay_within_their_width,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=_speculates,
        only_with=("drafts",),
    ),
    predicate(
        "SC-12",
        drafts_reach_no_further_than_the_choice,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=_speculates,
        only_with=("drafts",),
    ),
    predicate(
        "KV-5",
        fallen_drafts_keep_no_block,
        Happening.LANDED,
        needs=("landed",),
        is_observable=_speculates,
        only_with=("drafts",),
    ),
    predicate(
        "SC-9",
        drafts_take_no_block_that_others_want,
        Happening.PLANNED,
        needs=("planned",),
        is_observable=_speculates,
        only_with=("drafts",),
    ),
    predicate(
        "SC-7",
        a_second_try_has_no_drafts,
        Happening.PLANNED,
        Happening.ROLLED_BACK,
        needs=("planned",),
        is_observable=_speculates,
        only_with=("retried rows",),
    ),
    predicate("SC-13", proposers_keep_what_stands, needs=("kept_drafts",), is_observable=_speculates),
)
