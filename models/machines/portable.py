"""The machine that any target can be driven by: synchronous verbs only, and of the others those that its caps name.

Owns which operation may come next in which state, so that hardly any is a no-op. Judges nothing: a violation is the World's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from engine_under_test.types import Request
from models.machines.driving import Driver
from models.machines.tally import InvariantBroken, Tally
from models.strategies import IDENTIFIERS, refused_requests, repeats, requests, traits
from properties.op import Op, OpKind

MAX_LIVE = 7


class PortableMachine(RuleBasedStateMachine):
    """Subclasses say which worlds they build (`world_specs`) and add rules. ``tally`` is set by whoever runs the machine."""

    tally: Tally
    driver: Driver | None = None
    drive = Driver  # how a world of a spec is built; a test puts in a target with a planted bug

    @staticmethod
    def world_specs() -> st.SearchStrategy[dict[str, Any]]:
        """The worlds that this machine runs in."""
        raise NotImplementedError("a machine says which worlds it runs in")

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        self.driver = self.drive(data.draw(self.world_specs(), label="world"))
        self.traits = data.draw(traits(self.driver.caps), label="traits")
        self.now = 0.0
        self.accepted: list[Request] = []

    def do(self, op: Op) -> None:
        """Applies `op`; the first violation ends the example."""
        assert self.driver is not None
        self.driver.apply(op)
        self.now += op.seconds
        if self.driver.violation is not None:
            raise InvariantBroken(self.driver.violation)

    def teardown(self) -> None:
        """Every example ends with a drain: nothing pending, every block home."""
        if self.driver is None:
            return
        try:
            if self.driver.violation is None:
                self.do(Op(OpKind.DRAIN))
                self.driver.judge_history()
                if self.driver.violation is not None:
                    raise InvariantBroken(self.driver.violation)
        finally:
            self.tally.add(self.driver)

    # What a rule may look at.

    @property
    def world(self) -> Driver:
        assert self.driver is not None
        return self.driver

    def live(self) -> list[str]:
        """Identifiers of live requests, in a stable order."""
        return list(dict.fromkeys(key[0] for key in self.world.live))

    def num_in_flight(self) -> int:
        """Plans whose result was not handed in yet."""
        return len(self.world.waiting_plans())

    def has_room(self) -> bool:
        """One more plan may be launched."""
        return len(self.world.snapshot.plans) < self.world.caps.max_plans_in_flight

    def has_work(self) -> bool:
        return bool(self.live()) or self.num_in_flight() > 0

    def unused(self) -> list[str]:
        live = set(self.live())
        return [name for name in IDENTIFIERS if name not in live]

    # What may come next. One rule, so that Hypothesis never disables what everything else needs (adding, stepping).

    @rule(data=st.data())
    def act(self, data: st.DataObject) -> None:
        weighted = [name for name, weight in self.moves().items() for _ in range(weight)]
        move: Callable[[st.DataObject], None] = getattr(self, data.draw(st.sampled_from(weighted), label="move"))
        move(data)

    def moves(self) -> dict[str, int]:
        """Methods that apply now, with their weights, simplest first. Never empty: a request can be added, or has work."""
        may_add = len(self.live()) < MAX_LIVE
        found = {"step": 4 * self.has_work(), "run_on": 3 * self.has_work(), "add": 5 * may_add}
        if self.live() and self.has_room():
            found |= {"plan": 2, "plan_ahead": 3 * (self.world.caps.max_plans_in_flight > 1)}
        found |= {"land": 3 * (self.num_in_flight() > 0), "interfere": 2 * bool(self.interferences())}
        return found

    def add(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(["new"] * 4 + ["again"] * 3 + ["refused", "duplicate"]), label="kind")
        name = data.draw(st.sampled_from(self.unused()[:4]), label="name")
        if kind == "refused":
            self.do(Op(OpKind.ADD, request=data.draw(refused_requests(self.world.caps, name), label="request")))
            return
        if kind == "duplicate" and (live := self.live()):
            name = live[0]
        if kind == "again" and self.accepted:
            request = data.draw(repeats(self.accepted[-4:], name), label="request")
        else:
            caps = replace(self.world.caps, adapters=self.world.adapters)
            request = data.draw(requests(caps, self.traits, name, self.now), label="request")
        self.do(Op(OpKind.ADD, request=request))
        self.accepted.append(request)

    def step(self, _data: st.DataObject) -> None:
        self.do(Op(OpKind.STEP))

    def run_on(self, data: st.DataObject) -> None:
        for _ in range(data.draw(st.integers(2, 5), label="times")):
            if self.has_work():
                self.do(Op(OpKind.STEP))

    def plan(self, _data: st.DataObject) -> None:
        self.do(Op(OpKind.PLAN))

    def plan_ahead(self, _data: st.DataObject) -> None:
        for _ in range(self.world.caps.max_plans_in_flight - len(self.world.snapshot.plans)):
            self.do(Op(OpKind.PLAN))

    def land(self, data: st.DataObject) -> None:
        self.do(Op(OpKind.LAND, k=data.draw(st.integers(0, self.num_in_flight() - 1), label="k")))

    def interfere(self, data: st.DataObject) -> None:
        self.do(data.draw(st.sampled_from(self.interferences()), label="op"))

    def interferences(self) -> list[Op]:
        """What a user or the clock may do now, in a stable order."""
        caps = self.world.caps
        found: list[Op] = []
        if self.world.has_unsent:
            found += [Op(OpKind.DELIVER)]
        if caps.has_abort:
            found += [Op(OpKind.ABORT, request_id=name) for name in (*self.live(), *self.ended_unsent())]
        if caps.has_deadlines and self.traits.deadlines:
            found += [Op(OpKind.ADVANCE, seconds=seconds) for seconds in (0.25, 1.0, 4.0)]
        if self.has_work() and len(self.world.ops) % 5 == 0:  # not often: it ends all that is interesting
            found += [Op(OpKind.DRAIN)]
        return found

    def ended_unsent(self) -> list[str]:
        """The request that ended last, if its end was not delivered."""
        live = set(self.live())
        ended = [request.request_id for request in self.accepted if request.request_id not in live]
        return ended[-1:] if self.world.has_unsent else []
