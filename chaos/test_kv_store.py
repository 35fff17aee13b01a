"""A KV store over real sockets: it serves, and what hostile or broken peers do costs them their connection and nothing else.

Some hundreds of hostile connections; for 100000 of each kind: `python -m chaos.hostile_peers --connections 100000`.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from chaos.good_engine import TOKEN, GoodEngine, Serving
from chaos.hostile_kinds import KINDS, Kind, Peer
from chaos.hostile_peers import attack
from chaos.store_in_thread import StoreInThread
from engine_under_test.clock import SystemClock
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.kv_store import ServerConfig
from engine_under_test.distributed.protocol import VERSION
from engine_under_test.distributed.tcp import TcpConfig, TcpTransport
from engine_under_test.errors import BadInput, ConfigError

_PATIENCE_S = 10.0


@pytest.fixture
def running() -> Iterator[StoreInThread]:
    found = StoreInThread()
    yield found
    found.close()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_hostile_peer_costs_its_connection_and_nothing_else(running: StoreInThread, kind: Kind) -> None:
    good = GoodEngine(running.address, SystemClock())
    good.go_round()
    with Serving(good, rest_s=0.01):
        outcome = attack(running.address, kind, 40, seed=1)
    good.go_round()
    assert (outcome.connections, outcome.not_ended) == (40, 0), outcome
    running.until(lambda: len(running.store.connections) == 1, "only the good engine is left")
    pool = running.store.pool
    assert not pool.pinned
    assert len(pool) == 8, "what the good engine stored, and nothing of the others"
    if kind.ends:
        assert sum(running.store.stats.faults.values()) == (40 if kind.is_fault else 0)
    good.transport.close("the end")


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not kind.ends], ids=lambda kind: kind.name)
def test_a_peer_that_takes_its_time_is_ended_when_it_is_up(running: StoreInThread, kind: Kind) -> None:
    good = GoodEngine(running.address, SystemClock())
    good.go_round()
    good.transport.close("only what it stored stays")
    running.until(lambda: not running.store.connections, "the good engine is gone")
    peer = Peer(running.address)
    kind.attack(peer, random.Random(1))
    running.until(lambda: len(running.store.connections) == 1, "it is there")
    for _ in range(8):  # 5 s for a greeting, 30 s for a frame, 10 + 5 s for a transfer that stands still
        running.clock.time += 5.0
        time.sleep(0.05)
    assert peer.is_ended()
    running.until(lambda: not running.store.connections, "it is gone")
    assert not running.store.pool.pinned
    peer.close()


def test_a_full_store_drops_strangers_first() -> None:
    running = StoreInThread(max_connections=20)
    good = GoodEngine(running.address, SystemClock())
    good.go_round()
    crowd = [Peer(running.address) for _ in range(60)]
    late = GoodEngine(running.address, SystemClock())
    late.go_round()
    good.go_round()
    running.until(lambda: len(running.store.connections) <= 20, "no more than allowed")
    assert running.store.stats.turned_away >= 40
    for peer in crowd:
        peer.close()
    for engine in (good, late):
        engine.transport.close("the end")
    running.close()


def test_a_peer_that_does_not_read_is_not_read_from(running: StoreInThread) -> None:
    """Its loads are granted everything and taken by nobody: the store holds a write buffer, not all that was asked for."""
    good = GoodEngine(running.address, SystemClock())
    good.go_round()
    peer = Peer(running.address, receive_bytes=4096)
    peer.greet()
    keys = tuple(b"good %d" % number for number in range(8))
    peer.socket.settimeout(0.2)
    with contextlib.suppress(OSError):  # the socket is full
        for number in range(1, 10000):
            peer.say(m.Open(number, False, 4096, keys))
            peer.say(m.Credit(number, 8 * 4096))
    good.go_round()
    (connection,) = [each for each in running.store.connections if each.is_stalled]
    assert connection._transport is not None
    assert connection._transport.get_write_buffer_size() < 1 << 20
    running.clock.time += 31.0
    running.until(lambda: connection not in running.store.connections, "ended for not reading")
    assert not running.store.pool.pinned
    peer.close()


def test_the_last_word_says_why(running: StoreInThread) -> None:
    peer = Peer(running.address)
    peer.say(m.Hello(VERSION + 1, bytes(16), 0))
    found = peer.hear()
    assert isinstance(found, m.Fault)
    assert f"version {VERSION} of the protocol" in found.text
    peer.close()


def test_without_a_token_the_store_stays_on_loopback() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.1", "a-name"):
        with pytest.raises(ConfigError, match="listens on loopback only"):
            ServerConfig(host)
        assert ServerConfig(host, token=TOKEN).host == host
    for host in ("127.0.0.1", "::1", "localhost", "127.1.2.3"):
        assert ServerConfig(host).host == host
    with pytest.raises(ConfigError, match="at least 16 bytes"):
        ServerConfig(token=b"short")


def test_a_host_that_is_none_is_said_in_a_sentence() -> None:
    with pytest.raises(BadInput, match="a host that can be looked up, found 'no host'"):
        TcpTransport(TcpConfig("no host", 7070), SystemClock())


def _started(*flags: str) -> tuple[subprocess.Popen[str], tuple[str, int]]:
    command = [sys.executable, "-m", "ci", "kv-store", "--json", *flags]
    environment = {**os.environ, "ASSAY_KV_TOKEN": TOKEN.decode()}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True)
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    return process, (found["host"], found["port"])


def test_a_store_that_was_killed_is_found_again_and_filled_anew() -> None:
    """The engine computes meanwhile; its stores go on where the next process listens."""
    process, address = _started()
    good = GoodEngine(address, SystemClock())
    good.go_round()
    process.kill()
    process.communicate(timeout=_PATIENCE_S)
    good.until(lambda: good.transport.connection is None)
    assert good.connector.ask("while it is dead", good.keys) is None
    process, _ = _started("--listen", f"127.0.0.1:{address[1]}")
    good.connector.counters.connections_lost = 0
    good.go_round()
    good.transport.close("the end")
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=_PATIENCE_S)
    assert process.returncode == 0
    assert json.loads(out)["accepted"] >= 1


def test_a_store_dies_with_whoever_started_it() -> None:
    process, _ = _started("--until-eof")
    assert process.stdin is not None
    process.stdin.close()
    assert process.wait(_PATIENCE_S) == 0
    assert process.stdout is not None
    process.stdout.close()
