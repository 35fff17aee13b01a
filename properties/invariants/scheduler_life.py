"""The life of a request: transitions, ends, aborts, deadlines, quiescence, counters.

Judges SC-4 to SC-6, SC-11, SC-12, SC-14 and SC-15; never what a single plan may be (`scheduler_plan`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter, itemgetter
from typing import Final, cast

from engine_under_test.caps import ReferenceModel
from engine_under_test.events import Counters
from engine_under_test.types import FinishReason, Output, RowId, SequenceSnapshot, Snapshot, Status
from properties.invariants.predicate import SEQUENCES, Predicate, blocks_named, predicate, row_named, violation
from properties.moment import ChoiceFacts, Happening, Moment
from properties.recount import differences
from properties.verdict import Violation


def transitions_are_legal(moment: Moment) -> Violation | None:
    """SC-4: waiting -> running -> ended; back to waiting only by preemption, restart or abandon; identities only rise.

    Source: Kwon et al., SOSP 2023, section 4.5; tenstorrent vllm pull 326 (resumed requests taken for decodes).
    """
    seen = moment.view
    # who is new here, or under a new epoch, may have been another before
    for same, now in zip(seen.fresh_before, seen.fresh_now, strict=True):
        was = same if same is not None else seen.before.by_choice.get(now[:3])
        if was is None or (was.status is now.status and was.epoch == now.epoch):
            continue
        if now.epoch < was.epoch:
            return violation("SC-4", row_named(now.row_id), f"epoch {now.epoch}", f"at least {was.epoch}, as before")
        fell_back = was.status is Status.RUNNING and now.status is Status.WAITING
        excused = now.epoch > was.epoch or moment.happening in _BEGINS_AGAIN
        if was.status is Status.FINISHED or (fell_back and not excused):
            subject = row_named(now.row_id)
            return violation("SC-4", subject, f"{was.status} -> {now.status}", "a legal transition, or a new epoch")
    return None


_BEGINS_AGAIN: Final = frozenset({Happening.ABANDONED, Happening.RESTARTED})


def ended_choices_stay_ended(moment: Moment) -> Violation | None:
    """SC-4: what a target shows as live was accepted and has not ended: a terminal state is final.

    Source: lmdeploy pull 4654 (a cancel overwrote the terminal status).
    """
    shown, live = moment.view.after.choices, moment.facts.live()
    if not all(map(live.__contains__, shown)):
        strange = set(shown) - live.keys()
        request_id, choice, incarnation = min(strange)
        subject = f"request {request_id}, choice {choice} (incarnation {incarnation})"
        return violation("SC-4", subject, "live in the target", "never accepted, or ended for good")
    return None


def outputs_are_contiguous(moment: Moment) -> Violation | None:
    """SC-5: the outputs handed out together follow on each other, and nothing follows an end.

    Source: lmdeploy pull 4833 (an end published the last output again), mini-sglang pull 62.
    """
    nexts: dict[tuple[str, int, int], int | None] = {}
    for output, key, _ in moment.view.told:
        expected = nexts.get(key, output.index)
        if expected is None:
            return violation("SC-5", _named(output), f"news from index {output.index} on", "nothing behind its end")
        if output.index != expected:
            return violation("SC-5", _named(output), f"tokens from index {output.index}", f"from index {expected}")
        nexts[key] = None if output.finish_reason is not None else output.index + len(output.token_ids)
    return None


def nobody_vanishes_without_an_end(moment: Moment) -> Violation | None:
    """SC-5: at a drain every accepted choice has had its terminal news.

    Source: sglang #36333 (an abort that reached nobody), vllm pull 15043.
    """
    for request_id, choice, incarnation in moment.facts.live():
        if (request_id, choice, incarnation) not in moment.view.after.by_choice:
            subject = f"request {request_id}, choice {choice} (incarnation {incarnation})"
            return violation("SC-5", subject, "gone from the target without an end", "exactly one terminal event")
    return None


def aborted_requests_are_not_planned(moment: Moment) -> Violation | None:
    """SC-6: a plan names live choices only: none whose abort was acknowledged, none that ended.

    Source: sglang pull 18705 (an abort did not look into every queue).
    """
    for row, facts in zip(moment.view.planned.rows, moment.view.planned_facts, strict=True):
        if facts is None or facts.finish_reason is not None:
            choice = moment.facts.choice(RowId(*row))
            found = "planned" if choice is None else f"planned behind its end ({choice.finish_reason})"
            return violation("SC-6", row_named(row), found, "no plan names it")
    return None


def aborted_requests_leave_at_once(moment: Moment) -> Violation | None:
    """SC-6: behind an acknowledged abort no choice of the request is live, nor owns a block.

    Source: mini-sglang pull 111, vllm pull 51629 (an abort of n > 1 left its parent's state behind).
    """
    if moment.request is None or not moment.is_accepted:
        return None
    for s in moment.view.after.sequences:
        if s.request_id == moment.request.request_id:
            return violation("SC-6", row_named(s.row_id), f"{s.status} behind its abort", "ended")
    return None


def quarantine_ends_with_its_fence(moment: Moment) -> Violation | None:
    """SC-6: released blocks come back when their last use has ended: none waits for a plan that has settled.

    Source: vllm-ascend #16315 (deferred frees that came too late for whoever needed them).
    """
    late = {b: p for b, p in moment.after.quarantined.items() if p not in moment.after.unsettled}
    if late:
        plan_id = min(late.values())
        return violation("SC-6", blocks_named(late), f"quarantined, plan {plan_id} has settled", "free")
    return None


def a_drained_target_holds_nothing(moment: Moment) -> Violation | None:
    """SC-11: with no live request nothing is owned, reserved, quarantined, in flight or pinned.

    Source: mini-sglang #149 (an integrity check that was an empty stub), LMCache pull 3884.
    """
    return held_at_rest(moment.after, counts_tables=moment.caps.reference_model is ReferenceModel.PER_TABLE)


def held_at_rest(after: Snapshot, counts_tables: bool = True) -> Violation | None:
    """SC-11 of one snapshot. ``counts_tables``: reference counts count those that are here."""
    leftovers = (
        ("live choices", [row_named(s.row_id) for s in after.sequences()]),
        ("reserved blocks", list(after.reservations)),
        ("plans in flight", after.plans),
        ("unsettled plans", after.unsettled),
        ("quarantined blocks", sorted(after.quarantined)),
        ("pinned blocks", after.pinned),
        ("blocks of the swap pool", after.host_blocks),
    )
    for what, left in leftovers:
        if left:
            return violation("SC-11", what, ", ".join(map(str, left)), "none behind a drain")
    if after.ref_counts is not None and counts_tables and any(after.ref_counts):
        counted = [block for block, count in enumerate(after.ref_counts) if count]
        return violation("SC-11", blocks_named(counted), "with a holder", "count 0 behind a drain")
    return None


def choices_end_where_they_should(moment: Moment) -> Violation | None:
    """SC-12: max_tokens, min_tokens and stop tokens end a choice exactly where they say.

    Source: mini-sglang pull 62 (the last token was dropped), vllm pull 26317 (a stop check without min_tokens).
    """
    last = {key: (output, choice) for output, key, choice in moment.view.told}
    for output, choice in last.values():
        found = None if choice is None else _misplaced_end(moment, choice, output)
        if found is not None:
            return violation("SC-12", _named(output), *found)
    return None


def _misplaced_end(moment: Moment, choice: ChoiceFacts, output: Output) -> tuple[str, str] | None:
    sampling, end = choice.request.sampling, output.index + len(output.token_ids)
    reason, stops = output.finish_reason, sampling.stop_token_ids
    is_due = reason is FinishReason.LENGTH if end == sampling.max_tokens else reason is None and end < sampling.max_tokens
    if is_due and (not stops or _is_free_of(stops, choice.emitted[: output.index], output.token_ids)):
        return None
    tokens = (*choice.emitted[: output.index], *output.token_ids) if stops else output.token_ids
    at = _first_stop(tokens, choice, moment.caps.vocab_size) if stops else None
    most = sampling.max_tokens
    broken = (
        at is not None and at < sampling.min_tokens,
        at is not None and at < end - 1,
        end > most,
        reason is None and at is not None,
        reason is None and end == most,
        reason is FinishReason.LENGTH and end != most,
        reason is FinishReason.STOP and not set(stops).intersection(tokens[-1:]),
    )
    if not any(broken):
        return None
    sentences = (
        (f"stop token at index {at}", f"none before {sampling.min_tokens} tokens"),
        (f"{end} tokens", f"an end at the stop token at index {at}"),
        (f"{end} tokens", f"at most max_tokens, {most}"),
        (f"no end at the stop token at index {at}", "an end by stop"),
        (f"no end behind {end} tokens", f"an end: max_tokens is {most}"),
        (f"an end by length behind {end} tokens", f"max_tokens, {most}"),
        (f"an end by stop behind tokens {tokens[-1:]}", f"one of the stop tokens {sorted(stops)}"),
    )
    return sentences[broken.index(True)]


def _is_free_of(stops: tuple[int, ...], *tokens: Iterable[int]) -> bool:
    return all(map(frozenset(stops).isdisjoint, tokens))


def _first_stop(tokens: tuple[int, ...], choice: ChoiceFacts, vocab_size: int) -> int | None:
    """Where the first stop token stands; one before min_tokens counts unless there is nothing else to emit."""
    sampling = choice.request.sampling
    stops = set(sampling.stop_token_ids)
    if stops.isdisjoint(tokens):
        return None
    first = 0 if len(stops) < vocab_size else sampling.min_tokens
    return next((index for index, token in enumerate(tokens) if token in stops and index >= first), None)


_totals_of = attrgetter(*Counters.__dataclass_fields__)


def counters_equal_a_recount(moment: Moment) -> Violation | None:
    """SC-14: every counter equals what the events of the run add up to.

    Source: sglang #35270 (shared pages counted twice), production-stack pull 1072 (in-flight counters leaked).
    """
    assert moment.counters is not None
    assert moment.recount is not None
    if _totals_of(moment.counters) == _totals_of(moment.recount):
        return None
    if wrong := differences(moment.counters, moment.recount):
        return violation("SC-14", "counters", wrong[0], "each counter equal to its recount", *wrong[1:])
    return None


_row_of = cast("Callable[[SequenceSnapshot], RowId]", itemgetter(slice(4)))  # equal to its `row_id`, and quicker


def tables_equal_a_recount(moment: Moment) -> Violation | None:
    """SC-14: each choice owns the blocks that the events of the run say, in the order of its table; at audits, nobody else any.

    Source: engine_under_test/events.py, EventKind ("every transition of a request, a plan or a block").
    """
    told, seen = moment.told_tables, moment.view
    assert told is not None
    for s in seen.after.sequences if moment.is_audit else seen.fresh_now:
        if told.get(_row_of(s), ()) != s.table:
            expected = f"{told.get(s.row_id, ())}, by the events"
            return violation("SC-14", f"table of {row_named(s.row_id)}", s.table, expected)
    if moment.is_audit:
        for row in told.keys() - seen.after.by_row.keys():
            return violation("SC-14", f"table of {row_named(row)}", "no such choice", f"{told[row]}, by the events")
    return None


def deadlines_are_kept(moment: Moment) -> Violation | None:
    """SC-15: a request past its deadline ends within the stated number of iterations.

    Source: the target's `deadline_slack`; vllm #21570 (an expiry that one side did not keep).
    """
    late = moment.facts.iterations_past_deadline()
    if late and (worst := max(late.values())) > moment.caps.deadline_slack:
        key = max(late, key=late.__getitem__)
        found, expected = f"live {worst} iterations behind its deadline", f"at most {moment.caps.deadline_slack}, as stated"
        return violation("SC-15", f"request {key[0]}, choice {key[1]}", found, expected)
    return None


def deadline_ends_are_due(moment: Moment) -> Violation | None:
    """SC-15: an end by deadline has a deadline, and it has passed.

    Source: engine_under_test/types.py, Request.deadline_s.
    """
    for output, _, choice in moment.view.told:
        if output.finish_reason is FinishReason.DEADLINE and choice is not None:
            deadline, now = choice.request.deadline_s, moment.facts.now()
            if deadline is None or now < deadline:
                return violation("SC-15", _named(output), f"ended by deadline at {now} s", f"its deadline, {deadline} s")
    return None


def _named(output: Output) -> str:
    return f"request {output.request_id}, choice {output.choice} (incarnation {output.incarnation})"


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("SC-6", aborted_requests_are_not_planned, Happening.PLANNED, needs=("planned",)),
    predicate(
        "SC-6",
        aborted_requests_leave_at_once,
        Happening.ABORTED,
        needs=("request",),
        is_observable=lambda caps: caps.has_abort,
    ),
    predicate("SC-6", quarantine_ends_with_its_fence, Happening.POLLED, is_observable=lambda caps: caps.has_fences),
    predicate("SC-4", transitions_are_legal, reads=SEQUENCES),
    predicate("SC-4", ended_choices_stay_ended),
    predicate("SC-5", outputs_are_contiguous, Happening.DELIVERED),
    predicate("SC-5", nobody_vanishes_without_an_end, Happening.DRAINED),
    predicate("SC-11", a_drained_target_holds_nothing, Happening.DRAINED),
    predicate("SC-12", choices_end_where_they_should, Happening.DELIVERED),
    predicate("SC-14", tables_equal_a_recount, needs=("told_tables",), is_observable=lambda caps: caps.has_events),
    predicate("SC-14", counters_equal_a_recount, needs=("counters", "recount"), is_observable=lambda caps: caps.has_events),
    predicate("SC-15", deadlines_are_kept, Happening.PLANNED, is_observable=lambda caps: caps.has_deadlines),
    predicate(
        "SC-15",
        deadline_ends_are_due,
        Happening.DELIVERED,
        is_observable=lambda caps: caps.has_deadlines,
        only_with=("told ends",),
    ),
)
