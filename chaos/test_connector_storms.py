"""Connector storms: plans as values, what an account shows, and small real storms that are clean or find what was planted."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from chaos.connector_account import Account, Sight, Window
from chaos.connector_storm import ConnectorRun, ConnectorStorm, TrafficKind, run_connector_storm
from chaos.connector_suite import check_connectors
from chaos.connector_tap import Tap
from chaos.connector_traffic import PATIENCE_S
from chaos.faults import TOXICS, ConnectionFault, Fault, FaultPlan, draw_connection_plan
from chaos.nemesis import CONNECTION_NEMESES
from chaos.proxies import Proxies
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import Machine
from engine_under_test.distributed.tcp import TcpTransport
from engine_under_test.distributed.transfers import Transfer
from properties.invariants.catalogue import CATALOGUE
from properties.kv_world import HandClock
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


@pytest.fixture(autouse=True)
def no_process_is_left(proxies: Proxies, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The server of this test process, which may have no other one; what a test started has ended with it."""
    monkeypatch.setattr("chaos.connector_lab.open_proxies", lambda _environ, **_: contextlib.nullcontext(proxies))
    before = {child.pid for child in psutil.Process().children()}
    yield
    assert {child.pid for child in psutil.Process().children()} <= before


def test_a_plan_is_a_pure_function_of_its_seed_and_strikes_with_every_toxic_in_both_directions() -> None:
    plan = draw_connection_plan(7, is_every=True)
    assert plan == draw_connection_plan(7, is_every=True)
    assert plan.active == tuple(ConnectionFault)
    struck = {(fault.kind, fault.on) for fault in plan.faults}
    assert {(kind, on) for kind in TOXICS for on in (False, True)} <= struck
    assert {fault.kind for fault in plan.faults} == set(ConnectionFault)


def test_over_many_seeds_every_pair_of_kinds_is_active_and_kinds_that_are_not_wanted_never() -> None:
    plans = [draw_connection_plan(seed) for seed in range(200)]
    pairs = {(one, other) for plan in plans for one in plan.active for other in plan.active if one < other}
    kinds = sorted(ConnectionFault)
    assert pairs == {(one, other) for one in kinds for other in kinds if one < other}
    few = draw_connection_plan(1, (ConnectionFault.LATENCY, ConnectionFault.STORE_KILLED), is_every=True)
    assert {fault.kind for fault in few.faults} == {ConnectionFault.LATENCY, ConnectionFault.STORE_KILLED}


def test_every_kind_has_a_nemesis_with_a_heal_and_evidence_and_names_invariants_of_the_catalogue() -> None:
    assert set(CONNECTION_NEMESES) == set(ConnectionFault)
    for kind, nemesis in CONNECTION_NEMESES.items():
        assert nemesis.heals
        assert nemesis.evidence
        assert nemesis.modes == ("process",)
        assert set(nemesis.watched_by) <= set(CATALOGUE)
        assert nemesis.words(Fault(kind, 0, k=1, on=True))


@pytest.mark.parametrize("kind", list(ConnectionFault))
def test_a_fault_that_touched_nothing_has_no_evidence(kind: ConnectionFault) -> None:
    account = Account(HandClock())
    for what in (Sight.CONNECTED, Sight.ACTED, Sight.TOLD, Sight.HUNG_UP, Sight.STARTED):
        account.note("somebody", what)
    account.note("engine", Sight.ANSWERED, 0.001)
    account.note("engine", Sight.SENT, 1e8)
    account.note("engine", Sight.CAME, 1e8)
    for on in (False, True):
        assert CONNECTION_NEMESES[kind].touched(Fault(kind, 0, on=on), Window(0.0, 1.0, tuple(account.seen), 1 << 14)) == 0


def test_an_answer_to_what_was_asked_before_the_strike_is_no_evidence_of_a_delay() -> None:
    clock = HandClock()
    account = Account(clock)
    clock.time = 5.0
    account.note("engine", Sight.ANSWERED, 1.0)
    assert Window(4.5, 5.0, tuple(account.seen), 1 << 14).late_answers(0.5) == 0
    assert Window(4.0, 5.0, tuple(account.seen), 1 << 14).late_answers(0.5) == 1


def storm(*faults: Fault, seed: int = 3, traffic: TrafficKind = TrafficKind.ENDS) -> ConnectorRun:
    active = tuple(dict.fromkeys(fault.kind for fault in faults))
    return run_connector_storm(ConnectorStorm(seed, FaultPlan(seed, active, faults), traffic), os.environ)


CUT = (
    Fault(ConnectionFault.PROXY_DOWN, 8, 4),
    Fault(ConnectionFault.LIMIT_DATA, 16, 4, 1),
    Fault(ConnectionFault.LIMIT_DATA, 24, 4, 1, True),
)
SLOWED = (Fault(ConnectionFault.BANDWIDTH, 8, 40, 0), Fault(ConnectionFault.BANDWIDTH, 8, 40, 0, True))


def test_a_small_storm_is_valid_touches_traffic_and_leaves_an_account() -> None:
    run = storm(*CUT)
    assert run.violation is None, run.facts
    assert all(run.touched.values())
    assert len(run.touched) == 3
    assert run.reached["connections lost"] >= 3
    assert run.reached["loaded blocks"] > 0
    assert run.reached["keys audited"] > 0
    assert {"DI-3", "DI-4", "DI-5"} <= run.evaluations.keys()
    lines = list(run.account.lines(storm=run.storm.title))
    assert '"is_repeatable": false' in lines[0]
    assert sum('"what": "struck"' in line for line in lines) == 3


def test_a_small_storm_on_whole_engines_is_valid_and_judged_by_all_the_catalogue() -> None:
    run = storm(*CUT, traffic=TrafficKind.ENGINES)
    assert run.violation is None, run.facts
    assert all(run.touched.values())
    assert run.reached["loaded blocks"] > 0
    assert {"DI-3", "DI-4", "DI-5", "SE-1", "SE-2", "SC-5", "SC-7", "KV-4"} <= run.evaluations.keys()


def test_an_engine_that_takes_what_was_cut_for_whole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transfer, "num_whole", property(lambda transfer: len(transfer.blocks)))
    slow = (Fault(ConnectionFault.BANDWIDTH, 8, 30, 0), *(Fault(ConnectionFault.PROXY_DOWN, at, 1) for at in (14, 20, 26, 32)))
    # Real time says whether a load is under way at a cut, so a few storms may pass before one strikes it.
    runs = (storm(*slow, seed=seed, traffic=TrafficKind.ENGINES) for seed in range(3, 9))
    found = next((run.violation for run in runs if run.violation is not None), None)
    assert found is not None
    assert found.invariant in ("DI-3", "KV-6", "SE-1")


def _pins_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connector, "_unpin", lambda _self, transfer: setattr(transfer, "blocks", ()))


def _stores_not_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    said = Connector._tell

    def tell(self: Connector, transfer: Transfer, message: m.TransferMessage) -> None:
        if message is transfer.opened and transfer.machine is Machine.STORE_SOURCE and self._connection != 1:
            return
        said(self, transfer, message)

    monkeypatch.setattr(Connector, "_tell", tell)


def _reader_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = TcpTransport._finish_to_connect

    def finish(self: TcpTransport) -> None:
        reader = self._reader
        begun(self)
        self._reader = reader

    monkeypatch.setattr(TcpTransport, "_finish_to_connect", finish)


PLANTS = {
    "pins are lost at the end": (_pins_kept, CUT, "DI-3"),
    "stores are not said again": (_stores_not_said_again, (*SLOWED, Fault(ConnectionFault.PROXY_DOWN, 20, 3)), "DI-3"),
    "half a frame survives its connection": (_reader_kept, CUT, "DI-3"),
}


@pytest.mark.parametrize("plant", PLANTS.values(), ids=list(PLANTS))
def test_what_was_planted_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: tuple[Callable[[pytest.MonkeyPatch], None], tuple[Fault, ...], str]
) -> None:
    install, faults, invariant = plant
    install(monkeypatch)
    run = storm(*faults)
    assert run.violation is not None
    assert run.violation.invariant == invariant


def test_who_is_out_of_a_fault_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    of_one = (Fault(ConnectionFault.LIMIT_DATA, 8, 12, 4), Fault(ConnectionFault.LIMIT_DATA, 24, 12, 4, True))
    run = storm(*of_one)
    assert run.violation is None, run.facts
    assert run.reached["answers to bystanders"] > 0
    monkeypatch.setattr("chaos.connector_lab.is_of_one_link", lambda _fault: False)  # it falls on everybody
    run = storm(*of_one)
    assert run.violation is not None
    assert run.violation.invariant == "DI-5"
    assert "while only the link of engine 0 was struck" in run.violation.found


def test_the_suite_says_so_when_a_fault_touched_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.connector_suite.storms_of", lambda _profile, seed: iter([ConnectorStorm(seed, IDLE)]))
    monkeypatch.setattr("chaos.connector_storm._HOLD_S", 0.3)
    monkeypatch.setattr(Tap, "waiting_since", lambda _tap: [])
    found = check_connectors(SuiteContext(Profile.QUICK, 3))
    assert found.verdict is Verdict.UNKNOWN
    assert any("questions that it left unanswered: never" in missed for missed in found.missed)


IDLE = FaultPlan(3, (ConnectionFault.STORE_FROZEN,), (Fault(ConnectionFault.STORE_FROZEN, 3, 1),))


def test_a_frozen_store_does_not_outlive_a_killed_driver() -> None:
    lines = (
        "import time",
        "from chaos.connector_account import Account",
        "from chaos.connector_lab import StoreProcess",
        "from properties.kv_world import HandClock",
        "store = StoreProcess(Account(HandClock()))",
        "store.start(); store.wait_until_it_listens(); store.freeze()",
        "print(store.pid, flush=True); time.sleep(60)",
    )
    driver = subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    store = psutil.Process(int(driver.stdout.readline()))
    assert store.status() == psutil.STATUS_STOPPED
    driver.kill()
    driver.communicate()
    ends = time.monotonic() + PATIENCE_S
    while store.is_running() and store.status() != psutil.STATUS_ZOMBIE:  # whoever inherits it may be slow to bury it
        assert time.monotonic() < ends
        time.sleep(0.02)
