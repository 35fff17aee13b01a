"""A hostile or broken peer of the embedded server's API costs itself its connection and nobody else anything.

Only the embedded server is asked: these limits are its own.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from chaos.doubles import PATIENCE_S, Client, Stopwatch, Upstream, say
from chaos.toxiproxy.address import Address, parse_address
from chaos.toxiproxy.choosing import Offer, Way, serving
from chaos.toxiproxy.doors import BODY_BYTES, CONNECTIONS


@dataclass(frozen=True, slots=True)
class Server:
    api: Address
    listen: Address  # of a proxy that must go on working

    def is_well(self) -> bool:
        with Client(self.listen) as client:
            return client.echoes(b"ping") and say(self.api, "GET", "/version").status == 200


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Upstream() as upstream, serving(Offer(Way.EMBEDDED), seed=1) as served:
        asked = {"name": "p", "listen": "127.0.0.1:0", "upstream": str(upstream.address)}
        said = say(served.address, "POST", "/proxies", asked)
        yield Server(served.address, parse_address(said.body["listen"]))


_HEAD = b"POST /proxies HTTP/1.1\r\nHost: x\r\n"
_CHUNKED = _HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
_BROKEN = {
    "a TLS greeting": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a head without an end": b"GET / HTTP/1.1\r\n" + b"X: " + b"a" * 100_000,
    "ten thousand header lines": b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 10_000,
    "a length that is no number": _HEAD + b"Content-Length: many\r\n\r\n",
    "two lengths": _HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "a body beyond the limit": _HEAD + b"Content-Length: 99999999\r\n\r\n" + b"[" * (BODY_BYTES + 70_000),
    "chunks beyond the limit": _CHUNKED + b"ffffffff\r\n" + b"1" * (BODY_BYTES + 70_000),
    "a chunk of no size": _CHUNKED + b"zz\r\n",
    "no HTTP at all": b"hello\r\n\r\n",
}


@pytest.mark.parametrize("data", _BROKEN.values(), ids=_BROKEN.keys())
def test_broken_http_ends_its_own_connection(server: Server, data: bytes) -> None:
    with Client(server.api) as client, contextlib.suppress(ConnectionError):
        client.send(data)
        answer = client.receive(1 << 16)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
    assert server.is_well()


def test_random_bytes_end_their_own_connection(server: Server) -> None:
    dice = random.Random(20)
    for _ in range(50):
        with Client(server.api) as client, contextlib.suppress(ConnectionError):
            client.send(dice.randbytes(dice.randrange(1, 3000)) + b"\r\n\r\n")
            client.receive(1 << 16)
    assert server.is_well()


def test_half_a_request_then_silence_or_a_reset_costs_nothing(server: Server) -> None:
    half = _HEAD + b"Content-Length: 50\r\n\r\n{"
    for _ in range(20):
        client = Client(server.api)
        client.send(half)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.socket.close()
    assert server.is_well()


def test_more_silent_connections_than_there_is_room_for_push_each_other_out(server: Server) -> None:
    watch = Stopwatch()
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(Client(server.api)) for _ in range(CONNECTIONS + 40)]
        for client in silent:
            with contextlib.suppress(ConnectionError):
                client.send(b"GET /ver")
        assert server.is_well()
        assert silent[0].is_ended()
        assert silent[-1].is_silent(0.05)
    assert watch.seconds < PATIENCE_S


_VALUES = {
    "nesting without end": b"[" * 200_000,
    "a number without end": b'{"name": ' + b"9" * 100_000 + b"}",
    "not a number": b'{"name": "q", "upstream": "x:1", "enabled": NaN}',
    "bytes that are no text": b'{"name": "\xff\xfe", "upstream": ',
    "a surrogate alone as a listening address": b'{"name": "q", "upstream": "x:1", "listen": "\\ud800:1"}',
    "a NUL in an address": b'{"name": "q", "upstream": "x:1", "listen": "a\\u0000b:1"}',
    "a port beyond ports": b'{"name": "q", "upstream": "x:1", "listen": "127.0.0.1:99999999999999999999"}',
    "a host longer than names are": b'{"name": "q", "upstream": "x:1", "listen": "' + b"a" * 5000 + b':1"}',
    "a host that is not here": b'{"name": "q", "upstream": "x:1", "listen": "192.0.2.1:1"}',
}


@pytest.mark.parametrize("body", _VALUES.values(), ids=_VALUES.keys())
def test_json_made_to_hurt_is_refused_in_json(server: Server, body: bytes) -> None:
    said = say(server.api, "POST", "/proxies", body)
    assert said.status in (400, 500)
    assert said.body["status"] == said.status
    assert "the server failed" not in said.body["error"]
    assert server.is_well()


def test_a_proxy_with_a_name_that_is_no_text_can_be_listed_and_counted(server: Server) -> None:
    asked = b'{"name": "\\ud800", "upstream": "\\ud800:1", "listen": "127.0.0.1:0"}'
    said = say(server.api, "POST", "/proxies", asked)
    assert said.status == 201
    with Client(parse_address(said.body["listen"])) as client:
        assert client.is_ended()
    for path in ("/proxies", "/metrics"):
        assert say(server.api, "GET", path).status == 200
    assert say(server.api, "POST", "/proxies", {"name": "q", "upstream": "", "enabled": None}).status == 400
    assert server.is_well()


@pytest.mark.parametrize("size", [-(1 << 63), -1, 0, (1 << 63) - 1], ids=["least", "minus one", "zero", "most"])
def test_attributes_at_the_ends_of_their_type_hurt_only_their_own_proxy(server: Server, size: int) -> None:
    with Upstream() as upstream:
        said = say(server.api, "POST", "/proxies", {"name": "q", "listen": "127.0.0.1:0", "upstream": str(upstream.address)})
        for kind in ("latency", "bandwidth", "slow_close", "timeout", "reset_peer", "slicer", "limit_data"):
            names = say(server.api, "POST", "/proxies/q/toxics", {"type": kind}).body["attributes"]
            changed = say(
                server.api, "POST", f"/proxies/q/toxics/{kind}_downstream", {"attributes": dict.fromkeys(names, size)}
            )
            assert (changed.status, set(changed.body["attributes"].values())) == (200, {size})
            with Client(parse_address(said.body["listen"])) as client:
                client.send(b"ping")
                client.is_silent(0.01)
            assert server.is_well()
            assert say(server.api, "DELETE", f"/proxies/q/toxics/{kind}_downstream").status == 204
        assert say(server.api, "DELETE", "/proxies/q").status == 204


def test_clients_that_read_nothing_hold_up_nobody_else(server: Server) -> None:
    """They are behind a full socket when the proxy is taken down: that must not wait for them."""
    with Upstream() as upstream, contextlib.ExitStack() as stack:
        asked = {"name": "q", "listen": "127.0.0.1:0", "upstream": str(upstream.address)}
        listen = parse_address(say(server.api, "POST", "/proxies", asked).body["listen"])
        for _ in range(5):
            client = stack.enter_context(Client(listen))
            client.socket.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                client.send(bytes(20 << 20))
        assert server.is_well()
        watch = Stopwatch()
        assert say(server.api, "DELETE", "/proxies/q").status == 204
        assert watch.seconds < PATIENCE_S
    assert server.is_well()
