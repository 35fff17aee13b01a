"""Storms on real ranks, each told in a line; of the first that breaks something the history is kept.

Owns the words and the order of seeds. What a storm does stands in `chaos`. Real processes and containers are not bit-for-bit
repeatable: a seed draws the same blows and requests again, and the machine decides the rest, so nothing is shrunk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from chaos.container_suites import CASES, run_in_containers
from chaos.rank_containers import Containers
from chaos.rank_kills import RankRun, draw_rank_storm, run_rank_storm
from chaos.rank_suite import patience_of
from ci.storm_outcome import FOLDER, Ending, StormsOutcome, keep, turns
from engine_under_test.distributed.rank_processes import Processes
from engine_under_test.errors import AssayError, BadInput
from properties.verdict import Violation

_FOLDER = FOLDER
_SIZES = (1, 2, 4)

RunOne = Callable[[int], RankRun]


def run_rank_storms(
    seed: int,
    world_size: int,
    in_containers: bool,
    budget_s: float | None,
    number: int | None,
    console: Console,
) -> StormsOutcome:
    """Storms of rising seeds until the time is over, the number is reached, or something broke. BadInput if none can be run."""
    if world_size not in _SIZES:
        raise BadInput(f"--ranks takes {', '.join(map(str, _SIZES))}, found {world_size}; choose one of them")
    storms = steps = losses = missed = 0
    longest = 0.0
    run: RankRun | None = None
    try:
        with Ending() as ending, _launched(world_size, in_containers) as run_one:
            for turn in turns(budget_s, number):
                run = run_one(seed + turn)
                storms += 1
                steps += run.num_steps
                losses += len(run.losses)
                missed += bool(run.missed)
                longest = max(longest, *run.noticed_s, 0.0)
                _tell(run, console)
                if run.violation is not None:
                    break
    except AssayError as error:
        raise BadInput(f"no ranks could be had here: {error}") from error
    found = None if run is None else run.violation
    history = _keep(run, found, console) if run is not None and found is not None else ""
    outcome = StormsOutcome(
        seed, storms, losses > 0 and not missed, run.storm.title if run is not None and found else "", found, history,
        counts={"steps": steps, "losses": losses, "missed": missed, "longest_notice_s": longest}, ended_by=ending.words,
    )  # fmt: skip
    told = (
        f"{storms} storms on {world_size} ranks, {losses} lost, noticed within {longest:.2f} s, {steps} steps, "
        f"{f'{missed} without what they were to show, ' if missed else ''}seed {seed:#x}"
    )
    console.print(outcome.told(told), markup=False, soft_wrap=True)
    return outcome


@contextmanager
def _launched(world_size: int, in_containers: bool) -> Iterator[RunOne]:
    """Whoever runs the storm of a seed."""
    if not in_containers:
        processes = Processes()
        try:

            def run(seed: int) -> RankRun:
                storm = draw_rank_storm(seed, world_size)
                return run_rank_storm(storm, processes, patience_of(storm))

            yield run
        finally:
            processes.close()
        return
    containers = Containers()
    try:
        yield lambda seed: run_in_containers(*CASES[seed % len(CASES)], seed, containers, world_size)
    finally:
        containers.close()


def _tell(run: RankRun, console: Console) -> None:
    fate = "unknown" if run.missed else "valid"
    if run.violation is not None:
        fate = f"INVALID {run.violation.invariant} {run.violation.name}"
    ends = ", ".join(f"{count} {reason}" for reason, count in run.ends.items())
    noticed = ", ".join(f"{seconds:.2f} s" for seconds in run.noticed_s) or "nothing"
    console.print(f"{fate:<8} {run.storm.title} · noticed {noticed} · ended: {ends}", markup=False, soft_wrap=True)
    if run.outside or run.missed:  # what stands only in containers' logs, and what an unknown storm lacks
        seen = (run.missed and f"missed: {run.missed}", *run.outside, *(f"lost: {each.reason}" for each in run.losses))
        for line in filter(None, seen):
            console.print(f"         {line}", markup=False, soft_wrap=True)


def _keep(run: RankRun, violation: Violation, console: Console) -> str:
    """Says what broke, with the account; writes the history, and names it as it is shown."""
    name = f"{violation.invariant}-ranks-{run.storm.seed:#x}.jsonl"
    text = "".join(f"{line}\n" for line in run.history.lines())
    told = "not repeatable bit for bit; its history:"
    return keep(_FOLDER, name, text, violation, (*violation.facts, *run.facts), told, console)
