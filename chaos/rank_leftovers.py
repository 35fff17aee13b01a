"""What a driver of ranks in containers leaves behind when it is killed, and who removes it.

    python -m chaos.rank_leftovers OWNER        removes what OWNER has started, once standard input ends

Owns the label that tells whose a container or a network is. `Reaper` is a process beside the driver that holds one end of a
pipe: it learns of the driver's end, however that came, and removes what is left. Where both were killed, whoever starts ranks
next does (`remove_leftovers`). Never touches what has no such label.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

CHECKOUT: Final = str(Path(__file__).resolve().parents[1])
LABEL: Final = "assay.driver"
_REAPED_S = 15.0
_LOOK_S = 0.5  # a container may be on its way when its driver is killed: it is looked for until twice nothing is found


def new_owner() -> str:
    """This process, so that another one of the same number is not taken for it, and a name of its own for each launcher."""
    return f"{os.getpid()}-{_started(os.getpid())}-{secrets.token_hex(4)}"


def is_alive(owner: str) -> bool:
    """Whether the process that `new_owner` named still runs."""
    pid, _, rest = owner.partition("-")
    started = _started(int(pid)) if pid.isdigit() else ""
    return bool(started) and rest.startswith(f"{started}-")


def _started(pid: int) -> str:
    """When the process started, in the kernel's ticks; "" if it has ended (proc_pid_stat(5): fields 3 and 22)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in ("Z", "X") else fields[19]


def remove_leftovers(client: Any) -> None:
    """Containers and networks of drivers that are gone."""
    labels = [container.labels[LABEL] for container in client.containers.list(all=True, filters={"label": LABEL})]
    labels += [network.attrs["Labels"][LABEL] for network in client.networks.list(filters={"label": LABEL})]
    for owner in {each for each in labels if not is_alive(each)}:
        remove_of(client, owner)


def remove_of(client: Any, owner: str) -> int:
    """Removes the containers and networks of this owner; how many there were."""
    filters = {"label": f"{LABEL}={owner}"}
    containers = client.containers.list(all=True, filters=filters, ignore_removed=True)
    for container in containers:
        with contextlib.suppress(Exception):  # it is not paused
            container.unpause()
        with contextlib.suppress(Exception):  # somebody was faster
            container.remove(force=True)
    networks = client.networks.list(filters=filters)
    for network in networks:
        with contextlib.suppress(Exception):  # somebody was faster, or a container is still on it
            network.remove()
    return len(containers) + len(networks)


class Reaper:
    """A process that outlives this one by as long as it takes to remove what it has started."""

    def __init__(self, owner: str) -> None:
        path = os.pathsep.join((CHECKOUT, *(str(Path(entry).absolute()) for entry in sys.path if entry)))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.rank_leftovers", owner],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # what ends a terminal's processes, or a job's, is not to end this one too
            env={**os.environ, "PYTHONPATH": path},
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def close(self) -> None:
        """Lets it look once more, and waits for its end."""
        assert self._process.stdin is not None  # opened as a pipe
        self._process.stdin.close()
        try:
            self._process.wait(_REAPED_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _reap(owner: str) -> None:
    while os.read(sys.stdin.fileno(), 4096):  # nobody writes; the end comes with the driver's
        pass
    import docker  # not before there is something to do

    deadline = time.monotonic() + _REAPED_S * 4
    client = docker.from_env(timeout=30)
    while time.monotonic() < deadline:
        if not remove_of(client, owner):
            time.sleep(_LOOK_S)
            if not remove_of(client, owner):
                return
        time.sleep(_LOOK_S)


if __name__ == "__main__":
    _reap(sys.argv[1])
