"""A process that gives birth to ranks: it has loaded what they need, so that a new one is there in milliseconds.

    python -m engine_under_test.distributed.rank_nursery DESCRIPTOR

Owns the ranks' processes. It never computes, and it has one thread, so that forking is sound. Over the socket that it inherits
come a byte and the connection of a rank to be; it answers with lines of pid and exit status. When the socket ends, its owner
is gone: then it kills all of its ranks, frozen ones too, and ends. Should it be killed itself, the kernel kills them
(prctl(2), PR_SET_PDEATHSIG).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys

from engine_under_test.distributed.rank_worker import serve

BIRTH = b"r"
_PR_SET_PDEATHSIG = 1


class Nursery:
    """Serves one owner, until the owner is gone."""

    def __init__(self, owner: socket.socket) -> None:
        self._owner = owner
        self._ranks: dict[int, int] = {}  # pidfd -> pid
        self._poll = select.poll()
        self._poll.register(owner.fileno(), select.POLLIN)

    def run(self) -> None:
        """Gives birth and buries until the owner's end of the socket is closed."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor != self._owner.fileno():
                    self._bury(descriptor)
                elif not self._give_birth():
                    self._end()
                    return

    def _give_birth(self) -> bool:
        """One rank, for one byte and one descriptor. False when the owner is gone."""
        try:
            asked, descriptors, _, _ = socket.recv_fds(self._owner, 1, 1)
        except OSError:
            return False
        if not asked:
            return False
        (end,) = descriptors
        myself = os.getpid()
        pid = os.fork()
        if pid == 0:
            _be_rank(socket.socket(fileno=end), myself, [self._owner.fileno(), *self._ranks])
        os.close(end)
        pidfd = os.pidfd_open(pid)
        self._ranks[pidfd] = pid
        self._poll.register(pidfd, select.POLLIN)
        self._say(f"born {pid}\n")
        return True

    def _bury(self, pidfd: int) -> None:
        pid = self._ranks.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._say(f"dead {pid} {os.waitstatus_to_exitcode(status)}\n")

    def _say(self, line: str) -> None:
        with contextlib.suppress(OSError):  # an owner that is gone is noticed where it is read
            self._owner.sendall(line.encode())

    def _end(self) -> None:
        for pidfd in self._ranks:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pid in self._ranks.values():
            os.waitpid(pid, 0)


def _be_rank(end: socket.socket, parent: int, not_mine: list[int]) -> None:
    """The child's side of a birth. Does not return."""
    code = 1
    try:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the line above
            os._exit(code)
        for descriptor in not_mine:
            os.close(descriptor)
        code = serve(end)
    finally:
        os._exit(code)


def main() -> None:
    """Everything that a rank needs was loaded with this module, once, for all the ranks to come."""
    owner = socket.socket(fileno=int(sys.argv[1]))
    Nursery(owner).run()
    os._exit(0)  # there is nothing to tidy up, and taking torch down takes longer than its owner likes to wait


if __name__ == "__main__":
    main()
