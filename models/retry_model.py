"""What becomes of a lost step: once more with half of its rows; lost again, their requests end with an error, nobody else's.

Owns which rows are tried again, which plan tries them, and which requests an error may end. It learns from plans that were
made, lost, refused and committed; whom of the rows a target leaves out of the second try is the target's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from engine_under_test.types import Plan
from models.allocator_model import Key
from properties.moment import ChoiceFacts

Life = tuple[str, int]  # request_id, incarnation


class RetryModel:
    """First and second tries.

    A refused block undoes a plan that nobody outside sees: of the plan behind it, it is unknown whether it is a second try. Its
    loss may end its requests, and need not.
    """

    def __init__(self, live: Mapping[Key, ChoiceFacts]) -> None:
        self._live = live
        self.retried: tuple[Key, ...] = ()  # of a lost plan, when the latest plan was asked for
        # the same, of a plan that may have been lost, or refused, for the first time
        self.perhaps_retried: tuple[Key, ...] = ()
        self.lost_twice: frozenset[Key] = frozenset()  # with the plan that was abandoned last, or to blame for its loss
        self.excused: set[Life] = set()  # may end with an error
        self._lost: tuple[Key, ...] = ()  # rows of a plan lost for the first time, not tried again yet
        self._second: int | None = None  # the plan in flight that is a second try
        self._is_hidden = False  # perhaps a second try is due, of rows that nobody saw
        self._hidden: tuple[Key, ...] = ()  # those of them that were seen since: in a plan that was undone, or lost
        self._perhaps: int | None = None  # the plan in flight that may be a second try

    def refused(self, live: Iterable[Key]) -> None:
        """A plan in the making was refused a block."""
        self.excused.update(_lives(live if self._is_hidden else self._lost))
        self._lost, self._hidden, self._is_hidden = (), (), True

    def planned(self, plan: Plan | None, is_launched: bool = True) -> None:
        """The target was asked for a plan: it owes a second try no longer, unless what it made was undone again. Of rows that
        have all ended since it owes none, so that this plan is a first try."""
        if self._lost and not any(key in self._live for key in self._lost[: -(-len(self._lost) // 2)]):
            self._lost = ()
        self.retried, self.perhaps_retried = self._lost, self._hidden
        if not self._lost and not self._is_hidden:
            return
        keys = [] if plan is None else [row[:3] for row in plan.row_ids()]
        first_half = self._lost[: -(-len(self._lost) // 2)]
        is_second = bool(keys) and set(keys) <= set(first_half)
        if plan is not None and not is_launched and (is_second or self._is_hidden):
            self._hidden = tuple(keys) if self._is_hidden else ()
            return
        if plan is not None:
            self._second = plan.plan_id if is_second else self._second
            self._perhaps = plan.plan_id if self._is_hidden or (self._lost and not is_second) else self._perhaps
        self._lost, self._hidden, self._is_hidden = (), (), False

    def abandoned(self, lost: Sequence[Plan], live: Mapping[Key, ChoiceFacts], to_blame: Collection[int] = ()) -> None:
        """The oldest of the lost plans is the one that failed; if it is known which of its rows are `to_blame`, these end."""
        named = list(enumerate(lost[0].row_ids()))
        rows = [(n, row) for n, row in named if (facts := live.get(row[:3])) is not None and facts.epoch == row.epoch]
        if to_blame:
            self.lost_twice = frozenset(row[:3] for number, row in rows if number in to_blame)
            self.excused.update(_lives(self.lost_twice))
            self._lost, self._hidden, self._is_hidden = (), (), False
            self._second = self._perhaps = None
            return
        keys = tuple(row[:3] for _, row in rows)
        is_second, is_perhaps = lost[0].plan_id == self._second, lost[0].plan_id == self._perhaps
        self.lost_twice = frozenset(keys if is_second else ())
        self.excused.update(_lives(keys if is_second or is_perhaps else ()))
        self._lost = () if is_second or is_perhaps else keys
        self._hidden, self._is_hidden = keys if is_perhaps else (), is_perhaps
        self._second = self._perhaps = None  # one in flight is the latest plan, and lost with the others

    def committed(self, plan_id: int) -> None:
        if self._second == plan_id:
            self._second = None
        if self._perhaps == plan_id:
            self._perhaps = None

    def restarted(self) -> None:
        self._lost, self._hidden, self._is_hidden = (), (), False
        self._second = self._perhaps = None

    def told(self) -> None:
        """Everything that has ended by now was told: who is live was spared."""
        self.excused.clear()


def _lives(keys: Iterable[Key]) -> set[Life]:
    return {(key[0], key[2]) for key in keys}
