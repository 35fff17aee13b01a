"""The command `assay`. Owns flags, exit codes and the one sentence that answers bad input; imports lazily inside commands.

Exit codes: 0 valid, 1 invalid, 2 unknown (also an error of assay's own), 64 usage, 130 interrupted or terminated, 141 when
whoever read the output has left: what a shell says of a process that SIGPIPE ended, as it ends git and grep.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ci.chaos_command import chaos
from ci.ending import (
    INTERRUPTED,
    READER_LEFT,
    ReaderLeft,
    forget,
    heard,
    in_words,
    leave_readers,
    raise_on_sigterm,
    readers_may_leave,
)
from ci.generate_command import generate
from ci.kv_store_command import kv_store
from ci.model_command import fetch_for_suites, model
from engine_under_test.errors import AssayError, BadInput, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from ci.outcome import Outcome

_UNKNOWN, _USAGE = 2, 64
_MOST_BUDGET_S = 365 * 86_400.0
_PROFILES = click.Choice(["quick", "pr", "nightly"])
_AS_JSON = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on standard output, everything else on standard error."
)


class _Commands(click.Group):
    """click itself would end with 1, which is a verdict here, when a reader has left."""

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        with readers_may_leave():
            return super().make_context(*words, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with readers_may_leave():
            return super().invoke(ctx)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--traceback", is_flag=True, help="Show where an error came from (accepted anywhere on the line).")
@click.version_option(package_name="assay", message="assay %(version)s")
def assay(traceback: bool) -> None:
    """Did this change break anything, and if so, what is the shortest story that shows it?"""
    del traceback  # taken off the line by `main`


@assay.command(short_help="Run every suite of a profile, judge, write a report.")
@click.option("--profile", type=_PROFILES, default="pr", show_default=True, help="Seconds, minutes or hours of work.")
@click.option(
    "--budget", metavar="TIME", help="Cap on the time, as 90s, 10m or 2h; hit before the work is done, it means unknown."
)
@click.option("--seed", metavar="N", help="Decimal or 0x...; without it, taken from the commit or from the changed files.")
@click.option("--report", type=click.Path(path_type=Path), metavar="DIR", help="Where the report goes.  [reports/<commit>]")
@click.option(
    "--suites",
    "sources",
    multiple=True,
    metavar="MODULE",
    help="Run the SUITES of these modules, and no mutants; the report has a folder of its own.",
)
@click.option(
    "--mutant", metavar="ID", help="Put this known bug back in every process: what does the gate say?  [see assay mutants]"
)
@click.option("--workers", type=click.IntRange(1), help="Processes at a time.  [the cores of this machine]")
@click.option("--fetch", is_flag=True, help="Fetch the language model first, if a suite needs it and it is not there.")
@_AS_JSON
def gate(
    *,
    profile: str,
    budget: str | None,
    seed: str | None,
    report: Path | None,
    sources: tuple[str, ...],
    mutant: str | None,
    workers: int | None,
    fetch: bool,
    as_json: bool,
) -> None:
    """Run every suite of a profile, judge, and write a report."""
    from ci import environment
    from ci.atomic import claimed, probe
    from ci.gate import DEFAULT_BUDGET_S, DEFAULT_SOURCES, GateSettings, collect, run_gate
    from ci.mutants.catalogue import MUTANTS
    from ci.mutants.planted import planted
    from ci.mutants.runner import select_one
    from ci.progress import progress_for
    from ci.report.closing import opening_line
    from ci.sources import check_sources, folder_of
    from ci.tree import ROOT, parse_seed, read_tree
    from properties.suite import Profile

    tree = read_tree()
    bug = select_one(mutant) if mutant is not None else None
    settings = GateSettings(
        profile=Profile(profile),
        tree=tree,
        seed=parse_seed(seed) if seed is not None else tree.seed,
        budget_s=parse_duration(budget) if budget is not None else DEFAULT_BUDGET_S[Profile(profile)],
        command=_command_to_repeat(profile, parse_seed(seed) if seed is not None else tree.seed, sources, mutant),
        sources=sources or DEFAULT_SOURCES,
        mutants=() if sources or bug else MUTANTS,
        planted=bug,
        workers=workers or environment.num_cores(),
    )
    check_sources(sources)
    folder = report or ROOT / "reports" / folder_of(tree.label, sources, mutant)
    probe(folder)
    click.get_current_context().with_resource(claimed(folder))
    console = console_for(as_json)
    if fetch:
        suites = (suite for _source, suite in collect(settings.sources, settings.profile).suites)
        fetch_for_suites(suites, lambda line: console.print(line, soft_wrap=True, markup=False))
    opening = opening_line(tree, profile, settings.seed, environment.num_cores(), environment.device_text())
    console.print(f"assay {environment.version()} · {opening}\n", soft_wrap=True, markup=False)
    with planted(bug, ROOT):
        outcome = run_gate(settings, lambda: progress_for(console))
        code = _finish_gate(outcome, folder, console, as_json)
    sys.exit(INTERRUPTED if outcome.is_interrupted else code)


@assay.command(short_help="Run one counterexample alone and tell its story.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--until", type=click.IntRange(1), metavar="N", help="Stop after operation N.")
@click.option("--verbose", is_flag=True, help="Show the whole state after each operation.")
@_AS_JSON
def replay(file: Path, until: int | None, *, verbose: bool, as_json: bool) -> None:
    """Run one counterexample alone and tell its story; exit 1 as long as it still fails."""
    from ci import replay as replaying
    from ci.replay_file import read_replay

    replayed = replaying.replay(read_replay(file), until)
    if as_json:
        click.echo(json.dumps(replaying.to_json(replayed)))
    else:
        for line in replaying.lines(replayed, is_verbose=verbose):
            click.echo(line)
    sys.exit(replayed.verdict.exit_code)


@assay.command(short_help="Suites, predicates and tests that match PATTERN, quickly.")
@click.argument("pattern", default="")
@click.option("--engine", default="assay", show_default=True, metavar="NAME", help="Whose: this one's, or transformers.")
@_AS_JSON
def props(pattern: str, *, engine: str, as_json: bool) -> None:
    """A developer's seconds: suites, predicates and tests that match PATTERN, in profile quick.

    An engine written by others (docs/writing-an-adapter.md) has suites of its own, and no tests.
    """
    from ci.props import run_props
    from ci.tree import read_tree

    outcome = run_props(pattern, read_tree().seed, console_for(as_json), engine=engine)
    if as_json:
        click.echo(json.dumps(outcome.to_json()))
    sys.exit(outcome.exit_code)


@assay.command(short_help="Put known bugs back and show what kills each.")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--seed", metavar="N", help="Seed of the hunt.  [as in gate]")
@click.option("--record", is_flag=True, help="Write what came of them into ci/mutants/kills.json and docs/corpus.md.")
@click.option("--workers", type=click.IntRange(1), help="Hunts at a time.  [the cores of this machine]")
@_AS_JSON
def mutants(ids: tuple[str, ...], *, seed: str | None, record: bool, workers: int | None, as_json: bool) -> None:
    """Put known bugs back, one at a time, and show which predicate kills each."""
    from ci import environment
    from ci.mutants.baseline import broken_without_mutant
    from ci.mutants.catalogue import FLOOR
    from ci.mutants.mutant import Fate
    from ci.mutants.runner import hunt_all, select
    from ci.mutants.table import closing_line, record_kills, table_lines
    from ci.storm_outcome import Ending
    from ci.tree import parse_seed, read_tree

    chosen = select(ids)
    console = console_for(as_json)
    hunt_seed = parse_seed(seed) if seed is not None else read_tree().seed
    if (broken := broken_without_mutant(hunt_seed)) is not None:
        console.print(f"the engine must be sound before it is mutated, found {broken}; repair it (assay gate), then hunt again")
        sys.exit(1)
    ending = Ending()
    results = hunt_all(chosen, hunt_seed, workers or environment.num_cores(), console, ending)
    if record and not ending.words:
        record_kills(results)
    if as_json:
        click.echo(json.dumps({"mutants": [result.to_json() for result in results]}))
    killed = [result for result in results if result.fate is Fate.KILLED]
    floor = len(chosen) if ids else FLOOR
    for line in (*table_lines(results), closing_line(results, floor)):
        console.print(line, soft_wrap=True, markup=False)
    if ending.words:
        console.print(f"{ending.words}: {len(killed)} of {len(results)} were killed before it", soft_wrap=True, markup=False)
        sys.exit(INTERRUPTED)
    sys.exit(0 if len(killed) == len(results) and len(killed) >= floor else 1)


@assay.command(short_help="Run a recorded trace of requests of your own.")
@click.argument("file", type=click.Path(path_type=Path))
@_AS_JSON
def trace(file: Path, *, as_json: bool) -> None:
    """Run a recorded trace of requests (JSON lines, see docs/trace.md) through engine, models and invariants."""
    from ci.trace import run_trace_file, to_json

    check = run_trace_file(file, console_for(as_json))
    if as_json:
        click.echo(json.dumps(to_json(check)))
    sys.exit(check.verdict.exit_code)


@assay.command(no_args_is_help=True, short_help="How fast it is, against floors scaled to this machine.")
@click.argument("what", type=click.Choice(["walk", "scheduler", "engine", "overlap", "attention", "storm", "sampling"]))
@_AS_JSON
def bench(what: str, *, as_json: bool) -> None:
    """Medians against absolute floors, scaled by a calibration loop of the same run; exit 1 on a miss, 2 without the device."""
    from ci.bench import run_bench

    measured = run_bench(what, console_for(as_json))
    if as_json:
        click.echo(json.dumps(measured.to_json()))
    sys.exit(measured.verdict.exit_code)


assay.add_command(generate)
assay.add_command(chaos)
assay.add_command(kv_store)
assay.add_command(model)


def parse_duration(text: str, without: str = "the profile's own cap") -> float:
    """Seconds of "90s", "10m", "2h" or "90". ``without``: what a command takes that is told none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    seconds = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]] if found else 0.0
    if not 0 < seconds <= _MOST_BUDGET_S:
        raise BadInput(
            f"a budget is a time above 0 as 90s, 10m or 2h, a year at most, found {text[:40]!r}; "
            f"say for example --budget 10m, or leave --budget away for {without}"
        )
    return seconds


def main(arguments: list[str] | None = None) -> None:
    """The console script: every end of a command becomes an exit code and, if it is a bad one, one sentence."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    shows_traceback = "--traceback" in arguments
    arguments = [word for word in arguments if word != "--traceback"]
    forget()
    raise_on_sigterm()  # a server that cancels a run is told what was learned so far, as by a Ctrl-C
    try:
        assay.main(arguments, prog_name="assay", standalone_mode=False)
    except ReaderLeft:
        leave_readers()
        sys.exit(READER_LEFT)
    except Exception as error:
        if shows_traceback:
            traceback.print_exc()
        sys.exit(_answer(error))
    except KeyboardInterrupt as interrupt:
        click.echo(f"assay: {in_words(interrupt)} before anything was learned", err=True)
        sys.exit(INTERRUPTED)


def _answer(error: Exception) -> int:
    """Says what went wrong in one sentence and returns the exit code."""
    end = error.__cause__ if isinstance(error, click.Abort) else heard()
    if end is not None or isinstance(error, click.Abort):
        click.echo(f"assay: {in_words(end)} before anything was learned", err=True)
        return INTERRUPTED
    if isinstance(error, click.UsageError):
        _say_usage(error)
        return _USAGE
    if isinstance(error, BadInput | ConfigError | click.ClickException):
        click.echo(f"assay: {error}", err=True)
        return _USAGE
    if isinstance(error, AssayError):
        click.echo(f"assay: {error}", err=True)
        return _UNKNOWN
    said = str(error).strip().splitlines()
    sentence = f"{type(error).__name__}{f': {said[0]}' if said else ''}"
    click.echo(f"assay: an error of its own, nothing was judged: {sentence}; --traceback shows where", err=True)
    return _UNKNOWN


def _say_usage(error: click.UsageError) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()  # its message is the whole help, not a sentence
        return
    where = error.ctx.command_path if error.ctx else "assay"
    sentence = " ".join(error.format_message().split()).rstrip(".")  # click lists choices on lines of their own
    click.echo(f"{where}: {sentence}; see {where} --help", err=True)


def console_for(as_json: bool) -> Console:
    """Where a command talks to a person: standard error where its result is JSON."""
    from rich.console import Console

    class Piped(Console):
        """rich itself would end with 1, which is a verdict here, when a reader has left."""

        def on_broken_pipe(self) -> None:
            self.quiet = True
            raise ReaderLeft

    return Piped(stderr=as_json, highlight=False)


def _command_to_repeat(profile: str, seed: int, sources: tuple[str, ...], mutant: str | None) -> str:
    suites = "".join(f" --suites {source}" for source in sources)
    bug = f" --mutant {mutant}" if mutant is not None else ""
    return f"assay gate --profile {profile} --seed {seed:#x}{suites}{bug}"


def _finish_gate(outcome: Outcome, folder: Path, console: Console, as_json: bool) -> int:
    """Writes the report, prints the closing lines, and returns the exit code. A report that can not be written makes a
    valid run unknown: nobody could look at it."""
    from ci.atomic import CannotWrite
    from ci.report import verdict_json
    from ci.report.closing import closing_lines
    from ci.report.write import name_replays, shown_path, write_report

    code = outcome.verdict.exit_code
    shown, complaint = shown_path(folder), ""
    try:
        write_report(outcome, folder)
    except CannotWrite as error:
        shown, complaint = "", str(error)
        code = code or _UNKNOWN
    try:
        if shown:
            _append_step_summary(folder)
    except CannotWrite as error:
        complaint = str(error)
        code = code or _UNKNOWN
    replays = name_replays(outcome) if shown else {}
    for line in closing_lines(outcome, replays, shown):
        console.print(line, soft_wrap=True, markup=False, style=_style(line))
    if as_json:
        data: dict[str, Any] = verdict_json.to_json(outcome, replays)
        click.echo(json.dumps(data))
    if complaint:
        click.echo(f"assay: {complaint}", err=True)
    return code


def _append_step_summary(folder: Path) -> None:
    """Continuous integration servers show what is appended to this file."""
    from ci.atomic import CannotWrite

    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    try:
        with Path(path).open("a", encoding="utf-8") as handle:
            handle.write((folder / "summary.md").read_text(encoding="utf-8"))
    except OSError as error:
        raise CannotWrite(
            f"$GITHUB_STEP_SUMMARY must name a file that takes text, but {path} does not: {error.strerror}"
        ) from error


def _style(line: str) -> str | None:
    for word, style in (("INVALID", "bold red"), ("UNKNOWN", "bold yellow"), ("VALID", "bold green")):
        if line.startswith(word):
            return style
    return None


if __name__ == "__main__":
    main()
