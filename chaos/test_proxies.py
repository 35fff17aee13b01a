"""The facade: heals, names, and errors in one tree. What the toxics do is tested in `chaos/toxiproxy/test_toxics.py`."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from chaos.doubles import Client, Upstream
from chaos.proxies import Proxies, Proxy, Stream, check_reachable, open_proxies
from chaos.toxiproxy.choosing import Kind
from engine_under_test.errors import BadInput, ConfigError, ProtocolError, RunnerError


def test_results_say_what_kind_of_server_made_them(proxies: Proxies) -> None:
    assert proxies.kind in (Kind.EMBEDDED, Kind.REAL)
    assert ("embedded" in proxies.served.version) == (proxies.kind is Kind.EMBEDDED)


def test_a_heal_takes_its_own_fault_back_and_only_once(proxy: Proxy) -> None:
    first, second = proxy.latency(1), proxy.latency(1)
    first()
    first()
    assert proxy.toxics() == ("latency_downstream_2",)
    second()
    assert proxy.toxics() == ()


def test_a_heal_that_was_used_does_not_heal_a_later_fault(proxy: Proxy) -> None:
    first = proxy.down()
    first()
    second = proxy.down()
    first()
    with pytest.raises(ConnectionRefusedError):
        Client(proxy.listen)
    second()


def test_a_heal_after_a_general_heal_is_no_error(proxies: Proxies, proxy: Proxy) -> None:
    latency, down = proxy.latency(1, stream=Stream.UPSTREAM), proxy.down()
    proxies.heal_all()
    latency()
    down()
    with Client(proxy.listen) as client:
        assert client.echoes(b"ping")


def test_a_proxy_that_can_not_come_up_again_says_so(proxy: Proxy) -> None:
    heal = proxy.down()
    with socket.create_server(proxy.listen), pytest.raises(RunnerError, match="does not come up"):
        heal()


def test_a_port_that_is_taken_is_a_sentence(proxies: Proxies, upstream: Upstream) -> None:
    with pytest.raises(RunnerError, match="is the port taken"):
        proxies.create("second", upstream.address, listen=upstream.address)


def test_a_name_that_is_taken_is_a_sentence(proxies: Proxies, proxy: Proxy) -> None:
    with pytest.raises(RunnerError, match="already exists"):
        proxies.create(proxy.name, proxy.upstream)


@pytest.mark.parametrize("name", ["", "a/b"], ids=["empty", "with a slash"])
def test_a_name_that_makes_no_path_is_refused(proxies: Proxies, name: str) -> None:
    with pytest.raises(ConfigError):
        proxies.create(name, "127.0.0.1:1")


def test_attributes_that_make_no_sense_are_refused_before_anything_is_sent(proxy: Proxy) -> None:
    with pytest.raises(ConfigError):
        proxy.latency(-1)
    with pytest.raises(ConfigError):
        proxy.latency(1, toxicity=1.5)
    with pytest.raises(ConfigError):
        proxy.slicer(10, variation_bytes=10)
    assert proxy.toxics() == ()


def test_faults_on_a_removed_proxy_are_a_sentence(proxies: Proxies, upstream: Upstream) -> None:
    gone = proxies.create("gone", upstream.address)
    heal = gone.latency(1)
    gone.remove()
    heal()
    with pytest.raises(RunnerError, match="proxy not found"):
        gone.latency(1)


def test_without_the_library_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toxiproxy", None)
    with pytest.raises(BadInput, match=r"extra 'chaos'.*say pip install"), open_proxies({}):
        pass


def test_http_proxies_of_the_environment_are_refused_unless_loopback_is_exempt(
    proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://192.0.2.1:3128")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadInput, match="NO_PROXY"):
        check_reachable(proxies.served.address)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    check_reachable(proxies.served.address)


def test_a_second_server_in_one_process_is_refused(proxies: Proxies) -> None:
    with pytest.raises(ProtocolError, match="already"), open_proxies(os.environ):
        pass
    assert proxies.create("still-here", "127.0.0.1:1").toxics() == ()
