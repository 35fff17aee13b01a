"""Storms one after another, each told in a line; the first that breaks something is shrunk and becomes a replay file.

Owns the words and the order of seeds. What a storm does stands in `chaos`.
"""

from __future__ import annotations

import difflib

from rich.console import Console

from chaos.faults import ConnectionFault, FaultKind
from chaos.run import SHRINK_S, StormRun, failure_of, run_storm
from chaos.storm import KINDS_OF_OTHERS, OUR_ENGINE, draw_storm
from ci.replay_file import replay_of, to_text
from ci.storm_outcome import FOLDER, Ending, StormsOutcome, keep, turns
from engine_under_test.errors import BadInput
from properties.suite import Failure

_SHRINK_OTHERS_S = 90.0  # a step of an engine written by others takes ten times as long
_FOLDER = FOLDER


def kinds_of(text: str | None, engine: str = OUR_ENGINE) -> tuple[FaultKind, ...]:
    """The kinds of "held-fences,aborts"; every kind if nothing was said. Of one that an engine has no verb for, it is said."""
    found = _kinds_of(text)
    strange = [kind for kind in found if kind not in KINDS_OF_OTHERS]
    if text is not None and engine != OUR_ENGINE and strange:
        raise BadInput(
            f"{engine} knows the faults {', '.join(KINDS_OF_OTHERS)} only, found {strange[0]}; leave it out of --faults"
        )
    return found


def _kinds_of(text: str | None) -> tuple[FaultKind, ...]:
    if text is None:
        return tuple(FaultKind)
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in [*FaultKind, "none"]:
            near = difflib.get_close_matches(name, [*FaultKind, *ConnectionFault], n=1)
            known = f"did you mean {near[0]}?" if near else f"known are {', '.join((*FaultKind, *ConnectionFault))}"
            raise BadInput(f"--faults takes kinds of docs/faults.md or none, found {name!r}; {known}")
    if not names or ("none" in names and len(names) > 1):
        raise BadInput(f"--faults takes one kind or several, or none alone, found {text!r}; say for example --faults aborts")
    return tuple(kind for kind in FaultKind if kind in names)


def run_many(
    seed: int,
    kinds: tuple[FaultKind, ...],
    budget_s: float | None,
    number: int | None,
    console: Console,
    engine: str = OUR_ENGINE,
) -> StormsOutcome:
    """Storms of rising seeds until the time is over, the number is reached, or something broke."""
    storms = steps = device_ops = 0
    failure = None
    broken: StormRun | None = None
    with Ending() as ending:
        for turn in turns(budget_s, number):
            run = run_storm(draw_storm(seed + turn, kinds, engine=engine))
            storms += 1
            steps += run.driver.world.checked_steps
            device_ops += run.num_device_ops
            fate = "valid" if run.violation is None else f"INVALID {run.violation.invariant} {run.violation.name}"
            console.print(f"{fate:<8} {run.storm.title}", markup=False, soft_wrap=True)
            if run.violation is not None:
                broken = run
                console.print("shrinking operations, faults and choices together …", markup=False)
                failure = failure_of(run, SHRINK_S if engine == OUR_ENGINE else _SHRINK_OTHERS_S)
                break
    if broken is not None and failure is None:  # it was being shrunk
        failure = failure_of(broken, 0.0)
    outcome = StormsOutcome(
        seed, storms, steps > 0, failure.seed if failure else "", failure.violation if failure else None,
        _tell(failure, console) if failure else "", "replay", is_repeatable=True,
        counts={"steps": steps, "device_operations": device_ops}, ended_by=ending.words,
    )  # fmt: skip
    told = f"{storms} storms, {steps} checked steps, {device_ops} operations of the device, seed {seed:#x}"
    console.print(outcome.told(told), markup=False, soft_wrap=True)
    return outcome


def _tell(failure: Failure, console: Console) -> str:
    """Writes the replay file and says what broke; the file's name as it is shown."""
    violation = failure.violation
    name = f"{violation.invariant}-storm-{failure.seed.partition(':')[0].replace('#', '-')}.json"
    told = f"shrunk from {failure.ops_found} operations to {len(failure.ops)}: assay replay"
    return keep(_FOLDER, name, to_text(replay_of("storms", failure)), violation, violation.facts, told, console)
