"""Ranks in containers: one for each, on a bridge network of their own, with a memory limit.

Owns containers, their network, and the image, which is empty: no image is pulled, the machine's own /usr, interpreter, packages
and checkout are mounted read-only. Driven through docker-py. The driver listens at the gateway of the network and reads nothing
from whoever does not know its token. Containers end with their driver, since their connection to it ends, and are removed
behind it, paused ones too, whatever ended it (`rank_leftovers.py`).
"""

from __future__ import annotations

import contextlib
import hmac
import io
import os
import secrets
import socket
import sys
import tarfile
import time
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from chaos.rank_leftovers import CHECKOUT, LABEL, Reaper, new_owner, remove_leftovers, remove_of
from engine_under_test.distributed.rank_dial import TOKEN_BYTES, TOKEN_VARIABLE
from engine_under_test.distributed.rank_link import Link
from engine_under_test.errors import AssayError

INTERFACE = "eth0"  # of a container on its network
MEMORY = "512m"
_IMAGE = "assay-empty:1"
_CONNECT_S = 60.0
_LOOK_S = 0.5  # how often it is looked whether a container that has not called yet still runs
_TRIES = 5  # for a range of addresses that nobody else takes at the same time


class ContainerRank:
    """One rank, see `RankProcess`."""

    def __init__(self, container: Any, network: Any, link: Link) -> None:
        self._container = container
        self._network = network
        self._end = ""
        self._address = ""  # to come back under
        self.link = link

    @property
    def name(self) -> str:
        return f"container {self._container.short_id}"

    def has_ended(self) -> bool:
        return bool(self._look(0.0))

    def how_it_ended(self, timeout_s: float) -> str:
        """See `RankProcess`."""
        return self._look(timeout_s)

    def kill(self) -> None:
        """See `RankProcess`."""
        with contextlib.suppress(Exception):  # it is not paused
            self._container.unpause()
        with contextlib.suppress(Exception):  # it has ended
            self._container.kill()

    def pause(self) -> None:
        """Every process of it stands still, as a machine does whose hypervisor has forgotten it."""
        self._container.pause()

    def resume(self) -> None:
        """It goes on where it stood."""
        self._container.unpause()

    def disconnect(self) -> None:
        """Nothing reaches it any more, nor does anybody learn so."""
        self._container.reload()
        self._address = self._container.attrs["NetworkSettings"]["Networks"][self._network.name]["IPAddress"]
        self._network.disconnect(self._container)

    def reconnect(self) -> None:
        """It is back under its old address, so that its connections go on."""
        self._network.connect(self._container, ipv4_address=self._address)

    def has_said(self, words: str, within_s: float) -> bool:
        """Waits until this stands in what it printed; False if it does not in that time, or ends."""
        deadline = time.monotonic() + within_s
        while words.encode() not in self._container.logs():
            if time.monotonic() >= deadline or self.has_ended():
                return False
            time.sleep(0.05)
        return True

    def close(self) -> None:
        """See `RankProcess`."""
        self.link.close()
        with contextlib.suppress(Exception):  # it is gone already
            self._container.remove(force=True)

    def _look(self, timeout_s: float) -> str:
        deadline = time.monotonic() + timeout_s
        while not self._end:
            self._container.reload()
            state = self._container.attrs["State"]
            if not state["Running"]:
                self._end = "was killed at its memory limit" if state["OOMKilled"] else f"exited with code {state['ExitCode']}"
            elif time.monotonic() >= deadline:
                break
            else:
                time.sleep(0.05)
        return self._end


class Containers:
    """Starts ranks in containers, see `Launcher`. AssayError if there is no Docker engine, with what to do."""

    def __init__(self, memory: str = MEMORY) -> None:
        self._client = engine()
        self._memory = memory
        self._token = secrets.token_hex(TOKEN_BYTES // 2)
        self.owner = new_owner()
        remove_leftovers(self._client)
        self.reaper = Reaper(self.owner)  # before there is anything to remove
        try:
            _have_image(self._client)
            self._network, gateway = _bridge(self._client, self.owner)
            self._listener = socket.create_server((gateway, 0))
        except BaseException:
            self.reaper.close()
            raise
        self._listener.settimeout(_LOOK_S)

    def start(self) -> ContainerRank:
        """See `Launcher.start`."""
        host, port = self._listener.getsockname()
        container = self._client.containers.run(
            _IMAGE,
            [sys.executable, "-m", "engine_under_test.distributed.rank_dial", host, str(port)],
            detach=True,
            init=False,
            network=self._network.name,
            mem_limit=self._memory,
            memswap_limit=self._memory,
            volumes={source: {"bind": target, "mode": "ro"} for source, target in _mounts()},
            tmpfs={"/tmp": ""},
            working_dir="/",
            environment={
                TOKEN_VARIABLE: self._token,
                "PYTHONPATH": os.pathsep.join(_python_path()),
                "PYTHONDONTWRITEBYTECODE": "1",
                "OMP_NUM_THREADS": "1",
            },
            labels={LABEL: self.owner},
        )
        try:
            return ContainerRank(container, self._network, Link(self._accept(container)))
        except OSError as error:
            words = container.logs().decode(errors="replace").strip().splitlines()[-1:]
            container.remove(force=True)
            raise AssayError(f"a rank in a container did not call its driver: {error}; it said: {''.join(words)}") from error

    def _accept(self, container: Any) -> socket.socket:
        """The next one who knows the token. OSError if nobody comes in time, or the container has ended."""
        deadline = time.monotonic() + _CONNECT_S
        while True:
            try:
                end, _ = self._listener.accept()
            except TimeoutError:
                container.reload()
                if container.status in ("exited", "dead"):
                    raise ConnectionError("it has ended") from None
                if time.monotonic() >= deadline:
                    raise
                continue
            end.settimeout(_CONNECT_S)
            said = b""
            with contextlib.suppress(OSError):
                while len(said) < TOKEN_BYTES and (piece := end.recv(TOKEN_BYTES - len(said))):
                    said += piece
            if hmac.compare_digest(said, self._token.encode()):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return end
            end.close()

    def close(self) -> None:
        """Removes whatever it has started, and the network."""
        self._listener.close()
        remove_of(self._client, self.owner)
        self._client.close()
        self.reaper.close()


def engine() -> Any:
    """A client of the Docker engine that $DOCKER_HOST, or the usual socket, leads to. AssayError, with what to do, if none."""
    try:
        import docker
    except ImportError as error:
        raise AssayError(f"containers need docker-py, found none ({error}); install the extra `chaos`") from error
    try:
        client = docker.from_env(timeout=30)
        client.ping()
    except docker.errors.DockerException as error:
        raise AssayError(
            f"containers need a Docker engine, found none ({error}); as root, .ci/docker-engine up installs and starts one; "
            "else start dockerd --storage-driver=vfs, and set DOCKER_HOST if its socket is not the usual one"
        ) from error
    return client


def _have_image(client: Any) -> None:
    """The empty image, imported once for all; nothing is pulled."""
    import docker

    try:
        client.images.get(_IMAGE)
    except docker.errors.ImageNotFound:
        empty = io.BytesIO()
        tarfile.open(fileobj=empty, mode="w").close()
        client.api.import_image_from_data(empty.getvalue(), *_IMAGE.split(":"))


def _bridge(client: Any, owner: str) -> tuple[Any, str]:
    """A network of this driver's own without a way out, and the address of this machine on it. Its range is one that the
    engine found free, asked for by name: only then may a container come back under its old address."""
    import docker

    tries = 0
    while True:
        tries += 1
        found = client.networks.create(f"assay-free-{owner}", driver="bridge", internal=True, labels={LABEL: owner})
        found.reload()
        subnet = found.attrs["IPAM"]["Config"][0]["Subnet"]
        found.remove()
        pool = docker.types.IPAMPool(subnet=subnet, gateway=str(next(ip_network(subnet).hosts())))
        try:
            network = client.networks.create(
                f"assay-ranks-{owner}", driver="bridge", internal=True, labels={LABEL: owner},
                ipam=docker.types.IPAMConfig(pool_configs=[pool]),
            )  # fmt: skip
        except docker.errors.APIError as error:  # another driver was faster
            if tries == _TRIES:
                raise AssayError(f"a network of {subnet} for ranks in containers could not be made: {error}") from error
            continue
        return network, str(pool["Gateway"])


def _python_path() -> list[str]:
    """This checkout, wherever the driver was started and however it finds it, then what the driver finds."""
    found = (str(Path(entry).absolute()) for entry in (CHECKOUT, *sys.path) if entry and Path(entry).is_dir())
    return list(dict.fromkeys(found))


def _mounts() -> list[tuple[str, str]]:
    """What a rank needs of this machine: system, interpreter, packages, checkout; nothing twice."""
    found = {"/usr": "/usr"}
    found |= {str(Path(link).resolve()): link for link in ("/lib", "/lib64", "/bin") if Path(link).exists()}
    for entry in (sys.base_prefix, sys.prefix, *_python_path()):
        path = str(Path(entry).resolve())
        if path not in ("/", "/tmp") and not any(path == known or path.startswith(f"{known}/") for known in found):
            found[path] = path
    return list(found.items())
