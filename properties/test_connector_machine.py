"""Explores connector and store over a link that delays, repeats, loses, overtakes between transfers and cuts (DI-3 to DI-5).

Every step ends with all sentences of `properties.invariants.transfers`; every run ends with a drain that leaves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector, Transfer
from engine_under_test.distributed.store_pool import StorePool
from engine_under_test.distributed.store_session import _HANDLERS, StoreSession, StoreTransfer
from properties.kv_link import Fate
from properties.kv_world import KvViolation, KvWorld, key_of

_FATES = st.sampled_from([Fate.ARRIVES] * 6 + [Fate.TWICE, Fate.LOST])


class ConnectorMachine(RuleBasedStateMachine):
    """``world`` is new in each run."""

    def __init__(self) -> None:
        super().__init__()
        self.world = KvWorld()
        self.num_begun = 0

    @initialize()
    def warm_up(self) -> None:
        """The store has a prefix that the engine has forgotten."""
        self.world.settle()
        self.world.begin("warm", 0, 5)
        self.world.settle()
        self.world.forget()

    @rule(family=st.integers(0, 2), num_blocks=st.integers(1, 6))
    def begin(self, family: int, num_blocks: int) -> None:
        self.num_begun += 1
        self.world.begin(f"request {self.num_begun}", family, num_blocks)

    @rule(num_blocks=st.integers(3, 6), num_delivered=st.integers(0, 9))
    def begin_to_load(self, num_blocks: int, num_delivered: int) -> None:
        """A request for the warm prefix, and the first few messages of its load."""
        self.world.forget()
        self.begin(0, num_blocks)
        for _ in range(num_delivered):
            self.go_on(1)

    @precondition(lambda self: self.world.requests)
    @rule(pick=st.integers(0, 5))
    def abort(self, pick: int) -> None:
        names = list(self.world.requests)
        self.world.abort(names[pick % len(names)])

    @rule(most_accepted=st.sampled_from([99, 99, 2, 1]))
    def step(self, most_accepted: int) -> None:
        self.world.step(most_accepted)

    @precondition(lambda self: self.world.link.lanes)
    @rule(pick=st.integers(0, 20), fate=_FATES)
    def deliver(self, pick: int, fate: Fate) -> None:
        lanes = self.world.link.lanes
        self.world.deliver(lanes[pick % len(lanes)], fate)

    @precondition(lambda self: self.world.link.lanes)
    @rule(pick=st.integers(0, 20), num_messages=st.integers(1, 4))
    def hurry(self, pick: int, num_messages: int) -> None:
        """Messages of one transfer overtake all others."""
        lanes = self.world.link.lanes
        lane = lanes[pick % len(lanes)]
        for _ in range(num_messages):
            if lane in self.world.link.lanes:
                self.world.deliver(lane)

    @rule(rounds=st.integers(1, 4))
    def go_on(self, rounds: int) -> None:
        """Everything moves a little."""
        self.world.link.connect()
        for _ in range(rounds):
            self.world.step()
            for lane in self.world.link.lanes:
                if lane in self.world.link.lanes:
                    self.world.deliver(lane)

    @rule(seconds=st.sampled_from([0.5, 3.0, 4.5, 9.0, 11.0, 21.0]), does_store_notice=st.booleans())
    def wait(self, seconds: float, does_store_notice: bool) -> None:
        self.world.clock.time += seconds
        if does_store_notice:
            self.world.tick_store()

    @rule(what=st.sampled_from(["cut", "congest", "rot", "forget", "cut", "relieve", "restart"]), place=st.integers(0, 4))
    def disturb(self, what: str, place: int) -> None:
        if what == "cut":
            self.world.link.cut()
        elif what in ("congest", "relieve"):
            self.world.link.is_congested = what == "congest"
        elif what == "rot":
            self.world.rot(key_of(0, place))
        elif what == "forget":
            self.world.forget()
        elif self.num_begun > 3:
            self.world.restart()

    def teardown(self) -> None:
        self.world.drain()


def _explore(examples: int, *, phases: Sequence[Phase] = (Phase.generate, Phase.shrink)) -> None:
    run_state_machine_as_test(
        ConnectorMachine,
        settings=settings(
            max_examples=examples,
            phases=phases,
            report_multiple_bugs=False,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_whatever_the_link_does_transfers_stay_true() -> None:
    _explore(80)


# ---- the machine finds bugs that are known from elsewhere ------------------------------------------------------------------

_abort, _abort_transfer, _answer = Connector.abort, Connector._abort, Connector._answer
_on_block, _on_credit = StoreSession._on_block, StoreSession._on_credit


def _pins_go_with_the_request(self: Connector, transfer: int) -> None:
    """The blocks of an aborted load go at once, though the store may still write (sglang, prefill/decode split)."""
    found = self.transfers.get(transfer)
    _abort(self, transfer)
    if found is not None:
        self._unpin(found)


def _gaps_are_counted(self: Transfer) -> int:
    """What arrived is counted, whether or not it is contiguous."""
    return len(self.arrived)


def _visible_as_it_comes(self: StoreSession, transfer: StoreTransfer, message: m.Block) -> None:
    """A block of a store is visible before its END (sglang, an aborted prefill)."""
    _on_block(self, transfer, message)
    self._shelf.pool.put([transfer.opened.keys[message.number]], [transfer.staged[message.number]])


def _lost_loads_are_not_answered(self: Connector, transfer: Transfer, reason: str) -> None:
    """Nobody is told when the connection goes (vllm, a sender that fails to start)."""
    if reason != "the connection was lost":
        _answer(self, transfer, reason)


def _aborts_are_not_waited_for(self: Connector, transfer: Transfer, reason: str) -> None:
    """A transfer is over as soon as its abort is said: the pin goes, the store still sends (vllm, sibling handles)."""
    _abort_transfer(self, transfer, reason)
    if transfer.number in self.transfers:
        self._end(transfer)


def _credit_is_added_up(self: StoreSession, transfer: StoreTransfer, message: m.Credit) -> None:
    """A credit that is said twice counts twice."""
    transfer.granted += message.total_bytes
    _on_credit(self, transfer, message)


def _blocks_are_not_checked(_data: bytes) -> bytes:
    """Every digest is the same (Mooncake: later chunks were garbage, and the transfer was completed)."""
    return bytes(16)


def _offers_pin_nothing(_self: StorePool, _keys: Sequence[bytes]) -> None:
    """What is offered may be evicted (vllm, the sending side frees by a timer)."""


_TRUE = "DI-3"
_NEVER_ENDS = ""  # found as something that is left behind the drain, or as a broken assertion

PLANTED = {
    "pins go with the request": (Connector, "abort", _pins_go_with_the_request, _TRUE),
    "aborts are not waited for": (Connector, "_abort", _aborts_are_not_waited_for, _TRUE),
    "gaps are counted": (Transfer, "num_whole", property(_gaps_are_counted), _TRUE),
    "a store is visible as it comes": (StoreSession, "_on_block", _visible_as_it_comes, _TRUE),
    "lost loads are not answered": (Connector, "_answer", _lost_loads_are_not_answered, _NEVER_ENDS),
    "credit is added up": (StoreSession, "_on_credit", _credit_is_added_up, "DI-5"),
    "blocks are not checked": (m, "digest_of", _blocks_are_not_checked, _TRUE),
    "offers pin nothing": (StorePool, "pin", _offers_pin_nothing, _TRUE),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_the_machine_finds(monkeypatch: pytest.MonkeyPatch, planted: tuple[object, str, object, str]) -> None:
    owner, name, broken, invariant = planted
    for kind, handler in _HANDLERS.items():
        if handler is getattr(owner, name):
            monkeypatch.setitem(_HANDLERS, kind, broken)
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(AssertionError if not invariant else KvViolation) as caught:
        _explore(150, phases=(Phase.generate,))
    if isinstance(caught.value, KvViolation) and invariant:
        assert caught.value.violation.invariant == invariant
