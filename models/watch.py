"""What World sees of its target and how it judges that: snapshots, events, one `Moment` for each thing that happened.

Owns the last snapshot, the recount of events, the faults that are active, and the first violation. Never calls a verb that
changes a target, and knows no operation.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from engine_under_test.adapters.base import Target, TransactionalTarget
from engine_under_test.events import Counters, Event, EventKind, Misdeclared, Race
from engine_under_test.types import Snapshot
from models.device import Flight
from models.facts import ModelFacts
from models.judging import Judge
from models.proposers import Keeping
from properties.history import History
from properties.invariants.predicate import Predicate
from properties.moment import Happening, Moment
from properties.op import Op
from properties.recount import Recount
from properties.verdict import Violation

if TYPE_CHECKING:
    from models.link_account import LinkAccount  # whose libraries not everybody has


Orders = tuple[tuple[Race, ...], tuple[Misdeclared, ...]]  # races, and what operations touched without declaring it

AUDIT_EVERY = 16  # steps between two looks at whole structures
_PLANS_UNTIL_HEALED = 3  # a lost step is retried with half of its rows, the rest comes after


class Watch:
    """Eyes on one target.

    ``snapshot``: the target as it was last seen. ``violation``: the first thing wrong; with ``may_wait``, as far as predicates
    that can wait were asked (`settle`). ``checked_steps``: plans that landed
    with at least one row. ``is_held``, ``is_refusing``: fences are held, a block will be refused.
    """

    def __init__(
        self,
        target: Target,
        facts: ModelFacts,
        history: History,
        predicates: Iterable[Predicate],
        on_moment: Callable[[Moment], None] | None,
        may_wait: bool = False,
    ) -> None:
        self._violation: Violation | None = None
        self.checked_steps = 0
        self.op_index = -1
        self.is_held = False
        self.is_refusing = False
        self.is_short = False  # memory of the device will be refused
        self.is_cut_off = False  # nothing arrives from the remote pool
        self.snapshot = target.snapshot()
        self._target = target
        self._caps = target.caps
        self._facts = facts
        self._history = history
        self._predicates = Judge(predicates, target.caps, may_wait)
        self._on_moment = on_moment
        self._take_events = cast("TransactionalTarget", target).take_events if target.caps.has_events else None
        self._counters: Callable[[], Counters] | None = getattr(target, "counters", None)
        self._recount = Recount()
        self._recounted = self._recount.counters if target.caps.has_events else None
        self._told_tables = self._recount.tables if target.caps.has_events else None
        self._audited_steps = 0
        self._plans_until_healed = 0
        self.orders: Callable[[], Orders] | None = None  # what a device with streams has seen since it was last asked
        self.kept_drafts: Keeping | None = None
        self.link: LinkAccount | None = None
        self._is_watched = False  # a fault was active at some time of this happening
        self._set_unsettled({})

    @property
    def violation(self) -> Violation | None:
        return self._violation

    @violation.setter
    def violation(self, found: Violation | None) -> None:
        """What those that waited find comes before it."""
        if found is not None and self._violation is None:
            found = self._predicates.settle() or found
        self._violation = found

    def settle(self) -> Violation | None:
        """The first thing wrong, with all predicates asked."""
        if self._violation is None:
            self._violation = self._predicates.settle()
        return self._violation

    @property
    def evaluations(self) -> Counter[str]:
        """How often each predicate was evaluated, by identifier."""
        return self._predicates.evaluations

    # -- faults ------------------------------------------------------------------------------------------------

    @property
    def has_fault(self) -> bool:
        return self.is_held or self.is_refusing or self.is_short or self.is_cut_off or self._plans_until_healed > 0

    def had_fault(self) -> None:
        self._plans_until_healed = _PLANS_UNTIL_HEALED

    def planned(self) -> None:
        """A plan was made, which heals."""
        self._plans_until_healed = max(0, self._plans_until_healed - 1)

    def healed(self) -> None:
        self._plans_until_healed = 0

    # -- plans whose fence has not passed ----------------------------------------------------------------------

    def launched(self, flight: Flight) -> None:
        self._set_unsettled({**self._unsettled, flight.plan_id: flight})

    def restarted(self) -> None:
        self._set_unsettled({})
        self._recount.restarted()
        if self.link is not None:
            self.link.restarted()

    def _set_unsettled(self, flights: dict[int, Flight]) -> None:
        """Plans whose fence has not passed, and what they use and write: new mappings, since moments keep the old ones."""
        self._unsettled = flights
        self._seen_unsettled: tuple[int, ...] | None = None  # the target's word of them that was judged last
        self._uses = {plan_id: flight.uses for plan_id, flight in flights.items()}
        self._writes = {plan_id: flight.writes for plan_id, flight in flights.items()}

    def _settled(self, after: Snapshot) -> Violation | None:
        """Plans whose fence has passed leave; none may before its work was done, or while fences are held."""
        unsettled = after.unsettled if self._caps.has_fences else after.plans
        if unsettled is self._seen_unsettled:
            return None
        if self._unsettled.keys() <= set(unsettled):
            self._seen_unsettled = unsettled
            return None
        left = [flight for plan_id, flight in self._unsettled.items() if plan_id not in unsettled]
        self._set_unsettled({plan_id: flight for plan_id, flight in self._unsettled.items() if plan_id in unsettled})
        if not self._caps.has_fences:
            return None
        for flight in left:
            if (flight.execution is None and not flight.is_dropped) or self.is_held:
                why = "its fence is held" if flight.execution is not None else "its work has not run"
                return Violation("KV-10", "lifetime", f"plan {flight.plan_id}", "settled", f"not settled: {why}")
        return None

    # -- seeing and judging ------------------------------------------------------------------------------------

    def observe(self, may_be_quiet: bool = False) -> tuple[Snapshot, tuple[Event, ...]]:
        """The snapshot after a verb, and the events of it. ``may_be_quiet``: without events, nothing has changed."""
        events: tuple[Event, ...] = ()
        self._is_watched = self.has_fault
        if self._take_events is not None:
            events = self._take_events()
            if events:
                self._history.extend(events)
                if self.link is not None:
                    self.link.saw(events)
                self._recount.add(events)
            elif may_be_quiet:
                return self.snapshot, ()
        self.snapshot = self._target.snapshot()
        return self.snapshot, events

    def learn(
        self, events: tuple[Event, ...], before: Snapshot, after: Snapshot, was_refused: bool | None = None
    ) -> Violation | None:
        """What events and snapshots tell the models. ``was_refused``: a refused block rolled a plan back."""
        if after is before:
            return None
        if self.is_refusing:
            if was_refused is None:
                was_refused = any(event.kind is EventKind.ROLLED_BACK for event in events)
            if was_refused:
                self.is_refusing = False
                self.had_fault()
                self._facts.refused()
        wrong = self._facts.saw_events(events, after) if events else None
        self._facts.saw_snapshot(before, after)
        return wrong

    def judge(
        self,
        happening: Happening,
        before: Snapshot,
        after: Snapshot,
        events: tuple[Event, ...],
        wrong: Violation | None,
        is_audit: bool = False,
        **columns: Any,
    ) -> None:
        """One moment before every predicate; what a model found (``wrong``) counts when no predicate found anything."""
        is_audit = is_audit or self.checked_steps - self._audited_steps >= AUDIT_EVERY
        if is_audit:
            self._audited_steps = self.checked_steps
        if self.orders is not None:
            columns["races"], columns["misdeclared"] = self.orders()
        if (drafts := self.kept_drafts) is not None:
            columns["kept_drafts"], columns["strange_drafts"] = drafts.lengths(), tuple(drafts.strange)
        moment = Moment(
            self._caps,
            happening,
            self.op_index,
            before,
            after,
            self._facts,
            events=events,
            counters=self._counters() if self._counters is not None else None,
            recount=self._recounted,
            told_tables=self._told_tables,
            uses=self._uses,
            writes=self._writes,
            has_fault=self._is_watched or self.has_fault,
            is_audit=is_audit,
            **columns,
        )
        wrong = self._predicates.judge(moment) or wrong
        settled_early = self._settled(after) if self._unsettled else None
        if wrong is not None or settled_early is not None:
            self.violation = self._violation or wrong or settled_early
        if self._predicates.is_full:
            self.settle()
        if self._on_moment is not None:
            self._on_moment(moment)
        del moment.view  # which knows the moment: in a circle, both and their snapshots would stay for long

    def note_counters(self) -> None:
        """The target's own totals, as they are now, go into the history."""
        if self._counters is not None:
            counters = self._counters()
            self._history.add(replace(counters, finished=dict(counters.finished)))

    def crashed(self, op: Op, error: Exception) -> None:
        """Whatever a target raises is a finding."""
        where = traceback.extract_tb(error.__traceback__)[-1]
        self.violation = self.violation or Violation(
            "CRASH",
            "crash",
            f"op {self.op_index} ({op.kind.value})",
            f"{type(error).__name__}: {error}",
            "no exception",
            (f"raised in {where.name}, {where.filename.rsplit('/', 1)[-1]} line {where.lineno}",),
        )
