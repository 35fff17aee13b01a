"""Counts what a run reached with drafts: which stood, what befell rows that had some, and what they were cut to.

Owns this count, from the moments of a World. Never chooses an operation and never judges.
"""

from __future__ import annotations

from engine_under_test.types import PlannedStep, RowId
from models.reach import Reach, ReachCounts
from properties.moment import Happening, Moment

DRAFT_REACHES = (
    Reach.DRAFTS_NONE,
    Reach.DRAFTS_SOME,
    Reach.DRAFTS_ALL,
    Reach.DRAFTS_STOPPED,
    Reach.DRAFTS_LATE,
    Reach.DRAFTS_LOST,
    Reach.DRAFTS_CUT,
    Reach.DRAFTS_PASSED_OVER,
    Reach.DRAFTS_IN_NEW_BLOCK,
    Reach.DRAFTS_AHEAD,
)


class DraftReach(ReachCounts):
    """The count. Sees moments in order."""

    def see(self, moment: Moment) -> None:
        """One moment; most hold nothing of drafts."""
        if not moment.caps.max_drafts:
            return
        match moment.happening:
            case Happening.PLANNED if moment.planned is not None:
                self._planned(moment, moment.planned)
            case Happening.LANDED if moment.landed is not None and moment.landed.plan.num_drafts:
                self._landed(moment, moment.landed)
            case Happening.ABANDONED:
                for step in moment.abandoned:
                    self._count(Reach.DRAFTS_LOST, sum(map(bool, step.plan.num_drafts)))
            case _:
                pass

    def _planned(self, moment: Moment, step: PlannedStep) -> None:
        plan, size = step.plan, moment.caps.block_size
        rows = plan.row_ids()
        kept, num_drafts = moment.kept_drafts or {}, dict(zip(rows, plan.num_drafts or (0,) * len(rows), strict=True))
        after = moment.view.after.by_row
        for row, num_kept in kept.items():
            sequence = after.get(row)
            if sequence is None:
                continue
            proposed = num_kept - sequence.visible_len
            if row in num_drafts:
                is_next = plan.starts[rows.index(row)] == sequence.visible_len - 1
                self._count(Reach.DRAFTS_CUT, proposed > num_drafts[row] and is_next)
            else:
                self._count(Reach.DRAFTS_PASSED_OVER, proposed > 0 and not sequence.plans)
        for number, num in enumerate(num_drafts.values()):
            end = plan.starts[number] + plan.num_tokens[number]
            self._count(Reach.DRAFTS_IN_NEW_BLOCK, num > 0 and -(-end // size) > -(-(end - num) // size))
        if plan.num_drafts and moment.before.plans:
            self._count(Reach.DRAFTS_AHEAD)

    def _landed(self, moment: Moment, step: PlannedStep) -> None:
        plan, result = step.plan, moment.result
        if result is None or plan.plan_id in moment.after.plans or plan.generation != moment.after.generation:
            return
        before = moment.view.before.by_row
        for row, num, tokens in zip(plan.row_ids(), plan.num_drafts, result.tokens, strict=True):
            if num and row in before:
                stands = len(tokens) - 1
                name = Reach.DRAFTS_NONE if stands == 0 else Reach.DRAFTS_ALL if stands == num else Reach.DRAFTS_SOME
                self._count(name)
                self._count(Reach.DRAFTS_STOPPED, self._was_cut(moment, row, before[row].visible_len + len(tokens)))
            elif num:
                self._count(Reach.DRAFTS_LATE)

    def _was_cut(self, moment: Moment, row: RowId, length: int) -> bool:
        """The choice ended before the last token that was verified."""
        choice = moment.facts.choice(row)
        return choice is not None and len(choice.request.prompt) + len(choice.emitted) < length
