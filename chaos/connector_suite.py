"""The suite of connector storms: real engines' ends, a real store, a Toxiproxy between them, and faults of every kind.

Owns sizes and floors. Real processes are not bit-for-bit repeatable, so this suite has no digests and nothing to shrink: what
it finds comes with the account of what happened. A fault that touched nothing makes the run unknown. It needs a machine that
may start processes and connect them over the loopback device, and the extras `connector` and `chaos`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.connector_storm import ConnectorRun, ConnectorStorm, TrafficKind, run_connector_storm
from chaos.faults import ConnectionFault, draw_connection_plan
from chaos.real_runs import failure_of
from engine_under_test.errors import AssayError
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.sums import Sums
from properties.verdict import Verdict

SUITE_ID = "connectors"
_NIGHTLY = 60
_FEW_KINDS = (ConnectionFault.LIMIT_DATA, ConnectionFault.PROXY_DOWN, ConnectionFault.BANDWIDTH, ConnectionFault.RESET_PEER)
_FLOORS = {  # of the two storms of profile pr
    "loaded blocks": 20,
    "stored blocks": 60,
    "loads cut": 1,
    "transfers aborted": 4,
    "connections lost": 10,
    "connections reset": 2,
    "connections refused": 1,
    "stores that ended over a later connection": 1,
    "keys audited": 50,
    "answers to bystanders": 5,
    "steps on streams": 20,
}


def storms_of(profile: Profile, seed: int) -> Iterator[ConnectorStorm]:
    """In pr one of engines with every kind, and a small one of their ends with large blocks; two small ones for a hunt; many of
    both at night, of which each second pair leaves kinds out."""
    few = draw_connection_plan(seed, _FEW_KINDS, num_together=3, is_every=True)
    if profile is Profile.NIGHTLY:
        for number in range(_NIGHTLY):
            plan = draw_connection_plan(seed + number, is_every=number % 4 < 2)
            yield ConnectorStorm(seed + number, plan, TrafficKind.ENGINES if number % 2 else TrafficKind.ENDS)
        return
    yield ConnectorStorm(seed, few, TrafficKind.ENDS)
    plan = few if profile is Profile.QUICK else draw_connection_plan(seed, is_every=True)
    yield ConnectorStorm(seed, plan, TrafficKind.ENGINES)


@dataclass(slots=True)
class _Sums(Sums):
    kinds: set[str] = field(default_factory=set)  # of proxies

    def add(self, run: ConnectorRun) -> None:
        self.examples += 1
        self.ops += run.num_ops
        self.kinds.add(run.proxies)
        self.reached.update(run.reached)
        self.reached.update(run.touched)
        self.reached.update({f"strikes of {kind}": count for kind, count in run.strikes.items()})
        self.evaluations.update(run.evaluations)
        self.missed += [f"{name}: never, in {run.storm.title}" for name, count in run.touched.items() if not count]


def check_connectors(context: SuiteContext) -> CheckResult:
    """Storms, up to the first violation."""
    sums = _Sums()
    storms = tuple(storms_of(context.profile, context.seed % 2**32))
    failure: Failure | None = None
    try:
        for storm in storms:
            if failure is None:
                run = run_connector_storm(storm, os.environ)
                sums.add(run)
                failure = None if run.violation is None else failure_of(SUITE_ID, run.violation, run.storm.title, run.facts)
            context.progress(sums.examples, len(storms))
    except AssayError as error:
        return CheckResult(SUITE_ID, Verdict.UNKNOWN, note=f"no store or no proxy could be had here: {error}")
    if context.profile is not Profile.QUICK:
        share = 1 if context.profile is Profile.PR else _NIGHTLY // 4  # storms differ in what they leave out
        floors = {name: floor * share for name, floor in _FLOORS.items()}
        sums.require(floors)
    proxies = " and ".join(sorted(sums.kinds)) or "no"
    note = f"{sums.examples} storms on real processes, through {proxies} Toxiproxy, not bit-for-bit repeatable"
    return sums.result(SUITE_ID, [failure], note)
