"""Counts what a run reached with grammars: how their rows ended, what befell them, and which drafts of theirs stood.

Owns this count, from the moments of a World. Never chooses an operation and never judges.
"""

from __future__ import annotations

from engine_under_test.types import FinishReason, GrammarSpec, PlannedStep, RowId
from models.reach import Reach, ReachCounts
from properties.moment import Happening, Moment

GRAMMAR_REACHES = (
    Reach.GRAMMAR_COMPLETE,
    Reach.GRAMMAR_CUT,
    Reach.GRAMMAR_AHEAD,
    Reach.GRAMMAR_RESUMED,
    Reach.GRAMMAR_LOST,
    Reach.GRAMMARS_MIXED,
    Reach.GRAMMAR_DRAFTS_STAND,
    Reach.GRAMMAR_DRAFTS_FALL,
)
_ENDS = {FinishReason.STOP: Reach.GRAMMAR_COMPLETE, FinishReason.LENGTH: Reach.GRAMMAR_CUT}


class GrammarReach(ReachCounts):
    """The count. Sees moments in order."""

    def __init__(self) -> None:
        super().__init__()
        self._grammars: dict[str, GrammarSpec | None] = {}  # of requests, by the identifier's newest
        self._resumed: set[RowId] = set()

    def see(self, moment: Moment) -> None:
        """One moment; most hold nothing of grammars."""
        if not moment.caps.has_grammars:
            return
        match moment.happening:
            case Happening.ADDED if moment.request is not None and moment.is_accepted:
                self._grammars[moment.request.request_id] = moment.request.sampling.grammar
            case Happening.PLANNED if moment.planned is not None:
                self._planned(moment, moment.planned)
            case Happening.LANDED if moment.landed is not None and moment.landed.plan.num_drafts:
                self._landed(moment, moment.landed)
            case Happening.ABANDONED:
                for step in moment.abandoned:
                    self._count(Reach.GRAMMAR_LOST, len(_rows_of(step)))
            case _:
                pass
        for output in moment.outputs:
            if output.finish_reason in _ENDS and self._grammars.get(output.request_id) is not None:
                self._count(_ENDS[output.finish_reason])

    def _planned(self, moment: Moment, step: PlannedStep) -> None:
        plan, rows = step.plan, _rows_of(step)
        if not rows:
            return
        self._count(Reach.GRAMMARS_MIXED, len({request.sampling.grammar for request in plan.requests}) > 1)
        self._count(Reach.GRAMMAR_AHEAD, sum(plan.num_pending[row] for row in rows))
        for row_id in map(plan.row_id, rows):
            choice = moment.facts.choice(row_id)
            if row_id.epoch and choice is not None and choice.emitted and row_id not in self._resumed:
                self._resumed.add(row_id)
                self._count(Reach.GRAMMAR_RESUMED)

    def _landed(self, moment: Moment, step: PlannedStep) -> None:
        plan, result = step.plan, moment.result
        if result is None:
            return
        for row in _rows_of(step):
            num, num_kept = plan.num_drafts[row], len(result.tokens[row]) - 1
            self._count(Reach.GRAMMAR_DRAFTS_STAND, num > 0 and num_kept > 0)
            self._count(Reach.GRAMMAR_DRAFTS_FALL, num > 0 and num_kept < num)


def _rows_of(step: PlannedStep) -> list[int]:
    return [row for row, request in enumerate(step.plan.requests) if request.sampling.grammar is not None]
