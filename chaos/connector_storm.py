"""A connector storm: engines and a real store, faults on what lies between; then everything is healed, and drained.

Owns the order: strike, operate, heal; heal everything; drain; audit. Real processes are not bit-for-bit repeatable: a seed
draws the same plan and the same operations again, and the machine decides the rest. A fault that strikes alone is held until it
has touched something, or for a while; what it did is read from the account, not from what was asked of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from chaos.connector_account import Account, Sight, Window
from chaos.connector_audit import Auditor
from chaos.connector_engines import EngineTraffic
from chaos.connector_lab import CAPACITY_MIB, LEASE_S, Lab, open_lab
from chaos.connector_tap import Tap
from chaos.connector_traffic import CONFIG, PATIENCE_S, KvTraffic, Stalls, Traffic, is_of_time
from chaos.faults import TOXICS, ConnectionFault, Fault, FaultPlan
from chaos.nemesis import CONNECTION_NEMESES
from chaos.nemesis.connection_base import Undo, is_of_one_link, way_of
from chaos.real_runs import hang_in
from properties.invariants.predicate import violation
from properties.kv_end import KvViolation
from properties.verdict import Violation

_OP_S = 0.02  # of the engines' steps, for each operation
_STEP_S = 0.002
_HOLD_S = 15.0  # how long a fault that strikes alone waits for something to touch, on a busy machine
_LONGEST_S, _LONGEST_FAULT_S, _LONGEST_OP_S = 60.0, 3 * _HOLD_S, 10 * _OP_S  # many times what each takes
_DRAIN_S = max(CONFIG.load_deadline_s, CONFIG.store_deadline_s) + CONFIG.abort_grace_s + PATIENCE_S


class TrafficKind(StrEnum):
    """Who is behind the connections."""

    ENDS = "ends"  # engines' ends without a scheduler, with large blocks
    ENGINES = "engines"  # whole engines, judged by all the catalogue


_TRAFFIC: Mapping[TrafficKind, Callable[[int, Sequence[tuple[str, int]], Account, Stalls], Traffic]] = {
    TrafficKind.ENDS: KvTraffic,
    TrafficKind.ENGINES: EngineTraffic,
}


@dataclass(frozen=True, slots=True)
class ConnectorStorm:
    """A plan and the traffic that it strikes; the operations are a pure function of the seed, when they come is not."""

    seed: int
    plan: FaultPlan
    traffic: TrafficKind = TrafficKind.ENDS

    @property
    def title(self) -> str:
        return f"{self.traffic}#{self.seed:#x}: {self.plan.options}"

    @property
    def longest_s(self) -> float:
        """Whoever is not through by then hangs."""
        faults = self.plan.faults
        num_ops = max((fault.at + fault.length for fault in faults), default=0)
        return _LONGEST_S + 4 * _DRAIN_S + _LONGEST_FAULT_S * len(faults) + _LONGEST_OP_S * num_ops


@dataclass(slots=True)
class ConnectorRun:
    """``touched``: what each fault that struck alone did, by its words; 0 if it touched nothing."""

    storm: ConnectorStorm
    account: Account
    proxies: str = ""  # embedded or real
    num_ops: int = 0
    num_turns: int = 0
    took_s: float = 0.0
    strikes: Counter[ConnectionFault] = field(default_factory=Counter)
    touched: dict[str, int] = field(default_factory=dict)
    reached: Counter[str] = field(default_factory=Counter)
    evaluations: Counter[str] = field(default_factory=Counter)
    violation: Violation | None = None

    @property
    def facts(self) -> tuple[str, ...]:
        return self.account.facts()


@dataclass(slots=True)
class _Strike:
    fault: Fault
    undo: Undo
    struck_s: float
    begins_at: int  # place in the account
    is_alone: bool
    bystanders: tuple[str, ...] = ()  # engines on whose connections nothing falls


class _Monotonic:
    def now(self) -> float:
        return time.monotonic()


def run_connector_storm(storm: ConnectorStorm, environ: Mapping[str, str]) -> ConnectorRun:
    """RunnerError or BadInput if the processes can not be had; every other end is a run, at the latest after
    `ConnectorStorm.longest_s`."""
    run = ConnectorRun(storm, Account(_Monotonic()))
    hung = hang_in(storm.title, lambda: _run_storm(run, environ), storm.longest_s, "DI-5")
    run.violation = run.violation or hung
    return run


def _run_storm(run: ConnectorRun, environ: Mapping[str, str]) -> None:
    storm, account = run.storm, run.account
    with open_lab(account, environ, storm.seed % 2**32) as lab:
        run.proxies = str(lab.proxies.kind)
        addresses = [(link.listen.host, link.listen.port) for link in lab.links]
        traffic = _TRAFFIC[storm.traffic](storm.seed, addresses, account, lab.stalls)
        lab.block_bytes = traffic.block_bytes
        stage = _Stage(run, lab, traffic)
        try:
            stage.storm()
            stage.heal_all()
            stage.drain()
        except KvViolation as found:
            run.violation, account.broke_at = found.violation, len(account.seen)
        stage.sum_up()
        traffic.hang_up()
        run.violation = run.violation or stage.audit()
        run.reached.update(lab.bytes_cut())
        told = lab.store.end()
        run.violation = run.violation or _judge_store(lab.store.said, told.get("faults", {}))
    run.took_s = time.monotonic() - account.began_s


class _Stage:
    """One run, from its first operation to its last."""

    def __init__(self, run: ConnectorRun, lab: Lab, traffic: Traffic) -> None:
        self.run = run
        self.lab = lab
        self.traffic = traffic
        self.account = run.account
        self._active: list[_Strike] = []
        self._hang_ups = 0
        self._hung_up_s = 0.0
        self._healed_s = 0.0

    # ---- the storm ----------------------------------------------------------------------------------------------------------

    def storm(self) -> None:
        plan = self.run.storm.plan
        faults = list(plan.faults)
        last = max((fault.at + fault.length for fault in faults), default=0)
        for number in range(last + 1):
            while faults and faults[0].at <= number:
                self._strike(faults.pop(0), is_first=len(plan.faults) - len(faults) <= plan.num_alone)
            self._operate()
            for strike in [each for each in self._active if each.fault.at + each.fault.length <= number]:
                self._heal(strike)

    def _strike(self, fault: Fault, *, is_first: bool) -> None:
        if not self._active:
            self._wait(lambda: self.traffic.is_connected)
        nemesis = CONNECTION_NEMESES[fault.kind]
        is_alone = is_first and not self._active
        for each in self._active:
            each.is_alone = False
        begins_at, struck_s = len(self.account.seen), self.account.clock.now()
        self.account.note("fault", Sight.STRUCK, words=nemesis.words(fault))
        safe = self._bystanders(fault) if is_alone else ()
        self._active.append(_Strike(fault, nemesis.strike(fault, self.lab), struck_s, begins_at, is_alone, safe))
        self.run.strikes[ConnectionFault(fault.kind)] += 1

    def _bystanders(self, fault: Fault) -> tuple[str, ...]:
        """Engines that are out of it, and whose connections have carried a question and its answer since the last heal: what
        an earlier fault did to a connection may show late."""
        others = self._spared(fault)
        self._wait(lambda: all(tap.alive_s > self._healed_s for tap in others))
        return tuple(tap.who for tap in others if tap.alive_s > self._healed_s)

    def _spared(self, fault: Fault) -> Sequence[Tap]:
        return self.traffic.taps[1:] if is_of_one_link(fault) else ()

    def _judge_bystanders(self, strike: _Strike) -> None:
        seen = self.account.seen[strike.begins_at :]
        for each in seen:
            if each.who in strike.bystanders and each.what in (Sight.ENDED, Sight.RESET):
                found = f"ended ({each.words}) while only the link of engine 0 was struck"
                raise KvViolation(violation("DI-5", f"the connection of {each.who}", found, "as if nothing had happened"))
        answered = sum(each.who in strike.bystanders and each.what is Sight.ANSWERED for each in seen)
        self.run.reached["answers to bystanders"] += answered

    def _heal(self, strike: _Strike) -> None:
        nemesis = CONNECTION_NEMESES[strike.fault.kind]
        if strike.is_alone:
            self._wait(lambda: self._touched(strike) > 0)
            self._judge_bystanders(strike)
            name = strike.fault.kind.value + (f" {way_of(strike.fault)}" if strike.fault.kind in TOXICS else "")
            self.run.touched.setdefault(f"{name}: {nemesis.evidence}", 0)
            self.run.touched[f"{name}: {nemesis.evidence}"] += self._touched(strike)
        self._active.remove(strike)
        strike.undo()
        self._healed_s = self.account.clock.now()
        self.account.note("fault", Sight.HEALED, words=nemesis.words(strike.fault))

    def _touched(self, strike: _Strike) -> int:
        now = self.account.clock.now()
        waiting = (at_s for tap in self.traffic.taps for at_s in tap.waiting_since() if at_s >= strike.struck_s)
        spared = [tap.who for tap in self._spared(strike.fault)]
        seen = tuple(each for each in self.account.seen[strike.begins_at :] if each.who not in spared)
        window = Window(strike.struck_s, now, seen, self.lab.block_bytes, tuple(now - at_s for at_s in waiting))
        return CONNECTION_NEMESES[strike.fault.kind].touched(strike.fault, window)

    def _wait(self, is_so: Callable[[], bool]) -> None:
        """The workload goes on until then, but not for ever."""
        ends = time.monotonic() + _HOLD_S
        while not is_so() and time.monotonic() < ends:
            self._operate()

    def _operate(self) -> None:
        self.run.num_ops += 1
        self.traffic.act()
        ends = time.monotonic() + _OP_S
        self._turn()
        while time.monotonic() < ends:
            self._turn()

    def _turn(self) -> None:
        self.run.num_turns += 1
        self.traffic.turn()
        if self.lab.hang_ups > self._hang_ups:
            self._hang_ups, self._hung_up_s = self.lab.hang_ups, self.account.clock.now()
            self.traffic.hang_up()
        self._look_at_the_store()
        time.sleep(_STEP_S)

    def _look_at_the_store(self) -> None:
        if not self.lab.store.is_running:
            found = f"it has ended: {self.lab.store.last_words()}"
            raise KvViolation(violation("DI-3", "the store", found, "running until it is told to end"))
        is_upstream = any(each.fault.kind is ConnectionFault.SLOW_CLOSE and each.fault.on for each in self._active)
        if is_upstream and self.lab.store.num_connections() > sum(tap.connection is not None for tap in self.traffic.taps):
            self.account.note("store", Sight.LINGERS, self.account.clock.now() - self._hung_up_s)

    # ---- behind it ----------------------------------------------------------------------------------------------------------

    def heal_all(self) -> None:
        for strike in list(self._active):
            strike.is_alone = False
            self._heal(strike)
        self.lab.proxies.heal_all()
        self.account.note("fault", Sight.HEALED, words="everything")

    def drain(self) -> None:
        """Everything that was begun ends; then what must succeed does; then nothing is left."""
        number = 0
        self._until_idle()
        while self.traffic.probe(number):
            self._until_idle()
            number += 1
        self.traffic.end()

    def _until_idle(self) -> None:
        ends = time.monotonic() + _DRAIN_S
        while not self.traffic.is_idle:
            if time.monotonic() > ends:
                self.traffic.end()  # says what is left
                found = "engines without a connection, or with requests that wait"
                raise KvViolation(violation("DI-5", "behind the storm", found, f"quiet within {_DRAIN_S:g} s"))
            self._turn()

    def sum_up(self) -> None:
        run = self.run
        run.reached.update(self.traffic.reached())
        run.evaluations.update(self.traffic.evaluations)
        seen = Counter(each.what for each in self.account.seen)
        run.reached["connections reset"] = seen[Sight.RESET]
        run.reached["connections ended by the other end"] = seen[Sight.ENDED]
        run.reached["connections refused"] = seen[Sight.REFUSED]

    def audit(self) -> Violation | None:
        """What the store shows to whoever asks it directly."""
        committed = {key for tap in self.traffic.taps for key in tap.committed}
        spoken = {key for tap in self.traffic.taps for key in tap.spoken}
        auditor = Auditor(("127.0.0.1", self.lab.store.port), self.account.clock, self.traffic.law(), self.lab.block_bytes)
        found = auditor.audit(spoken, committed, (CAPACITY_MIB << 20) // self.lab.block_bytes, LEASE_S)
        self.run.evaluations["DI-3"] += len(spoken)
        self.run.reached["keys audited"] += len(spoken)
        return found


def _judge_store(said: str, faults: Mapping[str, int]) -> Violation | None:
    """A store that nobody attacks has nothing to say on standard error, and ends no connection for what was said on it."""
    if said.strip():
        return violation("DI-3", "the store", f"it said {said.strip().splitlines()[-1]!r}", "nothing on standard error")
    for reason in faults:
        if not is_of_time(reason):
            return violation("DI-3", "the store", f"it ended a connection: {reason}", "every word on it legal and whole")
    return None
