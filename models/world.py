"""World: one target, its device, the reference models and every predicate, driven by one operation at a time.

Owns the only loop that all drivers (machines, walk, replay, storms) share: apply an op to the target, let the models learn
what happened, make a `Moment` of it, and judge that. Never chooses an op and never looks inside the target.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, cast

from engine_under_test.adapters.base import RemoteTarget, Target, TransactionalTarget
from engine_under_test.caps import Caps, LinkFault
from engine_under_test.errors import RunnerError
from engine_under_test.events import EventKind
from engine_under_test.sampling.speculation import Knowledge
from engine_under_test.seams import Hasher
from engine_under_test.types import Adapter, Admission, Snapshot
from models.device import Device, Flight
from models.facts import ModelFacts
from models.judging import CheckerCrashed
from models.proposers import Keeping
from models.watch import Watch
from properties.history import History, Landing
from properties.invariants import ALL
from properties.invariants.predicate import Predicate
from properties.moment import Happening, Moment
from properties.op import Op, OpKind
from properties.verdict import Violation

_PAST_RESULTS = 64
_HOPS = 32  # polls within which what is on a link arrives
_TRANSFER_POLLS = 256


def caps_of_store(caps: Caps) -> Caps:
    """For a device: a swap pool's blocks lie in the store behind the others."""
    return replace(caps, num_blocks=caps.num_blocks + caps.num_host_blocks) if caps.num_host_blocks else caps


@contextmanager
def no_collections() -> Iterator[None]:
    """Meanwhile the interpreter does not look for cyclic garbage: a run makes hardly any, and the history keeps nearly all of
    what every look would go through."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class World:
    """Everything that an op meets.

    ``apply`` returns whether the op did something; a no-op is recorded too. The first thing wrong is in ``violation``;
    after it, ops do nothing. ``on_moment`` is shown each moment after it was judged. ``device``: what executes plans; without
    one, the plain one of `models.device`. ``kept_drafts``: the proposer of a target that speculates.
    """

    def __init__(
        self,
        target: Target,
        *,
        hasher: Hasher | None = None,
        predicates: Iterable[Predicate] = ALL,
        on_moment: Callable[[Moment], None] | None = None,
        device: Device | None = None,
        kept_drafts: Keeping | None = None,
    ) -> None:
        self.target = target
        self.caps = caps = target.caps
        meta = {"target": caps.name, "has_events": caps.has_events}
        if kept_drafts is not None and kept_drafts.declaration.knowledge is Knowledge.FULL:
            meta["draws_drafts"] = True
        self.history = History(meta)
        self.ops = 0
        self.noops = 0
        self.facts = ModelFacts(caps, hasher if caps.has_documented_keys else None)
        self._watch = Watch(target, self.facts, self.history, predicates, on_moment)
        self._more = cast("TransactionalTarget", target)  # called only where the caps say so
        self.device = Device(caps_of_store(caps)) if device is None else device
        self._watch.orders = self.device.orders
        self._watch.kept_drafts = kept_drafts
        if kept_drafts is not None:
            self.device.law_of_drafts = kept_drafts.law_of
        if caps.has_remote:
            cast("RemoteTarget", target).attach(self.device)
            self.facts.differs_from_law = self.device.differs_from_law
        self._admission: Admission | None = None
        self._flights: list[Flight] = []  # launched, neither committed nor lost
        self._lost: list[Flight] = []  # abandoned, perhaps still to be executed
        self._past: deque[Flight] = deque(maxlen=_PAST_RESULTS)

    # -- for drivers -------------------------------------------------------------------------------------------

    def apply(self, op: Op) -> bool:
        """One op. Never raises for what a target does: that is a violation."""
        if self._watch.violation is not None:
            return False
        self._watch.op_index += 1
        self._admission = None
        self.device.begin(self._watch.op_index, op)
        first = len(self.history)
        try:
            did = _VERBS[op.kind](self, op)
        except CheckerCrashed:
            raise
        except Exception as error:  # whatever a target raises is a finding, and the run goes on to report it
            self._watch.crashed(op, error)
            did = True
        self.history.add_op(op, not did, self._admission)
        records = self.history.records
        records.insert(first, records.pop())  # an op stands before what it caused
        if did:
            self.ops += 1
        else:
            self.noops += 1
        if self._watch.violation is not None:
            self.history.add(self._watch.violation)
        return did

    def run(self, ops: Iterable[Op]) -> None:
        """Applies ops up to the first violation."""
        with no_collections():
            for op in ops:
                self.apply(op)
                if self._watch.violation is not None:
                    return

    @property
    def violation(self) -> Violation | None:
        """The first thing wrong."""
        return self._watch.violation

    @property
    def checked_steps(self) -> int:
        """Plans that landed with at least one row."""
        return self._watch.checked_steps

    @property
    def evaluations(self) -> Counter[str]:
        """How often each predicate was evaluated, by identifier."""
        return self._watch.evaluations

    @property
    def snapshot(self) -> Snapshot:
        """The target as it was last seen."""
        return self._watch.snapshot

    @property
    def has_fault(self) -> bool:
        return self._watch.has_fault

    @property
    def num_live(self) -> int:
        return len(self.facts.requests.live)

    @property
    def num_in_flight(self) -> int:
        return len(self._flights)

    # -- requests ----------------------------------------------------------------------------------------------

    def _add(self, op: Op) -> bool:
        request = op.request
        if request is None:
            return False
        before = self._watch.snapshot
        answer = self._admission = self.target.add(request)
        wrong = self.facts.requests.judge_admission(request, answer, self.facts.clock_s)
        after, events = self._watch.observe()
        if answer.is_accepted and wrong is None:
            self.facts.accepted(request, answer.incarnation)
        self._watch.judge(Happening.ADDED, before, after, events, wrong, request=request, is_accepted=answer.is_accepted)
        return True

    def _abort(self, op: Op) -> bool:
        model = self.facts.requests
        keys = model.keys_of(op.request_id)
        if not self.caps.has_abort or not model.was_known(op.request_id):
            return False
        before = self._watch.snapshot
        told = self.target.abort(op.request_id)
        after, events = self._watch.observe()
        wrong = None
        may_differ = self.caps.has_deadlines and not self.caps.has_events  # an end by deadline shows with its output only
        if told is not bool(keys) and not may_differ:
            state = "live" if keys else "ended"
            wrong = Violation("SC-6", "abort", f"abort of {op.request_id}", f"{told}", f"{bool(keys)}: the request is {state}")
        elif told:
            self.facts.aborted(op.request_id, after)
            self.device.forget(keys)
        request = self.facts.requests.ended[keys[0]].request if keys and told and wrong is None else None
        self._watch.judge(Happening.ABORTED, before, after, events, wrong, request=request, is_accepted=told)
        return told

    def _deliver(self) -> bool:
        outputs = self.target.take_outputs()
        if not outputs:
            return False
        self.history.extend(outputs)
        model = self.facts.requests
        wrong = model.deliver(outputs, self.facts.clock_s)
        if model.fresh_ends:
            self.facts.told_ends(model.fresh_ends, self._watch.snapshot)
            self.device.forget(model.fresh_ends)
            model.fresh_ends = []
        self._watch.judge(Happening.DELIVERED, self._watch.snapshot, self._watch.snapshot, (), wrong, outputs=outputs)
        return True

    # -- plans -------------------------------------------------------------------------------------------------

    def _plan(self, _op: Op | None = None, polls: bool = False) -> bool:
        """``polls``: fences and the clock advance just before, in the same happening."""
        if len(self._flights) >= self.caps.max_plans_in_flight:
            return False
        if not self._finish_lost():
            return True
        before = self._watch.snapshot
        if polls and (count := self.target.poll()) != len(self._flights):
            self._watch.violation = self._miscounted(count)
            return True
        step = self.target.plan()
        after, events = self._watch.observe(may_be_quiet=step is None)
        self.facts.scheduler.asked()
        wrong = self._watch.learn(events, before, after)
        if step is None:
            self.facts.retry.planned(None)
            self._watch.judge(Happening.PLANNED, before, after, events, wrong)
            return bool(events)
        self.facts.preempted(step.preempted, after)
        wrong = wrong or self.facts.planned(step, is_counted=not self._watch.has_fault)
        self._watch.planned()
        in_flight = tuple([flight.step for flight in self._flights])
        self._watch.judge(Happening.PLANNED, before, after, events, wrong, planned=step, in_flight=in_flight)
        self.facts.held(step)
        flight = self.device.launch(step)
        self._flights.append(flight)
        self._watch.launched(flight)
        return self._abandon(len(self._flights) - 1, never_runs=True) if flight.is_refused else True

    def _land(self, k: int) -> bool:
        waiting = [flight for flight in self._flights if not flight.is_handed]
        if not 0 <= k < len(waiting):
            return False
        flight = waiting[k]
        if not self._execute(flight):
            return True
        if flight.sick_rows:
            return self._abandon(self._flights.index(flight), never_runs=False, to_blame=flight.sick_rows)
        before = self._watch.snapshot
        execution = flight.execution
        assert execution is not None
        self.target.commit(execution.result)
        flight.is_handed = True
        after, events = self._watch.observe()
        self._note_landing(flight)
        while self._flights and self._flights[0].is_handed:
            landed = self._flights.pop(0)
            self._past.append(landed)
            self._commit(landed, after)
        wrong = self._watch.learn(events, before, after)
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

    def _commit(self, flight: Flight, after: Snapshot) -> None:
        self.facts.committed(flight.step, flight.result, after)
        self._watch.checked_steps += flight.step.plan.num_rows > 0
        ended = self.facts.requests.ended
        self.device.forget(row[:3] for row in flight.result.rows if row[:3] in ended)

    def _note_landing(self, flight: Flight) -> None:
        result, execution = flight.result, flight.execution
        assert execution is not None
        self.history.add(Landing(result.plan_id, result.generation, result.rows, result.tokens, execution.addresses))

    def _finish_lost(self) -> bool:
        """The device gets to the end of lost plans before their fences can pass."""
        if self._lost and not self._watch.is_held:
            lost, self._lost = self._lost, []
            return all(self._execute(flight) for flight in lost)
        return True

    def _execute(self, flight: Flight) -> bool:
        """Runs the stream up to this plan. A step that the runner can not run as planned is a finding."""
        try:
            self.device.execute(flight)
        except RunnerError as error:
            found = str(error)
            snapshot = self._watch.snapshot
            self._watch.judge(Happening.OTHER, snapshot, snapshot, (), None)  # a race, if there was one, explains it
            self._watch.violation = self._watch.violation or Violation(
                "SC-13", "rows", f"plan {flight.plan_id}", found, "rows that a runner can execute"
            )
            return False
        return True

    def _step(self) -> bool:
        """Fences settle with the next plan, in one happening, unless transfers move as well."""
        is_apart = self.caps.has_transfers or len(self._flights) >= self.caps.max_plans_in_flight
        did = self._poll() if is_apart else False
        if self._watch.violation is None:
            did |= self._plan(polls=not is_apart)
        if self._watch.violation is None:
            did |= self._land(0)
        if self._watch.violation is None:
            did |= self._deliver()
        return did

    def _land_again(self, k: int) -> bool:
        if not 0 <= k < len(self._past):
            return False
        flight = self._past[-1 - k]
        if not self._execute(flight):
            return True
        before = self._watch.snapshot
        self.target.commit(flight.result)
        after, events = self._watch.observe()
        wrong = self._watch.learn(events, before, after)
        self._watch.judge(Happening.STALE, before, after, events, wrong, landed=flight.step, result=flight.result)
        return True

    def _rollback(self) -> bool:
        if not self.caps.has_transaction or len(self._flights) >= self.caps.max_plans_in_flight:
            return False
        did = self._poll()  # what has ended settles first, so that only the reservation is between before and after
        if self._watch.violation is not None:
            return True
        before = self._watch.snapshot
        step = self._more.reserve()
        if step is not None:
            self._more.rollback(step)
        after, events = self._watch.observe(may_be_quiet=step is None)
        own = sum(event.kind is EventKind.ROLLED_BACK for event in events) - (step is not None)
        wrong = self._watch.learn(events, before, after, was_refused=own > 0)
        self.facts.retry.planned(step.plan if step is not None else None, is_launched=False)
        if step is not None:
            self.facts.preempted(step.preempted, after)
        self._watch.judge(Happening.ROLLED_BACK, before, after, events, wrong, planned=step)
        return did or step is not None

    def _abandon(self, k: int, never_runs: bool, to_blame: Collection[int] = ()) -> bool:
        if not self.caps.has_transaction or not 0 <= k < len(self._flights):
            return False
        before = self._watch.snapshot
        lost = self._flights[k:]
        told = (
            self._more.abandon(lost[0].plan_id, "what a row came to is no number", to_blame)
            if to_blame
            else self._more.abandon(lost[0].plan_id, "the device lost the plan")
        )
        after, events = self._watch.observe()
        wrong = None
        if not told:
            wrong = Violation("KV-12", "atomic", f"abandon of plan {lost[0].plan_id}", "False", "True: the plan is in flight")
        del self._flights[k:]
        if never_runs:
            self._drop([*lost, *(flight for flight in self._lost if flight.plan_id > lost[0].plan_id)])
        self._past.extend(flight for flight in lost if not flight.is_dropped)
        self._lost += [flight for flight in lost if flight.execution is None and not flight.is_dropped]
        self._watch.had_fault()
        self.facts.slots.abandoned([f.step for f in lost])
        self.facts.abandoned([f.step.plan for f in lost], [f.step.plan for f in self._flights], after, to_blame)
        wrong = self._watch.learn(events, before, after) or wrong
        steps = tuple(flight.step for flight in lost)
        self._watch.judge(Happening.ABANDONED, before, after, events, wrong, landed=steps[0], abandoned=steps)
        return True

    def _drop(self, flights: list[Flight]) -> None:
        """What stands on the stream behind work that never runs does not run either, lost before or not."""
        self.device.drop(flights)
        self._lost = [flight for flight in self._lost if not flight.is_dropped]
        self._past = deque((flight for flight in self._past if not flight.is_dropped), maxlen=_PAST_RESULTS)

    # -- the rest of the target --------------------------------------------------------------------------------

    def _poll(self) -> bool:
        if not self._finish_lost():
            return True
        before = self._watch.snapshot
        count = self.target.poll()
        self.facts.polled()
        after, events = self._watch.observe(may_be_quiet=True)
        wrong = self._watch.learn(events, before, after)
        wrong = wrong or self._miscounted(count)
        if after is before and wrong is None:
            return False
        self._watch.judge(Happening.POLLED, before, after, events, wrong)
        return bool(events) or before.unsettled != after.unsettled

    def _miscounted(self, count: int) -> Violation | None:
        expected = len(self._flights)
        if count == expected:
            return None
        return Violation("SC-1", "pairing", "plans in flight", str(count), f"{expected}: launched, neither committed nor lost")

    def _hold(self, on: bool) -> bool:
        if not self.caps.has_fences or on is self._watch.is_held:
            return False
        self._more.hold_fences(on)
        self._watch.is_held = on
        return True

    def _refuse(self, k: int) -> bool:
        if not self.caps.has_transaction or (k < 1 and not self._watch.is_refusing):
            return False
        self._more.refuse_block(k if k >= 1 else None)
        self._watch.is_refusing = k >= 1
        return True

    def _refuse_memory(self, k: int, is_for_good: bool) -> bool:
        did = self.caps.has_transaction and self.device.refuse_memory(k, is_for_good)
        self._watch.is_short = self.device.is_short
        return did

    def _link(self, k: int) -> bool:
        if not self.caps.has_remote or not 0 <= k < len(LinkFault):
            return False
        fault = tuple(LinkFault)[k]
        did = cast("RemoteTarget", self.target).disturb(fault)
        self._watch.is_cut_off = fault is LinkFault.STALL or (self._watch.is_cut_off and fault is not LinkFault.NONE)
        return did

    def _fragment_memory(self, num_words: int) -> bool:
        did = self.caps.has_transaction and self.device.fragment_memory(num_words)
        self._watch.is_short = self.device.is_short
        return did

    def _sicken(self, k: int) -> bool:
        """Told when the plan lands: nobody knows it before."""
        if not (self._can_blame and self._flights) or not 0 <= k < self._flights[-1].step.plan.num_rows:
            return False
        self._flights[-1].sick_rows.add(k)
        return True

    def _spoil(self, request_id: str, position: int, is_wrong: bool) -> bool:
        """Only what is committed: the rest is still to be written. Without a name: of who entered last.

        A wrong number not where blocks are stored elsewhere, since it would come back from there as if it were good; what is
        no number is not stored.
        """
        size = self.caps.block_size
        for each in reversed(
            self._watch.snapshot.running if self._can_blame and not (is_wrong and self.caps.has_remote) else ()
        ):
            if request_id in ("", each.request_id) and 0 <= position < min(each.committed_len, len(each.table) * size):
                self.device.spoil(each.table[position // size] * size + position % size, is_wrong)
                return True
        return False

    @property
    def _can_blame(self) -> bool:
        """The target recovers as a whole engine does: rows that are to blame may be named to it."""
        return self.caps.has_transaction and self.caps.has_restart

    def _advance(self, op: Op) -> bool:
        if not op.seconds > 0:
            return False
        before = self._watch.snapshot
        self.target.advance_clock(op.seconds)
        self.facts.advanced(op.seconds)
        after, events = self._watch.observe(may_be_quiet=True)
        wrong = self._watch.learn(events, before, after)
        if after is not before or wrong is not None:
            self._watch.judge(Happening.OTHER, before, after, events, wrong)
        return True

    def _change_adapter(self, op: Op, loads: bool) -> bool:
        """A load or an unload, refused ones included."""
        if not self.caps.has_adapter_loads:
            return False
        adapter, before = Adapter(op.request_id, op.k), self._watch.snapshot
        verb = self._more.load_adapter if loads else self._more.unload_adapter
        answer = verb(adapter)
        learn = self.facts.slots.loaded if loads else self.facts.slots.unloaded
        wrong = learn(adapter, answer)
        after, events = self._watch.observe()
        self._watch.judge(Happening.OTHER, before, after, events, self._watch.learn(events, before, after) or wrong)
        return answer

    def _reset(self) -> bool:
        if not self.caps.has_reset:
            return False
        before = self._watch.snapshot
        self._more.reset_cache()
        after, events = self._watch.observe()
        self.facts.reset()
        wrong = self._watch.learn(events, before, after)
        self._watch.judge(Happening.RESET, before, after, events, wrong)
        return True

    def _restart(self, keeps_content: bool) -> bool:
        if not self.caps.has_restart:
            return False
        self.device.execute_all()
        before = self._watch.snapshot
        self._more.restart()
        self._past.extend(self._flights)
        self._flights, self._lost = [], []
        self._watch.restarted()
        after, events = self._watch.observe()
        self.facts.restarted(after)
        self.device.restart(keeps_content)
        wrong = self._watch.learn(events, before, after)
        self._watch.judge(Happening.RESTARTED, before, after, events, wrong)
        return True

    # -- drain -------------------------------------------------------------------------------------------------

    def _drain(self) -> bool:
        """Heals every fault and runs everything to its end, within what the target promises."""
        self._refuse(0)
        self._refuse_memory(0, False)
        self._link(0)
        self._fragment_memory(0)
        self._hold(False)
        self._watch.healed()
        did = False
        idle = 0
        bound = (self.facts.requests.remaining_tokens() + 1) * self.caps.progress_bound + len(self._flights) + 1
        for _ in range(bound):
            if not (self.facts.requests.live or self._flights) or self._watch.violation is not None:
                break
            progress = self._step()
            did |= progress
            idle = 0 if progress else idle + 1
            if idle > 2 and not self._is_moving():
                break
            if idle > _HOPS:  # what was lost on the way ends by its deadline
                self._advance(Op(OpKind.ADVANCE, seconds=1.0))
        if self._watch.violation is not None:
            return True
        return self._settle(bound) or did

    def _is_moving(self) -> bool:
        """Transfers are under way, that hold blocks and that somebody may wait for."""
        return self.caps.has_remote and bool(self._watch.snapshot.loading or self._watch.snapshot.pinned)

    def _settle(self, bound: int) -> bool:
        did = self._deliver()
        for number in range(4 if not self.caps.has_remote else _TRANSFER_POLLS):
            did |= self._poll()
            if self._watch.violation is not None or not (self._watch.snapshot.unsettled or self._is_moving()):
                break
            if number > _HOPS:
                self._advance(Op(OpKind.ADVANCE, seconds=1.0))
        if self._watch.violation is not None:
            return True
        live = self.facts.requests.live
        wrong = None
        if live or self._flights:
            names = ", ".join(f"{key[0]}/{key[1]}" for key in list(live)[:4])
            found = f"{len(live)} choices live ({names}), {len(self._flights)} plans in flight"
            wrong = Violation(
                "SC-7", "progress", "after a drain", found, f"none within {bound} iterations, with every fault healed"
            )
        wrong = wrong or self.facts.requests.judge_quiet()
        before = self._watch.snapshot
        after, events = self._watch.observe()
        self._watch.judge(Happening.DRAINED, before, after, events, wrong, is_audit=True)
        self._watch.note_counters()
        return did


# Of the class, not of a World: bound methods would tie each World into a circle, and with it all that a run has kept.
_VERBS: Final[dict[OpKind, Callable[[World, Op], bool]]] = {
    OpKind.ADD: World._add,
    OpKind.ABORT: World._abort,
    OpKind.PLAN: World._plan,
    OpKind.LAND: lambda world, op: world._land(op.k),
    OpKind.STEP: lambda world, _op: world._step(),
    OpKind.POLL: lambda world, _op: world._poll(),
    OpKind.HOLD_FENCES: lambda world, op: world._hold(op.on),
    OpKind.DELIVER: lambda world, _op: world._deliver(),
    OpKind.ADVANCE: World._advance,
    OpKind.ROLLBACK: lambda world, _op: world._rollback(),
    OpKind.REFUSE_BLOCK: lambda world, op: world._refuse(op.k),
    OpKind.ABANDON: lambda world, op: world._abandon(op.k, never_runs=op.on),
    OpKind.LAND_AGAIN: lambda world, op: world._land_again(op.k),
    OpKind.REFUSE_MEMORY: lambda world, op: world._refuse_memory(op.k, op.on),
    OpKind.LINK: lambda world, op: world._link(op.k),
    OpKind.FRAGMENT_MEMORY: lambda world, op: world._fragment_memory(op.k),
    OpKind.SICK_ROW: lambda world, op: world._sicken(op.k),
    OpKind.SPOIL: lambda world, op: world._spoil(op.request_id, op.k, op.on),
    OpKind.LOAD_ADAPTER: lambda world, op: world._change_adapter(op, loads=True),
    OpKind.UNLOAD_ADAPTER: lambda world, op: world._change_adapter(op, loads=False),
    OpKind.RESET_CACHE: lambda world, _op: world._reset(),
    OpKind.RESTART: lambda world, op: world._restart(keeps_content=op.on),
    OpKind.DRAIN: lambda world, _op: world._drain(),
}
