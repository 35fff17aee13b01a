"""Ranks in containers, killed, paused, cut off and starved from outside: for machines with a Docker engine.

    assay gate --suites chaos.container_suites

It is no part of the gate, since few machines have an engine; without one it is unknown and says how to have one. Owns which
blow falls when. Real containers are not bit-for-bit repeatable; what it finds comes with the account of what happened.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import chain

from chaos.rank_containers import INTERFACE, ContainerRank, Containers
from chaos.rank_kills import RankRun, RankStorm, run_rank_storm
from chaos.rank_strikes import Blow, Strike
from chaos.rank_suite import failure_of
from differential.suites import with_extras
from engine_under_test.distributed.rank_config import Patience
from engine_under_test.distributed.rank_messages import RankPhase
from engine_under_test.distributed.rank_supervisor import Policy
from engine_under_test.distributed.ranks import Ranks
from engine_under_test.errors import AssayError
from properties.suite import CheckResult, Failure, Figure, Label, Profile, Suite, SuiteContext
from properties.verdict import Verdict

SUITE_ID = "ranks-docker"
PATIENCE = Patience(beat_s=0.1, silence_s=4.0, step_s=30.0)
_REACHED_S = 0.5  # by then a rank that was sent a step waits inside its collective, for an hour if need be

BLOWS: dict[str, Callable[[ContainerRank], None]] = {
    "container killed": ContainerRank.kill,
    "container paused": ContainerRank.pause,
    "container off its network": ContainerRank.disconnect,
}
STARVED = "container at its memory limit"


def run_in_containers(name: str, seed: int, launcher: Containers, world_size: int = 2) -> RankRun:
    """One storm: a rank waits in the middle of a collective while its container gets this blow, or takes all of its memory."""
    is_starved = name == STARVED
    strike = Strike(
        Blow.EXHAUST if is_starved else Blow.HOLD,
        RankPhase.BEFORE_REPLY if is_starved else RankPhase.IN_COLLECTIVE,
        seed % world_size,
        3 + seed % 4,
    )
    storm = RankStorm(seed, world_size, Policy.END if seed % 2 else Policy.CONTINUE, (strike,), seed % 3, name)
    struck = None if is_starved else partial(_strike_later, BLOWS[name])
    return run_rank_storm(storm, launcher, PATIENCE, interface=INTERFACE, struck=struck)


def _strike_later(blow: Callable[[ContainerRank], None], strike: Strike, group: Ranks) -> None:
    rank = group.processes[strike.rank]
    assert isinstance(rank, ContainerRank)  # its launcher starts nothing else
    timer = threading.Timer(_REACHED_S, blow, (rank,))
    timer.daemon = True
    timer.start()


def check_containers(context: SuiteContext) -> CheckResult:
    """Each blow once; at night with two and with four ranks."""
    sizes = (2, 4) if context.profile is Profile.NIGHTLY else (2,)
    cases = [(name, size) for size in sizes for name in (*BLOWS, STARVED)]
    runs: list[RankRun] = []
    failure: Failure | None = None
    try:
        launcher = Containers()
        try:
            for number, (name, size) in enumerate(cases):
                run = run_in_containers(name, context.seed % 2**32 + number, launcher, size)
                runs.append(run)
                context.progress(len(runs), len(cases))
                if run.violation is not None:
                    failure = failure_of(run.violation, f"{name}: {run.storm.title}", run.facts)
                    break
        finally:
            launcher.close()
    except AssayError as error:
        return CheckResult(SUITE_ID, Verdict.UNKNOWN, note=str(error))
    return _result([name for name, _ in cases], runs, failure)


def _result(names: list[str], runs: list[RankRun], failure: Failure | None) -> CheckResult:
    reached, evaluations = Counter[str](), Counter[str]()
    missed: list[str] = []
    for name, run in zip(names, runs, strict=False):
        reached[name] += bool(run.noticed_s)
        reached["groups that began anew"] += run.num_restarts
        for each in run.verdicts:
            evaluations[each.identifier] += each.evidence
        if not run.noticed_s:
            missed.append(f"a blow that falls, in {name}: {run.storm.title}")
    longest = max(chain.from_iterable(run.noticed_s for run in runs), default=0.0)
    return CheckResult(
        SUITE_ID,
        Verdict.INVALID if failure else Verdict.UNKNOWN if missed else Verdict.VALID,
        examples=len(runs),
        ops=sum(run.num_steps for run in runs),
        reached=dict(reached),
        missed=() if failure else tuple(missed),
        invariants=dict(evaluations),
        failures=(failure,) if failure else (),
        figures=(Figure("ranks-docker.longest_notice", longest, "s", Label.OBSERVED, f"bound {PATIENCE.notice_s:g} s"),),
        note=f"{len(runs)} storms on real containers, not bit-for-bit repeatable",
    )


SUITES: tuple[Suite, ...] = (
    Suite(
        SUITE_ID,
        "ranks in containers",
        partial(with_extras, SUITE_ID, "chaos.container_suites", "check_containers"),
        share_s=120.0,
        extras=("model", "chaos"),
    ),
)
