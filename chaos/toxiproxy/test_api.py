"""The HTTP API answers with the documented status codes and shapes, whether the server is real or embedded.

Raw requests, because the library that drives everything else can send nothing wrong. Wording is compared only where it is
documented.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from chaos.doubles import PATIENCE_S, Client, Said, Stopwatch, Upstream, say
from chaos.proxies import Proxies
from chaos.toxiproxy.address import Address, parse_address

_LATENCY: dict[str, object] = {"type": "latency", "attributes": {"latency": 5}}


@dataclass(frozen=True, slots=True)
class Api:
    """A server with one proxy `p` that has one toxic `t`."""

    at: Address
    upstream: str

    def say(self, method: str, path: str, body: object = None, **headers: str) -> Said:
        return say(self.at, method, path, body, **headers)


@pytest.fixture
def api(proxies: Proxies, upstream: Upstream) -> Iterator[Api]:
    api = Api(proxies.served.address, str(upstream.address))
    assert api.say("POST", "/proxies", {"name": "p", "listen": "127.0.0.1:0", "upstream": api.upstream}).status == 201
    assert api.say("POST", "/proxies/p/toxics", {**_LATENCY, "name": "t"}).status == 200
    yield api
    for name in ("p", "q"):
        api.say("DELETE", f"/proxies/{name}")


_REFUSED: list[tuple[str, str, str, object, int, str]] = [
    ("a proxy that is not JSON", "POST", "/proxies", b"{", 400, "bad request body"),
    ("a proxy without a body", "POST", "/proxies", b"", 400, "bad request body"),
    ("a proxy that is a list", "POST", "/proxies", b"[]", 400, "bad request body"),
    ("a proxy whose name is a number", "POST", "/proxies", {"name": 1, "upstream": "x:1"}, 400, "bad request body"),
    ("a proxy without a name", "POST", "/proxies", {"upstream": "x:1"}, 400, "missing required field: name"),
    ("a proxy without an upstream", "POST", "/proxies", {"name": "q"}, 400, "missing required field: upstream"),
    ("a proxy with a name that is taken", "POST", "/proxies", {"name": "p", "upstream": "x:1"}, 409, "proxy already exists"),
    (
        "a proxy on an address without a port",
        "POST",
        "/proxies",
        {"name": "q", "upstream": "x:1", "listen": "x"},
        500,
        "listen",
    ),
    ("showing a proxy that is not there", "GET", "/proxies/q", None, 404, "proxy not found"),
    ("changing a proxy that is not there", "POST", "/proxies/q", {}, 404, "proxy not found"),
    ("changing a proxy by no JSON", "POST", "/proxies/p", b"}", 400, "bad request body"),
    ("enabling by a word", "POST", "/proxies/p", {"enabled": "yes"}, 400, "bad request body"),
    ("deleting a proxy that is not there", "DELETE", "/proxies/q", None, 404, "proxy not found"),
    ("toxics of a proxy that is not there", "GET", "/proxies/q/toxics", None, 404, "proxy not found"),
    ("a toxic on a proxy that is not there", "POST", "/proxies/q/toxics", _LATENCY, 404, "proxy not found"),
    ("a toxic that is not JSON", "POST", "/proxies/p/toxics", b"latency", 400, "bad request body"),
    ("a toxic of no type", "POST", "/proxies/p/toxics", {}, 400, "invalid toxic type"),
    ("a toxic of an unknown type", "POST", "/proxies/p/toxics", {"type": "plague"}, 400, "invalid toxic type"),
    (
        "a toxic on an unknown stream",
        "POST",
        "/proxies/p/toxics",
        {"type": "latency", "stream": "s"},
        400,
        "stream was invalid",
    ),
    ("a toxic with a name that is taken", "POST", "/proxies/p/toxics", {**_LATENCY, "name": "t"}, 409, "toxic already exists"),
    (
        "a latency in words",
        "POST",
        "/proxies/p/toxics",
        {"type": "latency", "attributes": {"latency": "1s"}},
        400,
        "bad request",
    ),
    (
        "half a millisecond",
        "POST",
        "/proxies/p/toxics",
        {"type": "latency", "attributes": {"latency": 0.5}},
        400,
        "bad request",
    ),
    ("toxicity in words", "POST", "/proxies/p/toxics", {**_LATENCY, "toxicity": "often"}, 400, "bad request"),
    ("showing a toxic that is not there", "GET", "/proxies/p/toxics/u", None, 404, "toxic not found"),
    ("changing a toxic that is not there", "POST", "/proxies/p/toxics/u", {}, 404, "toxic not found"),
    ("changing a toxic by no JSON", "POST", "/proxies/p/toxics/t", b"", 400, "bad request body"),
    ("deleting a toxic that is not there", "DELETE", "/proxies/p/toxics/u", None, 404, "toxic not found"),
    ("populating by no JSON", "POST", "/populate", b"[", 400, "bad request body"),
    ("populating by an object", "POST", "/populate", {}, 400, "bad request body"),
    ("populating without a name", "POST", "/populate", [{"upstream": "x:1"}], 400, "missing required field: name at proxy 1"),
]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "sentence"), [row[1:] for row in _REFUSED], ids=[row[0] for row in _REFUSED]
)
def test_what_is_wrong_is_refused_with_its_status_and_changes_nothing(
    api: Api, method: str, path: str, body: object, status: int, sentence: str
) -> None:
    before = api.say("GET", "/proxies")
    said = api.say(method, path, body)
    assert said.status == status
    assert said.body["status"] == status
    assert sentence in said.body["error"]
    assert api.say("GET", "/proxies") == before


def test_a_proxy_is_created_with_its_real_address(api: Api) -> None:
    said = api.say("POST", "/proxies", {"name": "q", "listen": "127.0.0.1:0", "upstream": api.upstream})
    assert said.status == 201
    assert re.fullmatch(r"127\.0\.0\.1:[1-9]\d*", said.body["listen"])
    shape = {key: said.body[key] for key in ("name", "upstream", "enabled", "toxics")}
    assert shape == {"name": "q", "upstream": api.upstream, "enabled": True, "toxics": []}
    assert api.say("GET", "/proxies/q") == (200, said.body)
    with Client(parse_address(said.body["listen"])) as client:
        assert client.echoes(b"ping")


def test_a_proxy_without_a_listening_address_gets_one(api: Api) -> None:
    said = api.say("POST", "/proxies", {"name": "q", "upstream": api.upstream})
    assert said.status == 201
    with Client(Address("127.0.0.1", parse_address(said.body["listen"]).port)) as client:
        assert client.echoes(b"ping")


def test_a_port_in_use_is_the_servers_failure_and_leaves_no_proxy(api: Api) -> None:
    said = api.say("POST", "/proxies", {"name": "q", "listen": api.upstream, "upstream": api.upstream})
    assert (said.status, said.body["status"]) == (500, 500)
    assert "address already in use" in said.body["error"]
    assert api.say("GET", "/proxies/q").status == 404


def test_a_proxy_created_disabled_listens_once_enabled(api: Api) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    asked = {"name": "q", "listen": listen, "upstream": api.upstream, "enabled": False}
    assert api.say("POST", "/proxies", asked).body["enabled"] is False
    with pytest.raises(ConnectionRefusedError):
        Client(parse_address(listen))
    said = api.say("POST", "/proxies/q", {"enabled": True})
    assert (said.status, said.body["enabled"], said.body["listen"]) == (200, True, listen)
    with Client(parse_address(listen)) as client:
        assert client.echoes(b"ping")


def test_a_new_upstream_drops_connections_and_reaches_the_new_place(api: Api) -> None:
    listen = parse_address(api.say("GET", "/proxies/p").body["listen"])
    with Upstream() as other, Client(listen) as client:
        assert client.echoes(b"ping")
        said = api.say("POST", "/proxies/p", {"upstream": str(other.address)})
        assert (said.status, said.body["upstream"], said.body["listen"]) == (200, str(other.address), str(listen))
        assert client.is_ended()
        with Client(listen) as again:
            assert again.echoes(b"pong")
        assert bytes(other.received) == b"pong"


def test_a_name_can_not_be_changed(api: Api) -> None:
    assert api.say("POST", "/proxies/p", {"name": "q"}).body["name"] == "p"
    assert api.say("GET", "/proxies/q").status == 404


def test_deleting_a_proxy_answers_nothing_and_closes_its_connections(api: Api) -> None:
    listen = parse_address(api.say("GET", "/proxies/p").body["listen"])
    with Client(listen) as client:
        assert client.echoes(b"ping")
        assert api.say("DELETE", "/proxies/p") == (204, "")
        assert client.is_ended()
    with pytest.raises(ConnectionRefusedError):
        Client(listen)


def test_a_toxic_has_defaults(api: Api) -> None:
    said = api.say("POST", "/proxies/p/toxics", {"type": "bandwidth"})
    assert said == (
        200,
        {"name": "bandwidth_downstream", "type": "bandwidth", "stream": "downstream", "toxicity": 1, "attributes": {"rate": 0}},
    )
    assert api.say("GET", "/proxies/p/toxics/bandwidth_downstream") == said


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("latency", {"latency": 10, "jitter": 5}),
        ("bandwidth", {"rate": 100}),
        ("slow_close", {"delay": 10}),
        ("timeout", {"timeout": 10}),
        ("reset_peer", {"timeout": 10}),
        ("slicer", {"average_size": 10, "size_variation": 2, "delay": 3}),
        ("limit_data", {"bytes": 10}),
    ],
)
def test_each_type_of_toxic_keeps_its_attributes(api: Api, kind: str, attributes: dict[str, int]) -> None:
    said = api.say("POST", "/proxies/p/toxics", {"type": kind, "stream": "upstream", "toxicity": 0.5, "attributes": attributes})
    assert said.status == 200
    assert said.body == {
        "name": f"{kind}_upstream",
        "type": kind,
        "stream": "upstream",
        "toxicity": 0.5,
        "attributes": attributes,
    }


def test_unknown_fields_are_ignored_and_names_may_be_in_any_case(api: Api) -> None:
    said = api.say("POST", "/proxies/p/toxics", {"TYPE": "latency", "Attributes": {"LATENCY": 7, "luck": 1}, "mood": None})
    assert (said.status, said.body["attributes"]["latency"]) == (200, 7)


def test_changing_a_toxic_keeps_what_is_not_given(api: Api) -> None:
    said = api.say("POST", "/proxies/p/toxics/t", {"attributes": {"jitter": 2}, "toxicity": 0.25})
    assert (said.status, said.body["attributes"]) == (200, {"latency": 5, "jitter": 2})
    assert (said.body["name"], said.body["toxicity"]) == ("t", 0.25)
    assert api.say("POST", "/proxies/p/toxics/t", {}).body == said.body


def test_a_changed_toxic_is_felt_by_a_connection_that_is_open(api: Api) -> None:
    with Client(parse_address(api.say("GET", "/proxies/p").body["listen"])) as client:
        assert client.echoes(b"ping")
        api.say("POST", "/proxies/p/toxics/t", {"attributes": {"latency": 80}})
        watch = Stopwatch()
        assert client.echoes(b"ping")
        assert 0.075 <= watch.seconds < PATIENCE_S
        api.say("POST", "/proxies/p/toxics/t", {"toxicity": 0})
        watch = Stopwatch()
        assert [client.echoes(b"ping") for _ in range(50)] == [True] * 50
        assert watch.seconds < 50 * 0.08


def test_toxics_are_listed_alone_and_with_their_proxy_those_upstream_first(api: Api) -> None:
    api.say("POST", "/proxies/p/toxics", {**_LATENCY, "name": "u", "stream": "upstream"})
    said = api.say("GET", "/proxies/p/toxics")
    assert (said.status, [toxic["name"] for toxic in said.body]) == (200, ["u", "t"])
    assert api.say("GET", "/proxies").body["p"]["toxics"] == said.body


def test_deleting_a_toxic_answers_nothing(api: Api) -> None:
    assert api.say("DELETE", "/proxies/p/toxics/t") == (204, "")
    assert api.say("GET", "/proxies/p/toxics") == (200, [])


def test_reset_enables_every_proxy_and_removes_every_toxic(api: Api) -> None:
    api.say("POST", "/proxies/p", {"enabled": False})
    assert api.say("POST", "/reset") == (204, "")
    said = api.say("GET", "/proxies/p").body
    assert (said["enabled"], said["toxics"]) == (True, [])


def test_populate_creates_what_is_new_and_leaves_alone_what_is_there(api: Api) -> None:
    there = api.say("GET", "/proxies/p").body
    same = {key: there[key] for key in ("name", "listen", "upstream")}
    new = {"name": "q", "listen": "127.0.0.1:0", "upstream": api.upstream}
    with Client(parse_address(there["listen"])) as client:
        assert client.echoes(b"ping")
        said = api.say("POST", "/populate", [same, new])
        assert (said.status, [proxy["name"] for proxy in said.body["proxies"]]) == (201, ["p", "q"])
        assert client.echoes(b"ping")
    assert said.body["proxies"][0]["toxics"] == there["toxics"]


def test_populate_replaces_a_proxy_whose_addresses_differ(api: Api) -> None:
    with Upstream() as other:
        listen = api.say("GET", "/proxies/p").body["listen"]
        said = api.say("POST", "/populate", [{"name": "p", "listen": listen, "upstream": str(other.address)}])
        assert (said.status, said.body["proxies"][0]["upstream"]) == (201, str(other.address))
        assert said.body["proxies"][0]["toxics"] == []


def test_populate_reads_all_before_it_applies_any(api: Api) -> None:
    said = api.say("POST", "/populate", [{"name": "q", "upstream": "x:1", "listen": "127.0.0.1:0"}, {"name": "r"}])
    assert (said.status, said.body["error"]) == (400, "missing required field: upstream at proxy 2")
    assert not said.body.get("proxies")
    assert api.say("GET", "/proxies/q").status == 404


def test_version_is_2(api: Api) -> None:
    said = api.say("GET", "/version")
    assert said.status == 200
    assert said.body["version"].startswith("2.")


def test_metrics_count_bytes_by_proxy_and_direction(api: Api) -> None:
    listen = parse_address(api.say("GET", "/proxies/p").body["listen"])
    with Client(listen) as client:
        assert client.echoes(b"four")
        client.send(b"Q")
        assert client.is_ended()
    if api.say("GET", "/metrics").status == 404:
        pytest.skip("this server was started without -proxy-metrics")
    labels = f'listener="{listen}",proxy="p",upstream="{api.upstream}"'
    expected = {
        f'toxiproxy_proxy_{what}_bytes_total{{direction="{stream}",{labels}}} {num_bytes}'
        for what in ("received", "sent")
        for stream, num_bytes in (("upstream", 5), ("downstream", 4))
    }
    watch = Stopwatch()
    while missing := expected - set(api.say("GET", "/metrics").body.splitlines()):  # a server may count at a link's end
        assert watch.seconds < PATIENCE_S, missing


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/toxics", 404),
        ("GET", "/proxies/p/toxics/t/u", 404),
        ("DELETE", "/proxies", 405),
        ("GET", "/reset", 405),
        ("PUT", "/proxies/p", 405),
        ("POST", "/version", 405),
    ],
)
def test_other_paths_and_methods_are_not_there(api: Api, method: str, path: str, status: int) -> None:
    assert api.say(method, path).status == status


def test_a_page_in_a_browser_is_turned_away(api: Api) -> None:
    assert api.say("GET", "/proxies", None, **{"User-Agent": "Mozilla/5.0"}).status == 403


def test_names_are_read_from_the_path_as_they_were_given(api: Api) -> None:
    name = 'ä "quoted" %41'
    asked = {"name": name, "listen": "127.0.0.1:0", "upstream": api.upstream}
    assert api.say("POST", "/proxies", asked).body["name"] == name
    assert api.say("GET", "/proxies/%C3%A4%20%22quoted%22%20%2541").body["name"] == name
    assert api.say("DELETE", "/proxies/%C3%A4%20%22quoted%22%20%2541").status == 204
    json.dumps(api.say("GET", "/proxies").body)


def test_two_requests_may_share_a_connection(api: Api) -> None:
    request = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    with Client(api.at) as client:
        client.send(request + request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        assert client.receive(10_000).count(b"HTTP/1.1 200") == 2
