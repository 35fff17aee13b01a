"""Keeps a real Toxiproxy running, from a binary or a Docker image, for as long as its owner lives.

    python -m chaos.toxiproxy.keeper binary /usr/bin/toxiproxy-server --owner PID
    python -m chaos.toxiproxy.keeper image ghcr.io/shopify/toxiproxy:2.12.0 --owner PID

Owns the real server's process or container: neither knows of an owner, so this process does. Prints one line: the address.
"""

from __future__ import annotations

import argparse
import http.client
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from chaos.toxiproxy.owner import LOOK_EVERY_S, is_orphan

_HOST = "127.0.0.1"
_ANSWER_S = 10.0
_METRICS = ("-proxy-metrics",)  # since 2.4; an older server refuses the flag and is then started without


class Kept(Protocol):
    def is_alive(self) -> bool: ...

    def stop(self) -> None: ...


class Binary:
    """A `toxiproxy-server` as a child process."""

    def __init__(self, path: str, arguments: Sequence[str]) -> None:
        self._process = subprocess.Popen([path, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def is_alive(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


class Image:
    """A container on the host's network, so that it reaches, and is reached at, loopback addresses."""

    def __init__(self, image: str, arguments: Sequence[str]) -> None:
        import docker

        self._container = docker.from_env().containers.run(
            image, list(arguments), network_mode="host", detach=True, labels={"assay": "toxiproxy"}
        )

    def is_alive(self) -> bool:
        self._container.reload()
        return bool(self._container.status in ("created", "running"))

    def stop(self) -> None:
        self._container.remove(force=True)


def keep(kind: str, what: str, owner: int) -> int:
    """Until the owner ends, the server ends, or SIGTERM; 1 if the server never answered or ended by itself."""
    kept: Kept | None = None
    try:
        for flags in (_METRICS, ()):
            port = _free_port()
            arguments = ("-host", _HOST, "-port", str(port), *flags)
            kept = Binary(what, arguments) if kind == "binary" else Image(what, arguments)
            if _answers(kept, port):
                sys.stdout.write(f"{_HOST}:{port}\n")
                sys.stdout.flush()
                while kept.is_alive():
                    if is_orphan(owner):
                        return 0
                    time.sleep(LOOK_EVERY_S)
                return 1
            kept.stop()
            kept = None
        sys.stderr.write(f"{what} does not answer at its API\n")
        return 1
    finally:
        if kept is not None:
            kept.stop()


def _answers(kept: Kept, port: int) -> bool:
    deadline = time.monotonic() + _ANSWER_S
    while kept.is_alive() and time.monotonic() < deadline:
        connection = http.client.HTTPConnection(_HOST, port, timeout=1)
        try:
            connection.request("GET", "/version")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
        finally:
            connection.close()
    return False


def _free_port() -> int:
    """Free a moment ago: the server takes a number only, and none that it would choose itself."""
    with socket.create_server((_HOST, 0)) as taken:
        return int(taken.getsockname()[1])


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m chaos.toxiproxy.keeper", description="Keeps a real Toxiproxy running.")
    parser.add_argument("kind", choices=("binary", "image"))
    parser.add_argument("what", help="the path of toxiproxy-server, or the name of an image that is here")
    parser.add_argument("--owner", type=int, metavar="PID", required=True, help="the parent process")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
    try:
        return keep(options.kind, options.what, options.owner)
    except OSError as error:
        sys.stderr.write(f"{options.what} does not start: {error.strerror or error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
