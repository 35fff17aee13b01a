"""Results meet the rows they belong to, and late ones nobody (SC-1, AS-3, AS-4)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from engine_under_test.events import EventKind
from engine_under_test.types import RowId, SequenceSnapshot
from properties.invariants.predicate import Predicate, predicate, row_named, violation
from properties.invariants.reading import ChoiceKey, RowKey
from properties.moment import Happening, Moment
from properties.verdict import Violation

Progress = tuple[int, int]  # slots committed in all, tokens made visible now


def results_are_applied_in_plan_order(moment: Moment) -> Violation | None:
    """SC-1: a plan leaves flight only with every plan launched before it.

    Source: transformers pull 45943 (results put in order by counters that did not start at zero).
    """
    before, applied = moment.before.plans, moment.view.applied
    if applied != list(before[: len(applied)]):
        found, expected = f"plans {applied} applied", f"the oldest of {list(before)} first"
        return violation("SC-1", "results", found, expected)
    return None


def results_move_their_own_rows_only(moment: Moment) -> Violation | None:
    """SC-1: each row of the plan advances by its own tokens, every other choice stands still.

    Source: vllm pull 53597 and transformers pull 45943 (an answer taken for another one's).
    """
    moved = _moves_of_result(moment)
    if moved is None:
        return None
    seen = moment.view
    num_moved = 0
    for was, now in zip(seen.fresh_before, seen.fresh_now, strict=True):
        if was is None:
            continue
        expected = moved.get(now[:4])
        if expected is not None:
            num_moved += 1
        if (now.committed_len, now.visible_len - was.visible_len) != (expected or (was.committed_len, 0)):
            return _moved_wrongly(was, now, moved)
    if num_moved == len(moved):
        return None
    before, after = seen.before.by_row, seen.after.by_row
    for row, expected in moved.items():  # those of the plan that are as they were
        same = before.get(row)
        if same is not None and same is after.get(row) and expected != (same.committed_len, 0):
            return _moved_wrongly(same, same, moved)
    return None


def _moved_wrongly(was: SequenceSnapshot, now: SequenceSnapshot, moved: Mapping[RowKey, Progress]) -> Violation:
    found, expected = (now.committed_len, now.visible_len - was.visible_len), moved.get(now[:4], (was.committed_len, 0))
    return violation("SC-1", row_named(was.row_id), _shown(found), f"{_shown(expected)}, as plan and result say")


def outputs_are_the_tokens_of_their_rows(moment: Moment) -> Violation | None:
    """SC-1: what a user is told are the tokens that the results held for this very choice, at their indices.

    Source: transformers pull 45943.
    """
    for output, _, choice in moment.view.told:
        if choice is not None:
            expected = tuple(choice.emitted[output.index : output.index + len(output.token_ids)])
            if output.token_ids == expected:
                continue
        subject = f"request {output.request_id}, choice {output.choice} (incarnation {output.incarnation})"
        if choice is None:
            return violation("SC-1", subject, "news", "nothing: it was never accepted")
        if output.token_ids != expected:
            return violation("SC-1", subject, f"tokens {output.token_ids} from index {output.index}", f"{expected}")
    return None


def late_rows_are_dropped(moment: Moment) -> Violation | None:
    """AS-3: the result of a row that was aborted, preempted or abandoned emits, publishes and owns nothing.

    Source: vllm pull 47900, TensorRT-LLM pull 10943.
    """
    for row, has_life in _late_rows(moment) if moment.view.late_rows else ():
        if has_life and (found := _effect_of(moment, row)):
            return violation("AS-3", row_named(row), found, "dropped: its epoch is over")
    return None


def older_lives_are_refused(moment: Moment) -> Violation | None:
    """AS-4: the result of an older incarnation or generation moves nobody, whoever bears the identifier now.

    Source: vllm pull 15043 (an identifier used again met the state of its earlier life), sglang #40125.
    """
    for row, has_life in _late_rows(moment) if moment.view.late_rows else ():
        if not has_life and (found := _effect_of(moment, row)):
            return violation("AS-4", row_named(row), found, "refused: its life is over")
    return None


def stale_results_change_nothing(moment: Moment) -> Violation | None:
    """AS-4: a result of a plan that is not in flight is dropped whole.

    Source: vllm pull 47900; vllm pull 24268 (a completion and an expiry for one request).
    """
    before, after = moment.before, moment.after
    for name in ("plans", "running", "waiting", "reservations", "cached", "free", "quarantined", "ref_counts"):
        one, other = getattr(before, name), getattr(after, name)
        if one != other and not (name in ("free", "quarantined") and before.unsettled != after.unsettled):
            return violation("AS-4", f"{name} behind a stale result", other, f"{one}, as before")
    for event in moment.events:
        if event.kind in _EFFECTS:
            return violation("AS-4", "a stale result", f"the event {event.kind}", "dropped: no such plan is in flight")
    return None


_EFFECTS: Final = frozenset({EventKind.EMITTED, EventKind.PUBLISHED, EventKind.OWNED, EventKind.COMMITTED})


def _moves_of_result(moment: Moment) -> dict[tuple[str, int, int, int], Progress] | None:
    """What may move, by row; None if results that had waited were applied too."""
    assert moment.result is not None
    seen = moment.view
    if not seen.applied:
        return {}
    if moment.landed is None or seen.applied != [moment.landed.plan.plan_id]:
        return None
    plan = seen.landed
    tokens = moment.result.tokens
    return dict(zip(plan.rows, zip(plan.confirmed(tokens), map(len, tokens), strict=True), strict=True))


def _late_rows(moment: Moment) -> Iterator[tuple[RowId, bool]]:
    """Rows of the result that were no longer live when it came; true if their life went on under another epoch or had just
    ended, false if the identifier bears another life or the engine another generation."""
    assert moment.result is not None
    lives = {(rid, choice): incarnation for rid, choice, incarnation in moment.view.before.choices}
    for row in moment.view.late_rows:
        is_same_life = lives.get((row.request_id, row.choice), row.incarnation) == row.incarnation
        yield row, is_same_life and moment.result.generation == moment.before.generation


def _effect_of(moment: Moment, row: RowId) -> str:
    """What the row did though it was late; empty if nothing."""
    for event in moment.events:
        if event.kind in _EFFECTS and event.row == row:
            return f"the event {event.kind}"
    before, after = moment.view.before.by_choice, moment.view.after.by_choice
    moved = _moves_of_result(moment)
    if moved is None:
        return ""
    keys: list[ChoiceKey] = [key for key in before if key[0] == row.request_id and key[1] == row.choice]
    for key in keys:
        was, now = before[key], after.get(key)
        if now is None:
            return f"the end of {row_named(was.row_id)}"
        found = (now.committed_len, now.visible_len - was.visible_len)
        if found != moved.get(was.row_id, (was.committed_len, 0)):
            return f"{_shown(found)} for {row_named(was.row_id)}"
    return ""


def _shown(progress: Progress) -> str:
    return f"{progress[0]} slots committed, {progress[1]} new tokens"


PREDICATES: Final[tuple[Predicate, ...]] = (
    predicate("AS-4", stale_results_change_nothing, Happening.STALE),
    predicate("AS-4", older_lives_are_refused, Happening.LANDED, needs=("result",), only_with=("late rows",)),
    predicate("AS-3", late_rows_are_dropped, Happening.LANDED, needs=("result",), only_with=("late rows",)),
    predicate("SC-1", results_are_applied_in_plan_order, Happening.LANDED),
    predicate("SC-1", results_move_their_own_rows_only, Happening.LANDED, needs=("result",)),
    predicate("SC-1", outputs_are_the_tokens_of_their_rows, Happening.DELIVERED),
)
