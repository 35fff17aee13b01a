"""What a gate shows while it runs: bars on a terminal, plain lines in a pipe, and never silence without a word.

Owns the wording of progress. Never influences the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ci.jobs import Role
from ci.pool import JobState
from ci.wording import duration, work

_BAR = 16
_SILENCE_S = 1.0  # after this long without news, one line says what is waited for
_REPEAT_S = 10.0  # and again this often
_TITLE = 32


class Progress(Protocol):
    """Told of the state of every job, several times a second."""

    def update(self, states: Sequence[JobState], elapsed_s: float) -> None: ...

    def close(self) -> None: ...


def progress_for(console: Console) -> Progress:
    """Bars if a person watches, lines otherwise."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


class PlainProgress:
    """A line for each job that ends; when nothing ends for a second, a line that says what is waited for."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[int] = set()
        self._last_s = 0.0
        self._pause_s = _SILENCE_S

    def update(self, states: Sequence[JobState], elapsed_s: float) -> None:
        for state in states:
            if state.report is not None and state.job.number not in self._told:
                self._told.add(state.job.number)
                self._say(ended_line(state), elapsed_s, _SILENCE_S)
        if elapsed_s - self._last_s >= self._pause_s:
            self._say(waiting_line(states, elapsed_s), elapsed_s, _REPEAT_S)

    def close(self) -> None:
        """Nothing is held back."""

    def _say(self, line: str, elapsed_s: float, pause_s: float) -> None:
        self._console.print(line, soft_wrap=True, markup=False)
        self._last_s, self._pause_s = elapsed_s, pause_s


class LiveProgress:
    """One line a job, rewritten in place: ended ones scroll up, running ones have a bar."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._told: set[int] = set()
        self._live = Live(console=console, refresh_per_second=8, transient=True)
        self._live.start()

    def update(self, states: Sequence[JobState], elapsed_s: float) -> None:
        for state in states:
            if state.report is not None and state.job.number not in self._told:
                self._told.add(state.job.number)
                self._live.console.print(ended_line(state), soft_wrap=True, markup=False)
        running = [Text(running_line(state, elapsed_s), no_wrap=True) for state in states if state.is_running]
        self._live.update(Group(*running, Text(waiting_line(states, elapsed_s), style="dim", no_wrap=True)))

    def close(self) -> None:
        self._live.stop()


def ended_line(state: JobState) -> str:
    """ "allocator machine   200 examples   31,204 ops   9 of 9 reached   0:22"."""
    report = state.report
    if report is None:
        return f"{_title(state)}not finished"
    if report.mutant is not None:
        text = f"{report.mutant['verdict']} {report.mutant['by']}".strip()
    elif report.result is None:
        text = "as planted" if state.job.role is Role.PROOF else f"crashed: {report.crash.strip().splitlines()[-1]}"
    elif state.job.role is Role.PROOF:
        text = "judged"
    else:
        failures = f"{len(report.result.failures)} FAILED  " if report.result.failures else ""
        text = failures + work(report.result)
    return f"{_title(state)}{text}  {duration(report.wall_s)}"


def running_line(state: JobState, elapsed_s: float) -> str:
    """ "engine machine   ████████████░░░░   97/150   0:12"."""
    done, total = state.progress or (0, 0)
    filled = min(_BAR, _BAR * done // total) if total else 0
    figures = f"{done:,}/{total:,}" if total else "starting"
    return f"{_title(state)}{'█' * filled}{'░' * (_BAR - filled)}  {figures}  {duration(elapsed_s - (state.began_s or 0.0))}"


def waiting_line(states: Sequence[JobState], elapsed_s: float) -> str:
    """What the run waits for: the jobs that run now, and how many are still to come."""
    running = [state for state in states if state.is_running]
    queued = sum(state.progress is None and state.report is None for state in states)
    names = ", ".join(_short(state) for state in running) or ("the worker processes" if queued else "the processes to end")
    later = f", {queued} to come" if queued else ""
    return f"… {duration(elapsed_s)} waiting for {names}{later}"


def _short(state: JobState) -> str:
    done, total = state.progress or (0, 0)
    again = " (again)" if state.job.role is Role.AGAIN else ""
    return f"{state.job.title}{again}{f' {done:,}/{total:,}' if total else ''}"


def _title(state: JobState) -> str:
    prefix = {Role.SUITE: "", Role.AGAIN: "", Role.PROOF: "self-proof ", Role.MUTANT: "mutant "}[state.job.role]
    suffix = ", again" if state.job.role is Role.AGAIN else ""
    subject = state.job.title if state.job.role in (Role.SUITE, Role.AGAIN) else state.job.subject
    return f"{prefix}{subject}{suffix}".ljust(_TITLE) + " "
