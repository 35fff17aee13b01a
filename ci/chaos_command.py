"""`assay chaos`: storms until a time is over or something breaks.

Owns: flags and the exit code. Never: what a storm is (`chaos`), or what is printed of it (`storms.py`).
"""

from __future__ import annotations

import json
import sys

import click


@click.command(short_help="Storms of faults; what breaks is shrunk.")
@click.option("--seed", metavar="N", help="Decimal or 0x...; without it, taken from the commit or from the changed files.")
@click.option("--faults", metavar="KIND,...", help="Only these kinds of faults (docs/faults.md); none: no fault at all.")
@click.option("--budget", metavar="TIME", help="How long, as 90s, 10m or 2h.  [5m]")
@click.option("--storms", type=click.IntRange(1), metavar="N", help="Exactly so many storms, however long they take.")
@click.option("--engine", default="assay", show_default=True, metavar="NAME", help="Whose: this one's, or transformers.")
@click.option("--ranks", type=int, metavar="N", help="Real ranks, real deaths: 1, 2 or 4 processes, killed and worse.")
@click.option("--docker", is_flag=True, help="With --ranks: each in a container; needs a Docker engine.")
@click.option("--connector", is_flag=True, help="A real KV store behind a Toxiproxy: every toxic, a store killed and frozen.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output, everything else on standard error.")
def chaos(
    *,
    seed: str | None,
    faults: str | None,
    budget: str | None,
    storms: int | None,
    engine: str,
    ranks: int | None,
    docker: bool,
    connector: bool,
    as_json: bool,
) -> None:
    """Storms of faults against the engine in simulated time: safety while they last, liveness when all is healed."""
    from ci.cli import console_for, parse_duration
    from ci.connector_storms import connection_kinds_of, run_connector_storms
    from ci.rank_storms import run_rank_storms
    from ci.storms import kinds_of, run_many
    from ci.tree import parse_seed, read_tree
    from engine_under_test.errors import BadInput

    if budget is not None and storms is not None:
        raise BadInput("a run of storms ends by time or by number, found both --budget and --storms; leave one of them out")
    if ranks is None and docker:
        raise BadInput("--docker says where ranks run, found no --ranks; say for example --ranks 2 --docker")
    if ranks is not None and (faults is not None or engine != "assay"):
        raise BadInput("real ranks are struck by blows of their own, found --faults or --engine beside --ranks; leave them out")
    connection_kinds = connection_kinds_of(faults, is_asked=connector)
    if connection_kinds and (ranks is not None or engine != "assay"):
        raise BadInput(
            "a connector storm has a store and engines of its own, found --ranks or --engine beside it; leave them out"
        )
    number_of_seed = parse_seed(seed) if seed is not None else read_tree().seed
    budget_s = parse_duration(budget, "five minutes") if budget is not None else None if storms is not None else 300.0
    console = console_for(as_json)
    if connection_kinds:
        outcome = run_connector_storms(number_of_seed, connection_kinds, budget_s, storms, console)
    elif ranks is not None:
        outcome = run_rank_storms(number_of_seed, ranks, docker, budget_s, storms, console)
    else:
        outcome = run_many(number_of_seed, kinds_of(faults, engine), budget_s, storms, console, engine=engine)
    if as_json:
        click.echo(json.dumps(outcome.to_json()))
    sys.exit(outcome.exit_code)
