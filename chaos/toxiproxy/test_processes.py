"""Which server is taken, how it starts and ends: the best offer, one sentence when it does not work, and never an orphan."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from chaos.doubles import PATIENCE_S, Stopwatch, say
from chaos.toxiproxy.address import Address, parse_address
from chaos.toxiproxy.choosing import Kind, Offer, Way, local_image, offered, serving
from engine_under_test.errors import BadInput, RunnerError

_ROOT = Path(__file__).resolve().parents[2]

# Stands where a real server would: takes its flags, and refuses the newer one if told to.
_FAKE = """#!{python}
import os, sys
flags = sys.argv[1:]
if {is_old} and "-proxy-metrics" in flags:
    sys.exit("flag provided but not defined: -proxy-metrics")
where = flags[flags.index("-host") + 1] + ":" + flags[flags.index("-port") + 1]
os.environ["PYTHONPATH"] = {root!r}
os.execv(sys.executable, [sys.executable, "-m", "chaos.toxiproxy.server", "--listen", where])
"""

# Stands where docker-py would: a "container" is a process that the arguments of the real call describe.
_FAKE_DOCKER = """
import subprocess, sys

class Container:
    def __init__(self, arguments):
        where = arguments[1] + ":" + arguments[3]
        self.process = subprocess.Popen([sys.executable, "-m", "chaos.toxiproxy.server", "--listen", where], stdout=-3)
        self.status = "created"
    def reload(self):
        self.status = "running" if self.process.poll() is None else "exited"
    def remove(self, force):
        self.process.kill()
        self.process.wait()

class Containers:
    def run(self, image, arguments, *, network_mode, detach, labels):
        assert (image, arguments[0], arguments[2]) == ("toxiproxy:2", "-host", "-port")
        assert (network_mode, detach) == ("host", True)
        return Container(arguments)

class Engine:
    containers = Containers()

def from_env():
    return Engine()
"""

_OWNER = """
import sys, time
from chaos.toxiproxy.choosing import Offer, Way, serving
with serving(Offer(Way(sys.argv[1]), sys.argv[2])) as served:
    print(served.address, flush=True)
    time.sleep(60)
"""


def _binary(folder: Path, *, is_old: bool = False) -> Path:
    path = folder / "toxiproxy-server"
    path.write_text(_FAKE.format(python=sys.executable, is_old=is_old, root=str(_ROOT)))
    path.chmod(0o755)
    return path


def _is_served(address: Address) -> bool:
    try:
        socket.create_connection(address, timeout=PATIENCE_S).close()
    except ConnectionRefusedError:
        return False
    except ConnectionResetError:
        pass  # it was closing just then
    return True


@pytest.mark.parametrize(
    ("environ", "has_binary", "image", "expected"),
    [
        ({"TOXIPROXY_URL": "http://h:1"}, True, "i:1", Offer(Way.URL, "http://h:1")),
        ({}, True, "i:1", None),
        ({}, False, "i:1", Offer(Way.IMAGE, "i:1")),
        ({"TOXIPROXY_URL": ""}, False, None, Offer(Way.EMBEDDED)),
    ],
    ids=["a URL is first", "then a binary", "then an image", "otherwise the embedded server"],
)
def test_the_best_offer_is_taken(
    tmp_path: Path, environ: Mapping[str, str], has_binary: bool, image: str | None, expected: Offer | None
) -> None:
    binary = _binary(tmp_path) if has_binary else tmp_path / "nothing"
    offer = offered({**environ, "PATH": str(tmp_path)}, lambda: image)
    assert offer == (expected or Offer(Way.BINARY, str(binary)))
    assert (offer.kind is Kind.EMBEDDED) == (offer.way is Way.EMBEDDED)


def test_without_an_engine_there_is_no_image(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    assert local_image() is None


@pytest.mark.parametrize("is_old", [False, True], ids=["with metrics", "too old for the flag of metrics"])
def test_a_binary_is_kept_running_for_the_block_and_no_longer(tmp_path: Path, is_old: bool) -> None:
    with serving(Offer(Way.BINARY, str(_binary(tmp_path, is_old=is_old)))) as served:
        assert served.offer.kind is Kind.REAL
        assert say(served.address, "GET", "/proxies") == (200, {})
    assert not _is_served(served.address)


def test_a_container_is_kept_running_for_the_block_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docker.py").write_text(_FAKE_DOCKER)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with serving(Offer(Way.IMAGE, "toxiproxy:2")) as served:
        assert served.offer.kind is Kind.REAL
        assert say(served.address, "GET", "/proxies") == (200, {})
    assert not _is_served(served.address)


def test_an_image_that_an_engine_has_is_found_by_any_of_its_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    class Images:
        def list(self, name: str) -> list[SimpleNamespace]:
            return [SimpleNamespace(tags=[f"{name}:2.9.0"])] if name.startswith("ghcr.io/") else []

    engine = SimpleNamespace(images=Images(), close=lambda: None)
    monkeypatch.setattr("docker.from_env", lambda **_: engine)
    assert local_image() == "ghcr.io/shopify/toxiproxy:2.9.0"


def test_a_url_is_used_as_it_is_and_left_running() -> None:
    with serving(Offer(Way.EMBEDDED)) as running:
        for url in (f"http://{running.address}", f"http://{running.address}/", str(running.address)):
            with serving(Offer(Way.URL, url)) as served:
                assert (served.address, served.offer.kind) == (running.address, Kind.REAL)
        assert _is_served(running.address)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "https://127.0.0.1:8474", "http://", "http://h:port", "127.0.0.1:99999"])
def test_a_url_that_does_not_work_is_one_sentence_and_no_reason_to_take_another(url: str) -> None:
    with pytest.raises(BadInput, match="TOXIPROXY_URL"), serving(Offer(Way.URL, url)):
        pass


def test_something_else_at_the_url_is_said() -> None:
    with serving(Offer(Way.EMBEDDED)) as running:
        asked = {"name": "p", "listen": "127.0.0.1:0", "upstream": "127.0.0.1:1"}
        other = say(running.address, "POST", "/proxies", asked).body["listen"]
        with pytest.raises(BadInput, match="no Toxiproxy answers"), serving(Offer(Way.URL, f"http://{other}")):
            pass


def test_a_binary_that_does_not_serve_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "toxiproxy-server"
    path.write_text("#!/bin/sh\nexit 3\n")
    path.chmod(0o755)
    with pytest.raises(RunnerError, match="does not answer at its API"), serving(Offer(Way.BINARY, str(path))):
        pass


@pytest.mark.parametrize("way", [Way.EMBEDDED, Way.BINARY])
def test_a_server_ends_when_its_owner_is_killed(tmp_path: Path, way: Way) -> None:
    what = str(_binary(tmp_path)) if way is Way.BINARY else ""
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, way, what],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
    )
    assert owner.stdout is not None
    with owner.stdout:
        address = parse_address(owner.stdout.readline().strip())
        assert _is_served(address)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    watch = Stopwatch()
    while _is_served(address):
        assert watch.seconds < PATIENCE_S


@pytest.mark.parametrize(
    ("listen", "code", "sentence"),
    [
        ("here", 64, "--listen takes HOST:PORT"),
        ("127.0.0.1:many", 64, "--listen takes HOST:PORT"),
        ("192.0.2.1:80", 1, "can not listen on 192.0.2.1:80"),
    ],
)
def test_an_address_that_can_not_be_had_is_one_sentence(listen: str, code: int, sentence: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "chaos.toxiproxy.server", "--listen", listen],
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (code, "")
    assert sentence in ended.stderr
    assert ended.stderr.count("\n") == 1
