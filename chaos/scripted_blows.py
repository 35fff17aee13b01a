"""Blows to ranks that are played: what befalls one, at which moment of its life, and who is to be named for it, and when.

Owns these values, and the seconds that a played rank takes. Never deals them (`chaos/scripted_ranks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from engine_under_test.distributed.rank_messages import Executed, Step
from engine_under_test.types import RowId

JOIN_S, BEGIN_S, SUM_S = 1.2, 0.2, 0.1
STEP_S: Final = BEGIN_S + 2 * SUM_S
_STRANGER = RowId("nobody", 0, 9, 0)


class Blow(StrEnum):
    """What happens to a rank."""

    KILL = "it is killed"
    FREEZE = "it freezes"
    REST = "it stands still for a while"
    STALL = "it computes no more, and beats"
    RAISE = "an exception"
    CUT = "its connection is cut"
    PART = "the ranks do not reach each other"
    REFUSE = "it alone refuses the plan"
    DIVERGE = "its answer differs"
    OLD = "it speaks of another generation"
    NONSENSE = "it says what no rank says"
    TWICE = "it answers twice"
    AHEAD = "it answers a step that nobody sent"
    POOL = "it holds another pool"
    UNBORN = "no process can be had"


LIES: Final = frozenset({Blow.DIVERGE, Blow.TWICE, Blow.AHEAD, Blow.POOL})  # such ranks do not agree, and must be found out


class Moment(StrEnum):
    """Where in its life."""

    BIRTH = "at its birth"
    JOINING = "while it joins"
    IDLE = "without a plan"
    BEFORE_PLAN = "before the plan"
    IN_COLLECTIVE = "inside a collective"
    BEFORE_REPLY = "before the reply"


@dataclass(frozen=True, slots=True)
class Turn:
    """One blow. ``generations``: in which it falls; ``plan_of``: whenever a plan holds a row of this request, in place of
    ``sequence``; ``order``: which rank is heard of first, second, ...; ``gap_s``: how long after each other; ``column``: of an
    answer that differs; ``rest_s``: of a rest. ``expected``: who is to be named, and when (see `RankEvent`)."""

    blow: Blow
    moment: Moment
    rank: int
    sequence: int = 1
    generations: range = range(1, 2)
    plan_of: str = ""
    order: tuple[int, ...] = ()
    gap_s: float = 0.0
    column: str = ""
    rest_s: float = 0.0
    named: int | None = None
    least_s: float = 0.0
    bound_s: float = 0.0

    @property
    def words(self) -> str:
        """As it is printed."""
        when = f"when {self.plan_of} is in it" if self.plan_of else f"of step {self.sequence}"
        what = f"{self.blow}{f' in {self.column}' if self.column else ''}{f' for {self.rest_s:g} s' if self.rest_s else ''}"
        heard = f", heard in the order {self.order} every {self.gap_s:g} s" if self.order else ""
        again = "" if len(self.generations) == 1 else ", in every generation"
        return f"{what} {self.moment} {when}{again}{heard}"

    def turn_of(self, rank: int) -> int:
        """Whose word comes when."""
        return self.order.index(rank) if rank in self.order else rank


def is_due(turn: Turn, step: Step) -> bool:
    """Whether it falls in this step."""
    if turn.plan_of:
        return any(row.request_id == turn.plan_of for row in step.plan.row_ids())
    return turn.sequence == step.sequence


def another(column: str, told: Executed) -> object:
    """Anything else than what is there."""
    return {
        "plan_id": told.plan_id + 1,
        "plan_generation": told.plan_generation + 1,
        "rows": (*told.rows, _STRANGER),
        "collectives": told.collectives[:-1],
        "tokens": ((*(told.tokens[0] if told.tokens else ()), 1), *told.tokens[1:]),
        "error": "refused by me",
        "to_blame": (0,),
        "distrusts": not told.distrusts,
        "told": (told.told[0], (*told.told[1], ())),
    }[column]
