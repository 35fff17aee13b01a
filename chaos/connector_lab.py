"""The machines of a connector storm: a real `assay kv-store`, and a Toxiproxy in front of it.

    each engine ──TCP──► its proxy (toxics) ──TCP──► assay kv-store

Owns processes, addresses and the proxies. Everything ends with the block that opened it, and with the process that did. Never
decides when a fault strikes, nor what must hold.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from chaos.connector_account import Account, Sight
from chaos.connector_traffic import Stalls
from chaos.faults import Fault
from chaos.nemesis.connection_base import is_of_one_link
from chaos.proxies import Heal, Proxies, Proxy, open_proxies
from engine_under_test.errors import RunnerError

NUM_ENGINES = 2
LEASE_S = 1.0  # of the store
CAPACITY_MIB = 1
_START_S = 30.0
_END_S = 10.0
_COUNTER = re.compile(r"^toxiproxy_proxy_(received|sent)_bytes_total\{(.*)\} (\S+)$", re.MULTILINE)
_ROOT = str(Path(__file__).resolve().parents[1])


class StoreProcess:
    """`assay kv-store` on one port of the loopback device, however often it is started. It ends with this process, since its
    standard input does."""

    def __init__(self, account: Account) -> None:
        self.port = 0
        self.num_killed = 0
        self.said = ""  # on standard error, by all of them
        self._account = account
        self._process: subprocess.Popen[bytes] | None = None
        self._errors: IO[str] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None  # started
        return self._process.pid

    def start(self) -> None:
        """Begins to; who connects too early is refused."""
        flags = ("--listen", f"127.0.0.1:{self.port}", "--capacity-mib", str(CAPACITY_MIB), "--lease", str(LEASE_S))
        path = os.pathsep.join(dict.fromkeys((_ROOT, *(str(Path(entry).absolute()) for entry in sys.path if entry))))
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ci", "kv-store", "--json", "--until-eof", *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**{name: value for name, value in os.environ.items() if name != "ASSAY_KV_TOKEN"}, "PYTHONPATH": path},
            process_group=0,  # no Ctrl-C; and a frozen one is ended by the system when this process dies (an orphaned group)
        )
        self._account.note("store", Sight.STARTED, words=f"process {self.pid}")

    def wait_until_it_listens(self) -> None:
        assert self._process is not None  # started
        assert self._process.stdout is not None
        if select.select((self._process.stdout,), (), (), _START_S)[0]:
            line = self._process.stdout.readline()
            if line:
                self.port = int(json.loads(line)["port"])
                return
        self.kill()
        last = self.said.strip().splitlines()[-1:] or ["it said nothing"]
        raise RunnerError(f"assay kv-store did not come to listen within {_START_S:g} s: {last[0]}")

    def kill(self) -> None:
        """By SIGKILL: its memory is gone."""
        if self._process is None:
            return
        self._process.kill()
        self._reap()
        self.num_killed += 1
        self._account.note("store", Sight.KILLED)

    def freeze(self) -> None:
        """By SIGSTOP: it holds its connections and does nothing."""
        os.kill(self.pid, signal.SIGSTOP)
        ends = time.monotonic() + _END_S
        while psutil.Process(self.pid).status() != psutil.STATUS_STOPPED:
            if time.monotonic() > ends:
                raise RunnerError(f"process {self.pid} did not stop within {_END_S:g} s of SIGSTOP")
            time.sleep(0.002)
        self._account.note("store", Sight.STOPPED)

    def resume(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
            self._account.note("store", Sight.CONTINUED)

    def num_connections(self) -> int:
        """That it has not ended yet."""
        if self._process is None or self._process.poll() is not None:
            return 0
        ended = (psutil.CONN_LISTEN, psutil.CONN_TIME_WAIT)
        found = psutil.Process(self.pid).net_connections("tcp")
        return sum(each.status not in ended and each.laddr.port == self.port for each in found)

    def end(self) -> Mapping[str, Any]:
        """By SIGTERM; what it says of its life, or nothing if it had ended before."""
        process = self._process
        if process is None:
            return {}
        process.send_signal(signal.SIGCONT)
        process.send_signal(signal.SIGTERM)
        try:
            out, _ = process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return {}
        self._reap()
        lines = [json.loads(line) for line in out.splitlines()]
        return lines[-1] if lines and "accepted" in lines[-1] else {}

    def _reap(self) -> None:
        process, errors = self._process, self._errors
        self._process = self._errors = None
        assert process is not None  # asked by whoever has one
        assert errors is not None
        process.wait(_END_S)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        errors.seek(0)
        self.said += errors.read()
        errors.close()

    def last_words(self) -> str:
        """Of one that ended by itself."""
        self._reap()
        return (self.said.strip().splitlines()[-1:] or ["it said nothing"])[0]

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


class Lab:
    """What a nemesis may touch. ``block_bytes``: of the blocks that travel."""

    def __init__(self, account: Account, store: StoreProcess, proxies: Proxies, links: Sequence[Proxy]) -> None:
        self.account = account
        self.store = store
        self.proxies = proxies
        self.links = links  # of each engine
        self.block_bytes = 1 << 14
        self.stalls = Stalls(account.clock, LEASE_S + 0.4)  # the store looks at its leases ten times a second
        self.hang_ups = 0  # how often the engines were told to close their connections

    def strike(self, fault: Fault, how: Callable[[Proxy], Heal]) -> Callable[[], None]:
        """On every link, or on the one that the fault is for; the undo of it."""
        heals = [how(link) for link in self.links[: 1 if is_of_one_link(fault) else None]]

        def undo() -> None:
            for heal in heals:
                heal()

        return undo

    def bytes_cut(self) -> dict[str, int]:
        """Bytes that the proxies received and never passed on, by direction; nothing where the server does not count them."""
        address = self.proxies.served.address
        connection = http.client.HTTPConnection(address.host, address.port, timeout=_END_S)
        with contextlib.closing(connection):
            try:
                connection.request("GET", "/metrics")
                text = connection.getresponse().read().decode(errors="replace")
            except (OSError, http.client.HTTPException):
                return {}
        counted = Counter[str]()
        for what, labels, value in _COUNTER.findall(text):
            if any(f'proxy="{link.name}"' in labels for link in self.links):
                way = "upstream" if 'direction="upstream"' in labels else "downstream"
                counted[way] += int(float(value)) * (1 if what == "received" else -1)
        return {f"bytes cut {way}": amount for way, amount in counted.items()}

    def restart_store(self) -> None:
        """Killed, and started again with an empty pool."""
        self.store.kill()
        self.store.start()

    def hang_up(self) -> None:
        """The engines close their connections, as soon as they look."""
        self.hang_ups += 1


@contextlib.contextmanager
def open_lab(account: Account, environ: Mapping[str, str], seed: int) -> Iterator[Lab]:
    """RunnerError or BadInput, in a sentence, where a process can not be had."""
    store = StoreProcess(account)
    with contextlib.ExitStack() as stack:
        stack.callback(store.end)
        store.start()
        proxies = stack.enter_context(open_proxies(environ, seed=seed))  # comes up meanwhile
        store.wait_until_it_listens()
        links = [proxies.create(f"kv-store-{number}", f"127.0.0.1:{store.port}") for number in range(NUM_ENGINES)]
        for link in links:
            stack.callback(link.remove)
        yield Lab(account, store, proxies, links)
