"""Connector storms through a Toxiproxy, each told in a line; of the first that breaks something the account is kept.

Owns the words and the order of seeds. What a storm does stands in `chaos`. Real processes are not bit-for-bit repeatable: a
seed draws the same plan and the same operations again, and the machine decides the rest, so nothing is shrunk.
"""

from __future__ import annotations

import difflib
import os
from typing import TYPE_CHECKING

from rich.console import Console

from chaos.faults import ConnectionFault, FaultKind, draw_connection_plan
from ci.codec import violation_to_json
from ci.environment import require_extra
from ci.storm_outcome import FOLDER, Ending, StormsOutcome, keep, turns
from engine_under_test.errors import AssayError, BadInput

if TYPE_CHECKING:
    from chaos.connector_storm import ConnectorRun
    from properties.verdict import Violation

_FOLDER = FOLDER


def connection_kinds_of(text: str | None, *, is_asked: bool) -> tuple[ConnectionFault, ...]:
    """The kinds of faults on connections that "latency,store-killed" names; all of them if nothing was said and a connector
    storm ``is_asked`` for; none if the text is of other kinds. Toxics may be written as Toxiproxy does, with an underscore."""
    if text is None:
        return tuple(ConnectionFault) if is_asked else ()
    names = [name.strip().replace("_", "-") for name in text.split(",") if name.strip()]
    known = tuple(kind for kind in ConnectionFault if kind in names)
    if not known and not is_asked:
        return ()
    for name in names:
        if name in [*FaultKind, "none"]:
            raise BadInput(
                f"faults on connections ({', '.join(ConnectionFault)}) strike real processes and all others simulated ones, "
                f"found {name!r} in a connector storm; run them one after the other"
            )
        if name not in list(ConnectionFault):
            near = difflib.get_close_matches(name, list(ConnectionFault), n=1)
            told = f"did you mean {near[0]}?" if near else f"known are {', '.join(ConnectionFault)}"
            raise BadInput(f"a connector storm takes kinds of docs/faults.md, found {name!r}; {told}")
    if not names:
        raise BadInput(f"--faults takes one kind or several, found {text!r}; say for example --faults latency,store-killed")
    return known


def run_connector_storms(
    seed: int,
    kinds: tuple[ConnectionFault, ...],
    budget_s: float | None,
    number: int | None,
    console: Console,
) -> StormsOutcome:
    """Storms of rising seeds until the time is over, the number is reached, or something broke. BadInput if none can be run.
    Whole engines and their bare ends in turn; the first two have every kind, each later one draws which it leaves out."""
    require_extra("connector", "a connector storm")
    require_extra("chaos", "a connector storm")
    from chaos.connector_storm import ConnectorStorm, TrafficKind, run_connector_storm

    storms = ops = strikes = 0
    untouched: dict[str, None] = {}
    run: ConnectorRun | None = None
    try:
        with Ending() as ending:
            for turn in turns(budget_s, number):
                plan = draw_connection_plan(seed + turn, kinds, is_every=turn < 2)
                traffic = TrafficKind.ENDS if turn % 2 else TrafficKind.ENGINES
                run = run_connector_storm(ConnectorStorm(seed + turn, plan, traffic), os.environ)
                storms += 1
                ops += run.num_ops
                strikes += run.strikes.total()
                untouched.update(dict.fromkeys(name for name, count in run.touched.items() if not count))
                _tell(run, console)
                if run.violation is not None:
                    break
    except AssayError as error:
        raise BadInput(f"no connector storm could be had here: {error}") from error
    found = None if run is None else run.violation
    account = _keep(run, found, console) if run is not None and found is not None else ""
    proxies = run.proxies if run is not None else ""
    outcome = StormsOutcome(
        seed, storms, strikes > 0 and not untouched, run.storm.title if run is not None and found else "", found, account,
        "account",
        counts={"operations": ops, "strikes": strikes, "untouched": list(untouched), "toxiproxy": proxies or None},
        ended_by=ending.words,
    )  # fmt: skip
    told = f"{storms} connector storms, {strikes} strikes, {ops} operations, {proxies or 'no'} Toxiproxy, seed {seed:#x}"
    console.print(outcome.told(told), markup=False, soft_wrap=True)
    for name in untouched if found is None else ():
        console.print(f"  touched nothing: {name}", markup=False, soft_wrap=True)
    return outcome


def _tell(run: ConnectorRun, console: Console) -> None:
    """What the storm was, and what it really did."""
    fate = "valid" if run.violation is None else f"INVALID {run.violation.invariant} {run.violation.name}"
    console.print(f"{fate:<8} {run.storm.title} · {run.took_s:.1f} s", markup=False, soft_wrap=True)
    for name, count in run.touched.items():
        console.print(f"         {name}: {count}", markup=False, soft_wrap=True)
    shown = ("loaded blocks", "loads cut", "stored blocks", "stores that ended over a later connection", "connections lost")
    cut = [name for name in run.reached if name.startswith("bytes cut")]
    totals = ", ".join(f"{name} {run.reached[name]}" for name in (*shown, *cut))
    console.print(f"         {totals}", markup=False, soft_wrap=True)


def _keep(run: ConnectorRun, violation: Violation, console: Console) -> str:
    """Says what broke, with the account; writes the whole of it, and names the file as it is shown."""
    name = f"{violation.invariant}-connectors-{run.storm.seed:#x}.jsonl"
    lines = run.account.lines(storm=run.storm.title, toxiproxy=run.proxies, violation=violation_to_json(violation))
    text = "".join(f"{line}\n" for line in lines)
    told = "not repeatable bit for bit; its account:"
    return keep(_FOLDER, name, text, violation, (*violation.facts, *run.facts), told, console)
