"""What moves plans: made, launched, landed in or out of their turn, lost, undone, all of them void.

Owns which plans are in flight, which were lost and may still be executed, and whose results may come once more. Never decides
which plan it is to be.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from engine_under_test.errors import RunnerError
from engine_under_test.events import EventKind
from engine_under_test.types import PlannedStep, Snapshot
from models.device import Flight
from models.verbs.acting import Acting, Stage
from properties.history import Landing
from properties.moment import Happening
from properties.verdict import Violation

_PAST_RESULTS = 64
_WHY = {True: "what a row came to is no number", False: "what a row asks for can not be done"}  # by what is distrusted


class PlanVerbs(Acting):
    """``flights``: launched, neither committed nor lost, the oldest first."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self.flights: list[Flight] = []
        self._lost: list[Flight] = []  # abandoned, perhaps still to be executed
        self._past: deque[Flight] = deque(maxlen=_PAST_RESULTS)

    def poll(self) -> bool:
        """Fences, the clock and transfers advance, and nothing else."""
        if not self._finish_lost():
            return True
        before = self._watch.snapshot
        count = self._target.poll()
        self._facts.polled()
        after, events = self._watch.observe(may_be_quiet=True)
        wrong = self._watch.learn(events, before, after)
        wrong = wrong or self._miscounted(count)
        if (link := self._watch.link) is not None:
            wrong = wrong or link.polled(after, self._facts)
        if after is before and wrong is None:
            return False
        self._watch.judge(Happening.POLLED, before, after, events, wrong)
        return bool(events) or before.unsettled != after.unsettled

    def plan(self, polls: bool = False, waits: bool = False) -> bool:
        """``polls``: fences and the clock advance just before, in the same happening; ``waits``: fences pass between its
        reservation and its launch."""
        if len(self.flights) >= self._caps.max_plans_in_flight:
            return False
        if not self._finish_lost():
            return True
        before = self._watch.snapshot
        if polls and (count := self._target.poll()) != len(self.flights):
            self._watch.violation = self._miscounted(count)
            return True
        step = self._target.plan() if not (waits and self._caps.has_transaction) else self._plan_slowly()
        if self._watch.violation is not None:
            return True
        after, events = self._watch.observe(may_be_quiet=step is None)
        self._facts.scheduler.asked()
        wrong = self._watch.learn(events, before, after)
        if step is None:
            self._facts.retry.planned(None)
            self._watch.judge(Happening.PLANNED, before, after, events, wrong)
            return bool(events)
        self._facts.preempted(step.preempted, after)
        wrong = wrong or self._facts.planned(step, is_counted=not self._watch.has_fault)
        self._watch.planned()
        in_flight = tuple([flight.step for flight in self.flights])
        self._watch.judge(Happening.PLANNED, before, after, events, wrong, planned=step, in_flight=in_flight)
        self._facts.held(step)
        flight = self._device.launch(step)
        self.flights.append(flight)
        self._watch.launched(flight)
        return self.abandon(len(self.flights) - 1, never_runs=True) if flight.is_refused else True

    def land(self, k: int) -> bool:
        """The device executes the ``k``-th plan whose result was not handed in, and the target gets the result."""
        waiting = [flight for flight in self.flights if not flight.is_handed]
        if not 0 <= k < len(waiting):
            return False
        flight = waiting[k]
        if not self._execute(flight):
            return True
        if to_blame := flight.sick_rows or flight.stuck_rows:
            number, distrusts = self.flights.index(flight), to_blame is flight.sick_rows
            return self.abandon(number, never_runs=False, to_blame=to_blame, distrusts=distrusts)
        before = self._watch.snapshot
        execution = flight.execution
        assert execution is not None
        self._target.commit(execution.result)
        flight.is_handed = True
        after, events = self._watch.observe()
        self._note_landing(flight)
        while self.flights and self.flights[0].is_handed:
            landed = self.flights.pop(0)
            self._past.append(landed)
            self._commit(landed, after)
        wrong = self._watch.learn(events, before, after)
        if (link := self._watch.link) is not None:
            wrong = wrong or link.use.landed(events, before, after, self._caps)
        self._watch.judge(
            Happening.LANDED,
            before,
            after,
            events,
            wrong,
            landed=flight.step,
            execution=execution,
            result=execution.result,
        )
        return True

    def land_again(self, k: int) -> bool:
        """A result that was handed in, or whose plan is lost, comes (once more): the last but ``k`` of them."""
        if not 0 <= k < len(self._past):
            return False
        flight = self._past[-1 - k]
        if not self._execute(flight):
            return True
        before = self._watch.snapshot
        self._target.commit(flight.result)
        after, events = self._watch.observe()
        wrong = self._watch.learn(events, before, after)
        self._watch.judge(Happening.STALE, before, after, events, wrong, landed=flight.step, result=flight.result)
        return True

    def _plan_slowly(self) -> PlannedStep | None:
        """A plan is made, fences pass, and it is launched."""
        step = self._more.reserve()
        if step is not None and self._fences_pass():
            self._more.launch(step)
        return step

    def _fences_pass(self) -> bool:
        """While a plan is reserved: fences that were held pass, what was lost gets to its end, the target is polled. Whether
        it is as it should be."""
        if self._watch.is_held:
            self._more.hold_fences(False)
            self._watch.is_held = False
        if self._finish_lost():
            self._watch.violation = self._miscounted(self._target.poll())
        return self._watch.violation is None

    def rollback(self, waits: bool = False) -> bool:
        """A plan is made and undone before it is launched. ``waits``: fences pass in between."""
        if not self._caps.has_transaction or len(self.flights) >= self._caps.max_plans_in_flight:
            return False
        did = self.poll()  # what has ended settles first, so that only the reservation is between before and after
        if self._watch.violation is not None:
            return True
        before = self._watch.snapshot
        step = self._more.reserve()
        if step is not None:
            if waits and not self._fences_pass():
                return True
            self._more.rollback(step)
        after, events = self._watch.observe(may_be_quiet=step is None)
        own = sum(event.kind is EventKind.ROLLED_BACK for event in events) - (step is not None)
        wrong = self._watch.learn(events, before, after, was_refused=own > 0)
        self._facts.retry.planned(step.plan if step is not None else None, is_launched=False)
        if step is not None:
            self._facts.preempted(step.preempted, after)
        self._watch.judge(Happening.ROLLED_BACK, before, after, events, wrong, planned=step)
        return did or step is not None

    def abandon(self, k: int, never_runs: bool, to_blame: Collection[int] = (), distrusts: bool = True) -> bool:
        """The ``k``-th plan in flight is lost, and all behind it; the device may execute them all the same. ``distrusts``: see
        `TransactionalTarget.abandon`."""
        if not self._caps.has_transaction or not 0 <= k < len(self.flights):
            return False
        before = self._watch.snapshot
        lost = self.flights[k:]
        told = (
            self._more.abandon(lost[0].plan_id, _WHY[distrusts], to_blame, distrusts=distrusts)
            if to_blame
            else self._more.abandon(lost[0].plan_id, "the device lost the plan")
        )
        after, events = self._watch.observe()
        wrong = None
        if not told:
            wrong = Violation("KV-12", "atomic", f"abandon of plan {lost[0].plan_id}", "False", "True: the plan is in flight")
        del self.flights[k:]
        if never_runs:
            self._drop([*lost, *(flight for flight in self._lost if flight.plan_id > lost[0].plan_id)])
        self._past.extend(flight for flight in lost if not flight.is_dropped)
        self._lost += [flight for flight in lost if flight.execution is None and not flight.is_dropped]
        self._watch.had_fault()
        self._facts.slots.abandoned([f.step for f in lost])
        for row in to_blame if distrusts else ():
            self._facts.doubted(lost[0].step.reservation.tables[row], after)
        self._facts.abandoned([f.step.plan for f in lost], [f.step.plan for f in self.flights], after, to_blame)
        wrong = self._watch.learn(events, before, after) or wrong
        steps = tuple(flight.step for flight in lost)
        self._watch.judge(Happening.ABANDONED, before, after, events, wrong, landed=steps[0], abandoned=steps)
        return True

    def restart(self, keeps_content: bool) -> bool:
        """All that is in flight is executed, then void."""
        if not self._caps.has_restart:
            return False
        self._device.execute_all()
        before = self._watch.snapshot
        self._more.restart()
        self._past.extend(self.flights)
        self.flights, self._lost = [], []
        self._watch.restarted()
        after, events = self._watch.observe()
        self._facts.restarted(after)
        self._device.restart(keeps_content)
        wrong = self._watch.learn(events, before, after)
        self._watch.judge(Happening.RESTARTED, before, after, events, wrong)
        return True

    def _commit(self, flight: Flight, after: Snapshot) -> None:
        self._facts.committed(flight.step, flight.result, after)
        self._watch.checked_steps += flight.step.plan.num_rows > 0
        ended = self._facts.requests.ended
        self._device.forget(row[:3] for row in flight.result.rows if row[:3] in ended)

    def _note_landing(self, flight: Flight) -> None:
        result, execution = flight.result, flight.execution
        assert execution is not None
        self._history.add(Landing(result.plan_id, result.generation, result.rows, result.tokens, execution.addresses))

    def _finish_lost(self) -> bool:
        """The device gets to the end of lost plans before their fences can pass."""
        if self._lost and not self._watch.is_held:
            lost, self._lost = self._lost, []
            return all(self._execute(flight) for flight in lost)
        return True

    def _execute(self, flight: Flight) -> bool:
        """Runs the stream up to this plan. A step that the runner can not run as planned is a finding."""
        try:
            self._device.execute(flight)
        except RunnerError as error:
            found = str(error)
            snapshot = self._watch.snapshot
            self._watch.judge(Happening.OTHER, snapshot, snapshot, (), None)  # a race, if there was one, explains it
            self._watch.violation = self._watch.violation or Violation(
                "SC-13", "rows", f"plan {flight.plan_id}", found, "rows that a runner can execute"
            )
            return False
        self._watch.violation = self._watch.violation or flight.kept_wrongly
        return self._watch.violation is None

    def _drop(self, flights: list[Flight]) -> None:
        """What stands on the stream behind work that never runs does not run either, lost before or not."""
        self._device.drop(flights)
        self._lost = [flight for flight in self._lost if not flight.is_dropped]
        self._past = deque((flight for flight in self._past if not flight.is_dropped), maxlen=_PAST_RESULTS)

    def _miscounted(self, count: int) -> Violation | None:
        expected = len(self.flights)
        if count == expected:
            return None
        return Violation("SC-1", "pairing", "plans in flight", str(count), f"{expected}: launched, neither committed nor lost")
