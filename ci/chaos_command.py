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
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output, everything else on standard error.")
def chaos(*, seed: str | None, faults: str | None, budget: str | None, storms: int | None, engine: str, as_json: bool) -> None:
    """Storms of faults against the engine in simulated time: safety while they last, liveness when all is healed."""
    from ci.cli import console_for, parse_duration
    from ci.storms import kinds_of, run_many
    from ci.tree import parse_seed, read_tree
    from engine_under_test.errors import BadInput

    if budget is not None and storms is not None:
        raise BadInput("a run of storms ends by time or by number, found both --budget and --storms; leave one of them out")
    outcome = run_many(
        parse_seed(seed) if seed is not None else read_tree().seed,
        kinds_of(faults, engine),
        parse_duration(budget) if budget is not None else None if storms is not None else 300.0,
        storms,
        console_for(as_json),
        engine=engine,
    )
    if as_json:
        click.echo(json.dumps(outcome.to_json()))
    sys.exit(outcome.verdict.exit_code)
