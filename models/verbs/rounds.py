"""Whole rounds of verbs: one iteration of an engine's loop, and the drain, which heals every fault and runs all to its end.

Owns the bound within which a drain must come to rest (SC-7). Never reaches past the verbs.
"""

from __future__ import annotations

from models.left_over import left_over
from models.verbs.acting import Acting, Stage
from models.verbs.faults import FaultVerbs
from models.verbs.plans import PlanVerbs
from models.verbs.users import UserVerbs
from properties.moment import Happening
from properties.op import Op, OpKind
from properties.verdict import Violation

_HOPS = 32  # polls within which what is on a link arrives
_TRANSFER_POLLS = 256


class Rounds(Acting):
    """See the module."""

    def __init__(self, stage: Stage, users: UserVerbs, plans: PlanVerbs, faults: FaultVerbs) -> None:
        super().__init__(stage)
        self._users = users
        self._plans = plans
        self._faults = faults

    def step(self) -> bool:
        """Fences settle with the next plan, in one happening, unless transfers move as well."""
        is_apart = self._caps.has_transfers or len(self._plans.flights) >= self._caps.max_plans_in_flight
        did = self._plans.poll() if is_apart else False
        if self._watch.violation is None:
            did |= self._plans.plan(polls=not is_apart)
        if self._watch.violation is None:
            did |= self._plans.land(0)
        if self._watch.violation is None:
            did |= self._users.deliver()
        return did

    def drain(self) -> bool:
        """Heals every fault and runs everything to its end, within what the target promises."""
        self._faults.refuse(0)
        self._faults.refuse_memory(0, False)
        self._faults.link(0)
        self._faults.fragment_memory(0)
        self._faults.hold(False)
        self._watch.healed()
        did = False
        idle = 0
        bound = (self._facts.requests.remaining_tokens() + 1) * self._caps.progress_bound + len(self._plans.flights) + 1
        for _ in range(bound):
            if not (self._facts.requests.live or self._plans.flights) or self._watch.violation is not None:
                break
            progress = self.step()
            did |= progress
            idle = 0 if progress else idle + 1
            if idle > 2 and not self._is_moving():
                break
            if idle > _HOPS:  # what was lost on the way ends by its deadline
                self._users.advance(Op(OpKind.ADVANCE, seconds=1.0))
        if self._watch.violation is not None:
            return True
        return self._settle(bound) or did

    def _is_moving(self) -> bool:
        """Transfers are under way, that hold blocks and that somebody may wait for."""
        link = self._watch.link
        is_held = self._watch.snapshot.loading or self._watch.snapshot.pinned
        return self._caps.has_remote and bool(is_held or (link is not None and link.is_under_way))

    def _settle(self, bound: int) -> bool:
        did = self._users.deliver()
        for number in range(4 if not self._caps.has_remote else _TRANSFER_POLLS):
            did |= self._plans.poll()
            if self._watch.violation is not None or not (self._watch.snapshot.unsettled or self._is_moving()):
                break
            if number > _HOPS:
                self._users.advance(Op(OpKind.ADVANCE, seconds=1.0))
        if self._watch.violation is not None:
            return True
        live = self._facts.requests.live
        wrong = None
        if live or self._plans.flights:
            names = ", ".join(f"{key[0]}/{key[1]}" for key in list(live)[:4])
            found = f"{len(live)} choices live ({names}), {len(self._plans.flights)} plans in flight"
            wrong = Violation(
                "SC-7", "progress", "after a drain", found, f"none within {bound} iterations, with every fault healed"
            )
        wrong = wrong or self._facts.requests.judge_quiet()
        if self._watch.link is not None:
            wrong = wrong or self._watch.link.drained()
        if self._caps.has_transaction:  # an adapter around another's engine keeps books of its own
            wrong = wrong or left_over(self._target)
        before = self._watch.snapshot
        after, events = self._watch.observe()
        self._watch.judge(Happening.DRAINED, before, after, events, wrong, is_audit=True)
        self._watch.note_counters()
        return did
