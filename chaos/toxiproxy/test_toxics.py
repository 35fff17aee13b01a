"""Each toxic does what its description says, on real connections, within tolerances that hold for a real Toxiproxy too.

Tolerances: a time is never shorter than asked for by more than `EARLY_S` (clocks tick in milliseconds), and never longer than
`PATIENCE_S`; a rate is never exceeded by more than a fifth; bytes and their order are exact.
"""

from __future__ import annotations

import contextlib
import itertools
import threading

import pytest

from chaos.doubles import PATIENCE_S, Client, Stopwatch, Upstream
from chaos.proxies import Heal, Proxies, Proxy, Stream

EARLY_S = 0.005
_MIXED = bytes(range(256)) * 4


def _took(client: Client, data: bytes = b"ping") -> float:
    watch = Stopwatch()
    assert client.echoes(data)
    return watch.seconds


def test_without_toxics_bytes_pass_unchanged_both_ways(proxy: Proxy) -> None:
    with Client(proxy.listen) as client:
        assert client.echoes(_MIXED * 1000)


@pytest.mark.parametrize("stream", Stream)
def test_latency_delays_each_answer(proxy: Proxy, stream: Stream) -> None:
    with Client(proxy.listen) as client, proxy.latency(60, stream=stream):
        for _ in range(2):
            assert 0.06 - EARLY_S <= _took(client) < PATIENCE_S


def test_latencies_of_both_streams_and_of_two_toxics_add_up(proxy: Proxy) -> None:
    with Client(proxy.listen) as client, proxy.latency(30), proxy.latency(30), proxy.latency(30, stream=Stream.UPSTREAM):
        assert _took(client) >= 0.09 - 3 * EARLY_S


def test_jitter_spreads_the_delay_and_keeps_the_order(proxy: Proxy) -> None:
    """Only jitter makes an answer early: none of 40 below 35 ms would be one in 10^10, some ms of a busy machine aside."""
    with Client(proxy.listen) as client, proxy.latency(40, jitter_ms=39):
        assert 0.001 - EARLY_S <= min(_took(client) for _ in range(40)) < 0.035
        assert client.echoes(_MIXED * 200)


def test_latency_does_not_limit_throughput(proxy: Proxy) -> None:
    """8 MiB are at least 256 chunks; with three of them under way at a time they would take 12 s."""
    with Client(proxy.listen) as client, proxy.latency(150):
        assert _took(client, _MIXED * 8192) < PATIENCE_S


def test_bandwidth_is_not_exceeded(proxy: Proxy) -> None:
    with Client(proxy.listen) as client, proxy.bandwidth(200):
        assert 0.8 * 0.25 <= _took(client, bytes(50_000)) < PATIENCE_S


def test_slow_close_delays_the_end_and_nothing_else(proxy: Proxy) -> None:
    with Client(proxy.listen) as client, proxy.slow_close(100):
        watch = Stopwatch()
        assert client.echoes(b"ping")
        client.send(b"Q")
        assert client.is_ended()
        assert 0.1 - EARLY_S <= watch.seconds < PATIENCE_S


def test_timeout_drops_data_then_closes(proxy: Proxy) -> None:
    with proxy.timeout(80), Client(proxy.listen) as client:
        watch = Stopwatch()
        client.send(b"ping")
        assert client.is_ended()
        assert 0.08 - EARLY_S <= watch.seconds < PATIENCE_S


def test_timeout_of_zero_is_silence_until_healed_which_closes(proxy: Proxy) -> None:
    heal = proxy.timeout(0)
    with Client(proxy.listen) as client:
        client.send(b"ping")
        assert client.is_silent(0.1)
        heal()
        assert client.is_ended()
    with Client(proxy.listen) as client:
        assert client.echoes(b"ping")


@pytest.mark.parametrize("stream", Stream)
@pytest.mark.parametrize("ms", [0, 60])
def test_reset_peer_resets_a_new_connection_after_its_first_data(proxy: Proxy, stream: Stream, ms: int) -> None:
    with proxy.reset_peer(ms, stream=stream), Client(proxy.listen) as client:
        watch = Stopwatch()
        client.send(b"ping")
        with pytest.raises(ConnectionResetError):
            client.receive(4)
        assert ms / 1000 - EARLY_S <= watch.seconds < PATIENCE_S


def test_reset_peer_ends_a_connection_that_is_older_than_it(proxy: Proxy) -> None:
    with Client(proxy.listen) as client:
        assert client.echoes(b"ping")
        with proxy.reset_peer():
            client.send(b"ping")
            assert client.is_ended()


def test_a_reset_that_is_under_way_can_not_be_taken_back(proxy: Proxy) -> None:
    heal = proxy.reset_peer(150)
    with Client(proxy.listen) as client:
        client.send(b"ping")
        assert client.is_silent(0.05)
        heal()
        assert client.is_ended()
    with Client(proxy.listen) as client:
        assert client.echoes(b"ping")


def test_slicer_cuts_data_into_small_pieces_with_pauses(proxy: Proxy) -> None:
    """1024 bytes in pieces of at most 100 + 20 bytes: at least 9 pieces and 8 pauses. A slow reader may see some joined."""
    with Client(proxy.listen) as client, proxy.slicer(100, variation_bytes=20, delay_us=5000):
        watch = Stopwatch()
        client.send(_MIXED)
        pieces = client.pieces(len(_MIXED))
        assert b"".join(pieces) == _MIXED
        assert len(pieces) >= 3
        assert 8 * 0.005 - EARLY_S <= watch.seconds < PATIENCE_S


@pytest.mark.parametrize("limit", [0, 1, 1000])
def test_limit_data_lets_exactly_its_bytes_through_and_closes(proxy: Proxy, limit: int) -> None:
    with proxy.limit_data(limit), Client(proxy.listen) as client:
        client.send(_MIXED * 8)
        assert client.receive(len(_MIXED) * 8) == (_MIXED * 8)[:limit]


@pytest.mark.parametrize("is_open", [False, True], ids=["a new connection", "an open connection"])
def test_limit_data_upstream_counts_what_the_client_sends_from_then_on(proxy: Proxy, upstream: Upstream, is_open: bool) -> None:
    before = b"before" if is_open else b""
    with contextlib.ExitStack() as stack:
        if is_open:
            client = stack.enter_context(Client(proxy.listen))
            assert client.echoes(before)
        stack.enter_context(proxy.limit_data(10, stream=Stream.UPSTREAM))
        if not is_open:
            client = stack.enter_context(Client(proxy.listen))
        client.send(_MIXED)
        with contextlib.suppress(ConnectionError):
            client.receive(100)
    assert bytes(upstream.received) == before + _MIXED[:10]


@pytest.mark.parametrize(("toxicity", "fewest", "most"), [(0.0, 0, 0), (0.5, 1, 39), (1.0, 40, 40)])
def test_toxicity_is_the_share_of_connections_that_are_affected(proxy: Proxy, toxicity: float, fewest: int, most: int) -> None:
    """Half of 40: none, or all, would be two in 10^12."""
    affected = 0
    with proxy.limit_data(1, toxicity=toxicity):
        for _ in range(40):
            with Client(proxy.listen) as client:
                affected += client.ask(b"two") == b"t"
    assert fewest <= affected <= most


def test_down_ends_connections_and_refuses_new_ones_until_healed(proxy: Proxy) -> None:
    with Client(proxy.listen) as client:
        assert client.echoes(b"ping")
        heal = proxy.down()
        assert client.is_ended()
    with pytest.raises(ConnectionRefusedError):
        Client(proxy.listen)
    heal()
    with Client(proxy.listen) as client:
        assert client.echoes(b"ping")


def test_an_upstream_that_is_not_there_costs_the_client_its_connection(proxies: Proxies) -> None:
    nowhere = proxies.create("nowhere", "127.0.0.1:1")
    with Client(nowhere.listen) as client:
        assert client.is_ended()
    nowhere.remove()


def test_no_byte_is_lost_or_moved_while_toxics_come_and_go(proxy: Proxy) -> None:
    """Those that promise to keep bytes, on a connection that never rests."""
    data = bytes(itertools.islice(itertools.cycle(range(251)), 1 << 20))
    is_done = threading.Event()
    echoed: list[bool] = []

    def ask_on(client: Client) -> None:
        while not is_done.is_set() and False not in echoed:
            try:
                echoed.append(client.echoes(data))
            except OSError:  # bytes that never come back end the patience of the client
                echoed.append(False)

    with Client(proxy.listen) as client:
        asking = threading.Thread(target=ask_on, args=(client,), daemon=True)
        asking.start()
        for _ in range(8):
            for heal in _harmless(proxy):
                heal()
        is_done.set()
        asking.join(3 * PATIENCE_S)
        assert not asking.is_alive()
    assert set(echoed) == {True}


def _harmless(proxy: Proxy) -> list[Heal]:
    return [
        proxy.latency(3, jitter_ms=2),
        proxy.slicer(5000, variation_bytes=2000, stream=Stream.UPSTREAM),
        proxy.bandwidth(100_000),
        proxy.slow_close(5),
        proxy.latency(2, stream=Stream.UPSTREAM),
    ]
