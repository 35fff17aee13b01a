"""Processes for ranks, as a driver sees them: started, killed, and asked how they ended.

Owns the nursery of a driver and the meaning of an exit status. The protocols `RankProcess` and `Launcher` are what a driver
needs of anything that can run a rank, a container for instance.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Protocol

from engine_under_test.distributed.rank_link import Link
from engine_under_test.errors import AssayError
from engine_under_test.readiness import is_ready

BIRTH_S = 180.0  # the nursery loads torch first, on a machine that may be busy
_BURIAL_S = 10.0


class RankProcess(Protocol):
    """One rank."""

    @property
    def link(self) -> Link: ...

    @property
    def name(self) -> str:
        """What messages call it: "process 4711"."""

    def has_ended(self) -> bool: ...

    def kill(self) -> None:
        """Ends it at once, frozen or not; nothing if it has ended."""

    def how_it_ended(self, timeout_s: float) -> str:
        """Waits that long for its end; in a person's words, "" if it lives."""

    def close(self) -> None:
        """Lets go of the connection and of the process, which has ended."""


class Launcher(Protocol):
    """Whoever starts ranks."""

    def start(self) -> RankProcess:
        """A new rank that waits for its `Start`. AssayError if none can be had."""

    def close(self) -> None: ...


class Processes:
    """Starts ranks as processes of this machine, all forked from one nursery. Not for threads that end before it does."""

    def __init__(self) -> None:
        self._nursery: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._heard = b""
        self._exits: dict[int, int] = {}
        self._log: IO[bytes] | None = None  # what ranks and nursery print: of use only when none can be had

    def start(self) -> LocalProcess:
        """See `Launcher.start`."""
        for _ in range(2):  # a nursery that died since is replaced once
            owner = self._open()
            ours, theirs = socket.socketpair()
            try:
                socket.send_fds(owner, [b"r"], [theirs.fileno()])
                pid = self._born()
            except OSError:
                ours.close()
                self.close()
                continue
            finally:
                theirs.close()
            return LocalProcess(pid, Link(ours), self)
        raise AssayError(f"no process for a rank could be started, the nursery ended with: {self._last_words()}")

    def _last_words(self) -> str:
        if self._log is None:
            return "nothing"
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "nothing"

    def _open(self) -> socket.socket:
        if self._socket is None:
            ours, theirs = socket.socketpair()
            environment = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
            environment["PYTHONPATH"] = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
            if self._log is None:
                self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the nurseries of this object
            with theirs:
                self._nursery = subprocess.Popen(
                    [sys.executable, "-m", "engine_under_test.distributed.rank_nursery", str(theirs.fileno())],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=self._log,
                    start_new_session=True,  # an interrupt from the keyboard is the driver's business
                    env=environment,
                )
            ours.settimeout(BIRTH_S)
            self._socket = ours
        return self._socket

    def _born(self) -> int:
        """The process of the rank that was just asked for."""
        while True:
            word, pid, *rest = self._line()
            if word == "born":
                return int(pid)
            self._exits[int(pid)] = int(rest[0])

    def _line(self) -> list[str]:
        assert self._socket is not None  # opened by `start`
        while b"\n" not in self._heard:
            piece = self._socket.recv(4096)
            if not piece:
                raise ConnectionError("the nursery is gone")
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode().split()

    def exit_of(self, pid: int, timeout_s: float) -> int | None:
        """The exit status of a rank, negative for a signal; None if it is not known in that time."""
        if self._socket is None:
            return None
        with contextlib.suppress(OSError):
            while pid not in self._exits:
                if b"\n" not in self._heard and not is_ready(self._socket, timeout_s=timeout_s):
                    break
                _, other, *rest = self._line()
                self._exits[int(other)] = int(rest[0])
        return self._exits.get(pid)

    @property
    def nursery_pid(self) -> int | None:
        return None if self._nursery is None else self._nursery.pid

    def close(self) -> None:
        """Ends the nursery, and with it every rank that it gave birth to."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._nursery is not None:
            try:
                self._nursery.wait(_BURIAL_S)
            except subprocess.TimeoutExpired:
                self._nursery.kill()  # its ranks go with it
                self._nursery.wait()
            self._nursery = None
        self._heard = b""


class LocalProcess:
    """A rank that was forked from a nursery."""

    def __init__(self, pid: int, link: Link, owner: Processes) -> None:
        self.pid = pid
        self.link = link
        self._owner = owner
        try:
            self._pidfd: int | None = os.pidfd_open(pid)
        except ProcessLookupError:
            self._pidfd = None

    @property
    def name(self) -> str:
        return f"process {self.pid}"

    def has_ended(self) -> bool:
        return self._pidfd is None or is_ready(self._pidfd, timeout_s=0)

    def kill(self) -> None:
        """See `RankProcess`; by its descriptor, which never names another process."""
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)

    def how_it_ended(self, timeout_s: float) -> str:
        """See `RankProcess`."""
        if self._pidfd is not None and not is_ready(self._pidfd, timeout_s=timeout_s):
            return ""
        status = self._owner.exit_of(self.pid, timeout_s)
        if status is None:
            return "ended"
        return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"exited with code {status}"

    def close(self) -> None:
        self.link.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None
