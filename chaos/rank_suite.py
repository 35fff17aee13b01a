"""The suite of ranks: a World over a group of them, with all the catalogue, and real deaths under an engine that serves.

Owns sizes and floors. Real processes are not bit-for-bit repeatable, so this suite has no digests and nothing to shrink: what
it finds comes with the account of what happened. It needs a machine that may start processes and connect them over the
loopback device, and the extra `model` for torch.distributed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from chaos.rank_device import RankDevice
from chaos.rank_kills import LONGEST_S, STEP_PHASES, RankRun, RankStorm, every_storm, run_rank_storm
from chaos.rank_strikes import Blow, Strike
from chaos.real_runs import failure_of, hang_in
from chaos.storm import SHAPES
from engine_under_test.distributed.rank_config import FingerprintModel, Patience, RankConfig
from engine_under_test.distributed.rank_messages import RankPhase
from engine_under_test.distributed.rank_processes import Launcher, Processes
from engine_under_test.distributed.rank_supervisor import Policy
from engine_under_test.distributed.ranks import Ranks
from engine_under_test.errors import AssayError, RankLost
from models.build import hasher_of, target_from
from models.walk import walk_ops
from models.world import World
from properties.checkers import run_checkers
from properties.history import History
from properties.invariants.predicate import violation
from properties.rank_checkers import AGREEMENT, TOLD
from properties.suite import CheckResult, Failure, Figure, Label, Profile, SuiteContext
from properties.sums import Sums
from properties.verdict import Verdict, Violation

SUITE_ID = "ranks"
_WALK_OPS = {Profile.QUICK: 60, Profile.PR: 200, Profile.NIGHTLY: 2000}
_WALKS = {
    Profile.QUICK: ((2, "small-deep"),),
    Profile.PR: ((2, "small-deep"), (4, "large-deeper")),
    Profile.NIGHTLY: tuple((size, label) for size in (1, 2, 4) for label in SHAPES),
}
# Longer than a machine that does ten other things keeps a process waiting; shorter than anybody likes to wait in a gate.
# A step is late only long after the bound of a silence, lest a frozen rank be noticed by its step alone; but a stall, which
# beats, is noticed by nothing else, and is not to take all day.
PATIENCE = Patience(beat_s=0.1, silence_s=4.0, step_s=40.0)
_OF_A_STALL = Patience(beat_s=0.1, silence_s=4.0, step_s=8.0)
LONGEST_OP_S = 0.1  # of a walk, for each rank: many times what it takes


def storms_of(profile: Profile, seed: int) -> Iterator[RankStorm]:
    """A kill and a frozen rank in the quick profile; in pr kills at each phase, another one during the recovery, and one of
    each other blow at phases that take turns from seed to seed, but for a stall, which takes longest to be noticed; in both a
    kill among ranks of a Llama; everything at night."""
    if profile is Profile.NIGHTLY:
        yield from every_storm(seed)
        return
    turns = [STEP_PHASES[(seed + number) % len(STEP_PHASES)] for number in range(len(STEP_PHASES))]
    chosen = [
        (2, Policy.CONTINUE, Blow.KILL, RankPhase.IN_COLLECTIVE),
        (2, Policy.CONTINUE, Blow.FREEZE, turns[0]),
        (2, Policy.END, Blow.KILL, RankPhase.BEFORE_REPLY),
        (4, Policy.CONTINUE, Blow.KILL, RankPhase.BEFORE_PLAN),
        (2, Policy.END, Blow.RAISE, turns[1]),
        (2, Policy.CONTINUE, Blow.CUT, turns[2]),
        (4, Policy.END, Blow.PART, turns[0]),
    ]
    for number, (size, policy, blow, phase) in enumerate(chosen[: 2 if profile is Profile.QUICK else None]):
        strikes: tuple[Strike, ...] = (Strike(blow, phase, (seed + number) % size, 2 + (seed + number) % 5),)
        if number == 3:
            strikes += (Strike(Blow.KILL, RankPhase.JOINING, 1, 0, generation=2),)
        yield RankStorm(seed + number, size, policy, strikes, number % 3)
    strike = Strike(Blow.KILL, turns[2], seed % 4, 2 + seed % 5)
    yield RankStorm(seed + len(chosen), 4, Policy.CONTINUE, (strike,), 1, is_llama=True)


def patience_of(storm: RankStorm) -> Patience:
    """Which of a storm's bounds is the least that it needs."""
    return _OF_A_STALL if any(strike.blow is Blow.STALL for strike in storm.strikes) else PATIENCE


@dataclass(slots=True)
class _Sums(Sums):
    longest_s: float = 0.0

    def add_storm(self, run: RankRun) -> None:
        self.examples += 1
        self.ops += run.num_steps
        for strike, noticed in zip(run.storm.strikes, run.noticed_s, strict=False):
            self.reached[f"{strike.blow} {strike.phase}{' of a Llama' if run.storm.is_llama else ''}"] += 1
            self.longest_s = max(self.longest_s, noticed)
        self.reached["groups that began anew"] += run.num_restarts
        self.reached.update({f"requests that ended by {reason}": count for reason, count in run.ends.items()})
        for each in run.verdicts:
            self.evaluations[each.identifier] += each.evidence
            if each.verdict is Verdict.UNKNOWN and each.identifier != TOLD.identifier:
                self.missed.append(f"{each.identifier} in {run.storm.title}: {each.note}")
        if not run.noticed_s:
            self.missed.append(f"a blow that falls, in {run.storm.title}")


def check_ranks(context: SuiteContext) -> CheckResult:
    """Walks, then storms, up to the first violation."""
    sums, processes = _Sums(), Processes()
    storms = tuple(storms_of(context.profile, context.seed % 2**32))
    total = len(_WALKS[context.profile]) + len(storms)
    failure: Failure | None = None
    try:
        for size, label in _WALKS[context.profile]:
            failure = failure or _walked(context, size, label, processes, sums)
            context.progress(sums.examples, total)
        for storm in storms:
            failure = failure or _storm(storm, processes, sums)
            context.progress(sums.examples, total)
    except AssayError as error:
        return CheckResult(SUITE_ID, Verdict.UNKNOWN, note=f"no group of ranks could be had here: {error}")
    finally:
        processes.close()
    if storms and failure is None and not sums.evaluations[TOLD.identifier]:  # in one storm all may end before they are told
        sums.missed.append("requests that are told log-probabilities: 0")
    longest = Figure(
        "ranks.longest_notice", sums.longest_s, "s", Label.OBSERVED,
        f"from a step being sent to its rank being lost, bound {PATIENCE.notice_s:g} s; for a frozen one "
        f"{PATIENCE.silence_s:g} s of it are silence",
    )  # fmt: skip
    return sums.result(SUITE_ID, [failure], f"{sums.examples} runs on real processes, not bit-for-bit repeatable", (longest,))


def _storm(storm: RankStorm, launcher: Launcher, sums: _Sums) -> Failure | None:
    run = run_rank_storm(storm, launcher, patience_of(storm))
    sums.add_storm(run)
    return None if run.violation is None else failure_of(SUITE_ID, run.violation, storm.title, run.facts)


def _walked(context: SuiteContext, size: int, label: str, launcher: Launcher, sums: _Sums) -> Failure | None:
    """A walk takes as long as it is, on a machine that does ten other things."""
    found: list[Failure | None] = []
    title = f"{label} on {size} ranks"
    seconds = LONGEST_S + LONGEST_OP_S * size * _WALK_OPS[context.profile]
    hung = hang_in(title, lambda: found.append(_walk(context, size, label, launcher, sums)), seconds, "DI-2")
    return found[0] if hung is None else failure_of(SUITE_ID, hung, title)


def _walk(context: SuiteContext, size: int, label: str, launcher: Launcher, sums: _Sums) -> Failure | None:
    """A seeded walk of all verbs over a World whose tokens and cells are the group's."""
    spec = SHAPES[label].spec()
    target = target_from(spec)
    caps = target.caps
    history = History()
    config = RankConfig(
        size, FingerprintModel(caps.vocab_size), caps.num_blocks, caps.block_size, patience=_OF_A_STALL, shows_evidence=True
    )
    found: Violation | None = None
    try:
        with Ranks(config, launcher, tell=history.add) as group:
            world = World(target, hasher=hasher_of(spec), device=RankDevice(caps, group))
            world.run(islice(walk_ops(context.seed % 2**32, SHAPES[label]), _WALK_OPS[context.profile]))
            loss = group.loss
        sums.ops += world.ops
        sums.noops += world.noops
        sums.reached[f"steps of {size} ranks"] += world.checked_steps
        sums.evaluations.update(world.evaluations)
        found = world.violation
        if loss is not None:  # World says no more than that an operation raised it
            found = violation("DI-1", f"{size} ranks that nothing befell", str(loss), "ranks that agree to the end")
    except RankLost as lost:
        found = violation("DI-1", f"{size} ranks that nothing befell", str(lost), "ranks that agree to the end")
    sums.examples += 1
    (agreement,) = run_checkers(history, (AGREEMENT,))
    sums.evaluations[agreement.identifier] += agreement.evidence
    found = agreement.violation or found
    return None if found is None else failure_of(SUITE_ID, found, f"{label} on {size} ranks, seed {context.seed:#x}")
