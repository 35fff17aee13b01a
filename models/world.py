"""World: one target, its device, the reference models and every predicate, driven by one operation at a time.

Owns the only loop that all drivers (machines, walk, replay, storms) share: apply an op to the target, let the models learn
what happened, make a `Moment` of it, and judge that; and which verb (`models.verbs`) each op is. Never chooses an op and never
looks inside the target.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, cast

from engine_under_test.adapters.base import RemoteTarget, Target
from engine_under_test.caps import Caps
from engine_under_test.sampling.speculation import Knowledge
from engine_under_test.seams import Hasher
from engine_under_test.types import Snapshot
from models.device import Device
from models.facts import ModelFacts
from models.judging import CheckerCrashed
from models.proposers import Keeping
from models.verbs.acting import Stage
from models.verbs.faults import FaultVerbs
from models.verbs.plans import PlanVerbs
from models.verbs.rounds import Rounds
from models.verbs.users import UserVerbs
from models.watch import Watch
from properties.history import History
from properties.invariants import ALL
from properties.invariants.predicate import Predicate
from properties.moment import Moment
from properties.op import Op, OpKind
from properties.verdict import Violation

if TYPE_CHECKING:
    from models.link_account import LinkAccount  # whose libraries not everybody has


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
    one, the plain one of `models.device`. ``kept_drafts``: the proposer of a target that speculates. ``link``: what is known
    of its link to a remote pool. ``may_wait``: predicates that can wait are asked some steps later, of many moments at once:
    the violation is the same, what is applied until it is found is more. For long runs that are expected to be valid.
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
        link: LinkAccount | None = None,
        may_wait: bool = False,
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
        self._watch = Watch(target, self.facts, self.history, predicates, on_moment, may_wait)
        self.device = Device(caps_of_store(caps)) if device is None else device
        self._watch.orders = self.device.orders
        self._watch.kept_drafts = kept_drafts
        self._watch.link = link
        if kept_drafts is not None:
            self.device.law_of_drafts = kept_drafts.law_of
        if caps.has_remote:
            cast("RemoteTarget", target).attach(self.device if link is None else link.before(self.device))
            self.facts.differs_from_law = self.device.differs_from_law
        stage = Stage(target, self.device, self.facts, self._watch, self.history)
        self._users = UserVerbs(stage)
        self._plans = PlanVerbs(stage)
        self._faults = FaultVerbs(stage, self._plans)
        self._rounds = Rounds(stage, self._users, self._plans, self._faults)

    def apply(self, op: Op) -> bool:
        """One op. Never raises for what a target does: that is a violation."""
        if self._watch.violation is not None:
            return False
        self._watch.op_index += 1
        self._users.admission = None
        self.device.begin(self._watch.op_index, op)
        first = len(self.history)
        try:
            did = _VERBS[op.kind](self, op)
        except CheckerCrashed:
            raise
        except Exception as error:  # whatever a target raises is a finding, and the run goes on to report it
            self._watch.crashed(op, error)
            did = True
        self.history.add_op(op, not did, self._users.admission)
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
        """The first thing wrong, with every predicate asked that waited."""
        is_known = self._watch.violation is not None
        found = self._watch.settle()
        if found is not None and not is_known:
            self.history.add(found)
        return found

    @property
    def is_over(self) -> bool:
        """Something wrong was seen: ops do nothing any more. Asks nobody."""
        return self._watch.violation is not None

    @property
    def checked_steps(self) -> int:
        """Plans that landed with at least one row."""
        return self._watch.checked_steps

    @property
    def evaluations(self) -> Counter[str]:
        """How often each predicate was evaluated, by identifier."""
        self._watch.settle()
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
        return len(self._plans.flights)


# Functions of a World, not methods bound to it: those would tie it into a circle, and with it all that a run has kept.
_VERBS: Final[dict[OpKind, Callable[[World, Op], bool]]] = {
    OpKind.ADD: lambda world, op: world._users.add(op),
    OpKind.ABORT: lambda world, op: world._users.abort(op),
    OpKind.PLAN: lambda world, op: world._plans.plan(waits=op.on),
    OpKind.LAND: lambda world, op: world._plans.land(op.k),
    OpKind.STEP: lambda world, _op: world._rounds.step(),
    OpKind.POLL: lambda world, _op: world._plans.poll(),
    OpKind.HOLD_FENCES: lambda world, op: world._faults.hold(op.on),
    OpKind.DELIVER: lambda world, _op: world._users.deliver(),
    OpKind.ADVANCE: lambda world, op: world._users.advance(op),
    OpKind.ROLLBACK: lambda world, op: world._plans.rollback(waits=op.on),
    OpKind.REFUSE_BLOCK: lambda world, op: world._faults.refuse(op.k),
    OpKind.ABANDON: lambda world, op: world._plans.abandon(op.k, never_runs=op.on),
    OpKind.LAND_AGAIN: lambda world, op: world._plans.land_again(op.k),
    OpKind.REFUSE_MEMORY: lambda world, op: world._faults.refuse_memory(op.k, op.on),
    OpKind.LINK: lambda world, op: world._faults.link(op.k),
    OpKind.FRAGMENT_MEMORY: lambda world, op: world._faults.fragment_memory(op.k),
    OpKind.SICK_ROW: lambda world, op: world._faults.sicken(op.k),
    OpKind.STUCK_ROW: lambda world, op: world._faults.sicken(op.k, of_itself=True),
    OpKind.SPOIL: lambda world, op: world._faults.spoil(op.request_id, op.k, op.on),
    OpKind.LOAD_ADAPTER: lambda world, op: world._users.change_adapter(op, loads=True),
    OpKind.UNLOAD_ADAPTER: lambda world, op: world._users.change_adapter(op, loads=False),
    OpKind.RESET_CACHE: lambda world, _op: world._users.reset(),
    OpKind.RESTART: lambda world, op: world._plans.restart(keeps_content=op.on),
    OpKind.DRAIN: lambda world, _op: world._rounds.drain(),
}
