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
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.store_pool import StorePool
from engine_under_test.distributed.store_session import _HANDLERS, StoreSession, StoreTransfer
from engine_under_test.distributed.transfers import Transfer
from properties.kv_walk import KvOp, apply, draw, run, shrink, warm_up
from properties.kv_world import KvWorld

_SMALL = st.integers(0, 11)


class ConnectorMachine(RuleBasedStateMachine):
    """The operations of `properties.kv_walk`, explored and shrunk by Hypothesis; ``world`` is new in each run."""

    def __init__(self) -> None:
        super().__init__()
        self.world = KvWorld()
        self.num_ops = 0

    def do(self, kind: str, one: int, two: int = 0) -> None:
        self.num_ops += 1
        apply(self.world, KvOp(kind, one, two), f"request {self.num_ops}")

    @initialize()
    def warm(self) -> None:
        warm_up(self.world)

    @rule(family=_SMALL, num_blocks=_SMALL)
    def begin(self, family: int, num_blocks: int) -> None:
        self.do("begin", family, num_blocks)

    @rule(num_blocks=_SMALL, num_rounds=_SMALL)
    def begin_to_load(self, num_blocks: int, num_rounds: int) -> None:
        self.do("begin to load", num_blocks, num_rounds)

    @precondition(lambda self: self.world.requests)
    @rule(pick=_SMALL)
    def abort(self, pick: int) -> None:
        self.do("abort", pick)

    @rule(most_accepted=_SMALL)
    def step(self, most_accepted: int) -> None:
        self.do("step", most_accepted)

    @precondition(lambda self: self.world.link.lanes)
    @rule(kind=st.sampled_from(["deliver"] * 6 + ["repeat", "lose", "hurry", "hurry"]), pick=_SMALL, num_messages=_SMALL)
    def deliver(self, kind: str, pick: int, num_messages: int) -> None:
        self.do(kind, pick, num_messages)

    @rule(rounds=_SMALL)
    def go_on(self, rounds: int) -> None:
        self.do("go on", rounds)

    @rule(kind=st.sampled_from(["wait", "wait, and the store notices"]), seconds=_SMALL)
    def wait(self, kind: str, seconds: int) -> None:
        self.do(kind, seconds)

    @rule(kind=st.sampled_from(["cut", "congest", "rot", "forget", "cut", "relieve", "restart"]), place=_SMALL)
    def disturb(self, kind: str, place: int) -> None:
        self.do(kind, place)

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


PLANTED = {
    "pins go with the request": (Connector, "abort", _pins_go_with_the_request, "DI-3"),
    "aborts are not waited for": (Connector, "_abort", _aborts_are_not_waited_for, "DI-3"),
    "gaps are counted": (Transfer, "num_whole", property(_gaps_are_counted), "DI-3"),
    "a store is visible as it comes": (StoreSession, "_on_block", _visible_as_it_comes, "DI-3"),
    "lost loads are not answered": (Connector, "_answer", _lost_loads_are_not_answered, "DI-3"),
    "credit is added up": (StoreSession, "_on_credit", _credit_is_added_up, "DI-5"),
    "blocks are not checked": (m, "digest_of", _blocks_are_not_checked, "DI-3"),
    "offers pin nothing": (StorePool, "pin", _offers_pin_nothing, "DI-3"),
}


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_a_walk_finds_and_shrinks(monkeypatch: pytest.MonkeyPatch, planted: tuple[object, str, object, str]) -> None:
    owner, name, broken, invariant = planted
    for kind, handler in _HANDLERS.items():
        if handler is getattr(owner, name):
            monkeypatch.setitem(_HANDLERS, kind, broken)
    monkeypatch.setattr(owner, name, broken)
    found = next((seed for seed in range(150) if run(draw(seed)).violation is not None), None)
    assert found is not None
    violation = run(draw(found)).violation
    assert violation is not None
    assert violation.invariant == invariant
    ops = shrink(draw(found), invariant, most_runs=40)
    assert len(ops) < len(draw(found))
    again = run(ops).violation
    assert again is not None
    assert again.invariant == invariant


def test_a_walk_is_what_its_seed_says() -> None:
    assert draw(7) == draw(7)
    assert run(draw(7)).reached == run(draw(7)).reached
