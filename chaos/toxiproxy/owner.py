"""Processes that must not outlive the one that started them. Owns how an orphan notices, and how a child starts and ends.

A child prints one line when it serves (its address) and ends when its parent does, whatever killed that: see `is_orphan`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

LOOK_EVERY_S = 0.2
_START_S = 30.0
_END_S = 5.0
_ROOT = str(Path(__file__).resolve().parents[2])


class StartError(RuntimeError):
    """A sentence: which process did not come to serve, and what it said."""


def is_orphan(owner: int) -> bool:
    """Whether ``owner`` is no longer the parent of this process: an orphan gets another one at once."""
    return os.getppid() != owner


async def owner_is_gone(owner: int) -> None:
    while not is_orphan(owner):
        await asyncio.sleep(LOOK_EVERY_S)


@contextlib.contextmanager
def child(module: str, *arguments: str) -> Iterator[str]:
    """Runs ``python -m module arguments --owner <this process>``; gives the line that it printed; ends it."""
    command = [sys.executable, "-m", module, *arguments, "--owner", str(os.getpid())]
    path = os.pathsep.join(filter(None, [_ROOT, os.environ.get("PYTHONPATH", "")]))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,  # a Ctrl-C reaches the owner, who then still needs the server to put things right
        )
        assert process.stdout is not None
        try:
            line = _first_line(process.stdout, time.monotonic() + _START_S)
            if not line:
                raise StartError(_why(command, process, said))
            yield line
        finally:
            _end(process)
            process.stdout.close()


def _first_line(pipe: IO[bytes], deadline: float) -> str:
    """Empty when the process ended, or time did, before there was one."""
    line = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while not line.endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return ""
            data = os.read(pipe.fileno(), 4096)
            if not data:
                return ""
            line += data
    return line.decode().strip()


def _why(command: Sequence[str], process: subprocess.Popen[bytes], said: IO[str]) -> str:
    _end(process)
    said.seek(0)
    last = said.read().strip().splitlines()[-1:] or ["it said nothing"]
    return f"{' '.join(command[1:3])} did not come to serve within {_START_S:.0f} s: {last[0]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
