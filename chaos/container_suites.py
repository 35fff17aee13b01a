"""Ranks in containers, killed, paused, cut off and starved from outside: for machines with a Docker engine.

    assay gate --suites chaos.container_suites

Part of the profile nightly, which is unknown without an engine and says how to have one. Owns which blow falls when. Real
containers are not bit-for-bit repeatable; what it finds comes with the account of what happened.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Final

from chaos.container_blows import BLOWS, PATIENCE, ContainerBlow, Striker
from chaos.rank_containers import INTERFACE, Containers
from chaos.rank_kills import RankRun, RankStorm, run_rank_storm
from chaos.rank_strikes import Strike
from chaos.real_runs import failure_of
from differential.suites import with_extras
from engine_under_test.distributed.rank_messages import RankPhase
from engine_under_test.distributed.rank_supervisor import Policy
from engine_under_test.errors import AssayError
from properties.suite import CheckResult, Failure, Figure, Label, Profile, Suite, SuiteContext
from properties.sums import Sums
from properties.verdict import Verdict

SUITE_ID = "ranks-docker"
_PHASES = (RankPhase.IN_COLLECTIVE, RankPhase.BEFORE_PLAN, RankPhase.BEFORE_REPLY)
CASES: Final = tuple((blow, phase) for phase in _PHASES for blow in BLOWS)  # inside a collective first


def run_in_containers(
    blow: ContainerBlow, phase: RankPhase, seed: int, launcher: Containers, world_size: int = 2
) -> RankRun:  # fmt: skip
    """One storm: a rank stands at this phase of a step while its container gets this blow, or takes all of its memory."""
    strike = Strike(blow.inside, phase, seed % world_size, 3 + seed % 4)
    storm = RankStorm(
        seed, world_size, Policy.END if seed % 2 else Policy.CONTINUE, (strike,), seed % 3, blow.name if blow.befalls else ""
    )
    striker = Striker(blow)
    run = run_rank_storm(storm, launcher, blow.patience, interface=INTERFACE, struck=striker)
    striker.join()
    run.outside = striker.facts
    run.missed = _missed(run, blow, striker)
    return run


def _missed(run: RankRun, blow: ContainerBlow, striker: Striker) -> str:
    """What this storm was to show and did not, though nothing need be wrong: "" if it did."""
    if not striker.has_fallen:
        return f"a blow that falls, in {run.storm.title}: {'; '.join(striker.facts) or 'its step was never sent'}"
    reasons = [event.reason for event in run.losses]
    if blow.noticed_as and not any(blow.noticed_as in reason for reason in reasons):
        return f'a rank that "{blow.noticed_as}", in {run.storm.title}: {"; ".join(reasons) or "none was lost"}'
    if blow.heals and reasons:
        return f"a group that outlives a moment, in {run.storm.title}: {'; '.join(reasons)}"
    return ""


def check_containers(context: SuiteContext) -> CheckResult:
    """Each blow once, inside a collective; at night at each phase, with two and with four ranks."""
    is_night = context.profile is Profile.NIGHTLY
    cases = [(blow, phase, size) for size in ((2, 4) if is_night else (2,)) for blow, phase in CASES]
    cases = cases if is_night else cases[: len(BLOWS)]
    runs: list[RankRun] = []
    failure: Failure | None = None
    try:
        launcher = Containers()
        try:
            for number, (blow, phase, size) in enumerate(cases):
                run = run_in_containers(blow, phase, context.seed % 2**32 + number, launcher, size)
                runs.append(run)
                context.progress(len(runs), len(cases))
                if run.violation is not None:
                    failure = failure_of(SUITE_ID, run.violation, f"{blow.name}: {run.storm.title}", run.facts)
                    break
        finally:
            launcher.close()
    except AssayError as error:
        return CheckResult(SUITE_ID, Verdict.UNKNOWN, note=str(error))
    return _result(cases, runs, failure)


def _result(cases: Sequence[tuple[ContainerBlow, RankPhase, int]], runs: list[RankRun], failure: Failure | None) -> CheckResult:
    sums = Sums(len(runs), sum(run.num_steps for run in runs))
    for (blow, phase, _), run in zip(cases, runs, strict=False):
        sums.reached[f"{blow.name}, {phase}"] += not run.missed
        sums.reached["groups that began anew"] += run.num_restarts
        for each in run.verdicts:
            sums.evaluations[each.identifier] += each.evidence
    sums.missed += [run.missed for run in runs if run.missed]
    longest = max(chain.from_iterable(run.noticed_s for run in runs), default=0.0)
    figure = Figure("ranks-docker.longest_notice", longest, "s", Label.OBSERVED, f"bound {PATIENCE.notice_s:g} s")
    return sums.result(SUITE_ID, [failure], f"{len(runs)} storms on real containers, not bit-for-bit repeatable", (figure,))


SUITES: tuple[Suite, ...] = (
    Suite(
        SUITE_ID,
        "ranks in containers",
        partial(with_extras, SUITE_ID, "chaos.container_suites", "check_containers"),
        share_s=120.0,
        extras=("model", "chaos"),
    ),
)
