"""Storms on real ranks, each told in a line; of the first that breaks something the history is kept.

Owns the words and the order of seeds. What a storm does stands in `chaos`. Real processes and containers are not bit-for-bit
repeatable: a seed draws the same blows and requests again, and the machine decides the rest, so nothing is shrunk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

from chaos.container_suites import CASES, run_in_containers
from chaos.rank_containers import Containers
from chaos.rank_kills import RankRun, draw_rank_storm, run_rank_storm
from chaos.rank_suite import PATIENCE
from ci.atomic import write_all
from ci.codec import violation_to_json
from ci.report.write import shown_path
from ci.tree import ROOT
from engine_under_test.distributed.rank_processes import Processes
from engine_under_test.errors import AssayError, BadInput
from properties.verdict import Verdict, Violation

_FOLDER = ROOT / "reports" / "chaos"
_SIZES = (1, 2, 4)

RunOne = Callable[[int], RankRun]


@dataclass(frozen=True, slots=True)
class RankStormsOutcome:
    """``storms``: run to their end, the failing one included. ``losses``: ranks that were lost and noticed. ``missed``: storms
    that did not show what they were to show. ``history``: the file in which the failing one stands."""

    seed: int
    storms: int
    steps: int
    losses: int
    missed: int
    longest_notice_s: float
    failing: str
    violation: Violation | None
    history: str

    @property
    def verdict(self) -> Verdict:
        if self.violation is not None:
            return Verdict.INVALID
        return Verdict.VALID if self.losses and not self.missed else Verdict.UNKNOWN

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "verdict": self.verdict.value,
            "seed": f"{self.seed:#x}",
            "storms": self.storms,
            "steps": self.steps,
            "losses": self.losses,
            "missed": self.missed,
            "longest_notice_s": self.longest_notice_s,
            "is_repeatable": False,
            "storm": self.failing or None,
            "violation": violation_to_json(self.violation) if self.violation else None,
            "history": self.history or None,
        }


def run_rank_storms(
    seed: int,
    world_size: int,
    in_containers: bool,
    budget_s: float | None,
    number: int | None,
    console: Console,
    now: Callable[[], float] = time.monotonic,
) -> RankStormsOutcome:
    """Storms of rising seeds until the time is over, the number is reached, or something broke. BadInput if none can be run."""
    if world_size not in _SIZES:
        raise BadInput(f"--ranks takes {', '.join(map(str, _SIZES))}, found {world_size}; choose one of them")
    ends = None if budget_s is None else now() + budget_s
    storms = steps = losses = missed = 0
    longest = 0.0
    run: RankRun | None = None
    try:
        with _launched(world_size, in_containers) as run_one:
            while (number is None or storms < number) and (ends is None or now() < ends):
                run = run_one(seed + storms)
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
    history = _keep(run, console) if run is not None and found is not None else ""
    failing = run.storm.title if run is not None and found is not None else ""
    outcome = RankStormsOutcome(seed, storms, steps, losses, missed, longest, failing, found, history)
    told = (
        f"{storms} storms on {world_size} ranks, {losses} lost, noticed within {longest:.2f} s, {steps} steps, "
        f"{f'{missed} without what they were to show, ' if missed else ''}seed {seed:#x}"
    )
    console.print(f"{outcome.verdict.name}  {told}", markup=False, soft_wrap=True)
    return outcome


@contextmanager
def _launched(world_size: int, in_containers: bool) -> Iterator[RunOne]:
    """Whoever runs the storm of a seed."""
    if not in_containers:
        processes = Processes()
        try:
            yield lambda seed: run_rank_storm(draw_rank_storm(seed, world_size), processes, PATIENCE)
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


def _keep(run: RankRun, console: Console) -> str:
    """Says what broke, with the account; writes the history, and names it as it is shown."""
    violation = run.violation
    assert violation is not None  # asked only of a run that broke something
    name = f"{violation.invariant}-ranks-{run.storm.seed:#x}.jsonl"
    write_all(_FOLDER, {name: "".join(f"{line}\n" for line in run.history.lines())})
    shown = shown_path(_FOLDER / name)
    console.print(f"\n{violation.invariant} {violation.sentence}", markup=False, soft_wrap=True)
    for fact in (*violation.facts, *run.facts):
        console.print(f"  {fact}", markup=False, soft_wrap=True)
    console.print(f"  not repeatable bit for bit; its history: {shown}\n", markup=False, soft_wrap=True)
    return shown
