"""The suite of KV transfers: walks of a connector and a store over a link that misbehaves, judged at both ends (DI-3 to DI-5).

Owns its sizes and floors. What a walk may do stands in `properties.kv_walk`, what must hold in
`properties.invariants.transfers`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace

from properties.suite import CheckResult, Failure, Profile, Suite, SuiteContext
from properties.verdict import verdict_of

_WALKS = {Profile.QUICK: 40, Profile.PR: 250, Profile.NIGHTLY: 20_000}
_FLOORS = {  # in profile pr
    "loaded blocks": 200,
    "loads cut": 50,
    "transfers aborted": 50,
    "stored blocks": 200,
    "spoiled blocks": 20,
    "connections lost": 50,
    "leases ended": 20,
    "stores said again": 10,
    "unanswered aborts": 3,
    "blocks that rot before their END": 1,  # its story
}


def run_transfers(context: SuiteContext) -> CheckResult:
    """A fixed number of walks, up to the first violation, which is shrunk and told."""
    from properties.kv_walk import run, shrink, walk  # an extra's libraries, that not everybody has

    total = _WALKS[context.profile]
    evaluations, reached, digests = Counter[str](), Counter[str](), hashlib.sha256()
    failures: tuple[Failure, ...] = ()
    done = ops = 0
    while done < total and not failures:
        seed = context.seed * 1_000_000 + done
        steps = walk(context.seed * 1_000_000, done)
        found = run(steps)
        done, ops = done + 1, ops + len(steps)
        evaluations.update(found.evaluations)
        reached.update(found.reached)
        digests.update(repr((sorted(found.evaluations.items()), sorted(found.reached.items()))).encode())
        context.progress(done, total)
        if found.violation is not None:
            story = shrink(steps, found.violation.invariant)
            violation = run(story).violation or found.violation
            facts = (*violation.facts, *(f"{number}  {op}" for number, op in enumerate(story, start=1)))
            world = {"target": "transfers", "walk": [list(op) for op in story]}
            failures = (Failure(replace(violation, facts=facts), f"transfers#{seed:#x}", world),)
    share = total / _WALKS[Profile.PR]
    missed = tuple(
        f"{name}: {reached[name]} of {floor * share:.0f}"
        for name, floor in _FLOORS.items()
        if context.profile is not Profile.QUICK and reached[name] < floor * share
    )
    return CheckResult(
        "transfers",
        verdict_of(failures, missed),
        examples=done,
        ops=ops,
        reached=dict(sorted(reached.items())),
        missed=() if failures else missed,
        invariants=dict(evaluations),
        failures=failures,
        digests={"transfers": digests.hexdigest()},
        note=f"{done} walks of connector and store over a faulty link",
    )


TRANSFERS = Suite("transfers", "KV transfers", run_transfers, share_s=12.0, has_walk_seeds=True, extras=("connector",))
