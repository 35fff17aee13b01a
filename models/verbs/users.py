"""What those around an engine ask of it: users, whoever loads adapters or empties the cache, and the clock.

Owns the answer to the request that was added last. Never moves a plan.
"""

from __future__ import annotations

from engine_under_test.types import Adapter, Admission
from models.verbs.acting import Acting
from properties.moment import Happening
from properties.op import Op
from properties.verdict import Violation


class UserVerbs(Acting):
    """``admission``: of the request that the operation under way added, if it is one that adds."""

    admission: Admission | None = None

    def add(self, op: Op) -> bool:
        """The operation's request is submitted."""
        request = op.request
        if request is None:
            return False
        before = self._watch.snapshot
        answer = self.admission = self._target.add(request)
        wrong = self._facts.requests.judge_admission(request, answer, self._facts.clock_s)
        after, events = self._watch.observe()
        if answer.is_accepted and wrong is None:
            self._facts.accepted(request, answer.incarnation)
        self._watch.judge(Happening.ADDED, before, after, events, wrong, request=request, is_accepted=answer.is_accepted)
        return True

    def abort(self, op: Op) -> bool:
        """Also one that has ended: the target must say so."""
        model = self._facts.requests
        keys = model.keys_of(op.request_id)
        if not self._caps.has_abort or not model.was_known(op.request_id):
            return False
        before = self._watch.snapshot
        told = self._target.abort(op.request_id)
        after, events = self._watch.observe()
        wrong = None
        may_differ = self._caps.has_deadlines and not self._caps.has_events  # an end by deadline shows with its output only
        if told is not bool(keys) and not may_differ:
            state = "live" if keys else "ended"
            wrong = Violation("SC-6", "abort", f"abort of {op.request_id}", f"{told}", f"{bool(keys)}: the request is {state}")
        elif told:
            self._facts.aborted(op.request_id, after)
            self._device.forget(keys)
        request = self._facts.requests.ended[keys[0]].request if keys and told and wrong is None else None
        self._watch.judge(Happening.ABORTED, before, after, events, wrong, request=request, is_accepted=told)
        return told

    def deliver(self) -> bool:
        """What the target has for its users is fetched."""
        outputs = self._target.take_outputs()
        if not outputs:
            return False
        self._history.extend(outputs)
        model = self._facts.requests
        wrong = model.deliver(outputs, self._facts.clock_s)
        if model.fresh_ends:
            self._facts.told_ends(model.fresh_ends, self._watch.snapshot)
            self._device.forget(model.fresh_ends)
            model.fresh_ends = []
        self._watch.judge(Happening.DELIVERED, self._watch.snapshot, self._watch.snapshot, (), wrong, outputs=outputs)
        return True

    def advance(self, op: Op) -> bool:
        """The clock goes on."""
        if not op.seconds > 0:
            return False
        before = self._watch.snapshot
        self._target.advance_clock(op.seconds)
        self._facts.advanced(op.seconds)
        after, events = self._watch.observe(may_be_quiet=True)
        wrong = self._watch.learn(events, before, after)
        if after is not before or wrong is not None:
            self._watch.judge(Happening.OTHER, before, after, events, wrong)
        return True

    def change_adapter(self, op: Op, loads: bool) -> bool:
        """A load or an unload, refused ones included."""
        if not self._caps.has_adapter_loads:
            return False
        adapter, before = Adapter(op.request_id, op.k), self._watch.snapshot
        verb = self._more.load_adapter if loads else self._more.unload_adapter
        answer = verb(adapter)
        learn = self._facts.slots.loaded if loads else self._facts.slots.unloaded
        wrong = learn(adapter, answer)
        after, events = self._watch.observe()
        self._watch.judge(Happening.OTHER, before, after, events, self._watch.learn(events, before, after) or wrong)
        return answer

    def reset(self) -> bool:
        """The prefix cache is emptied."""
        if not self._caps.has_reset:
            return False
        before = self._watch.snapshot
        self._more.reset_cache()
        after, events = self._watch.observe()
        self._facts.reset()
        wrong = self._watch.learn(events, before, after)
        self._watch.judge(Happening.RESET, before, after, events, wrong)
        return True
