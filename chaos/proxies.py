"""Faults on TCP connections as values to hand to a nemesis: proxies, toxics, and the heal of each. Drives Toxiproxy, real or
embedded, through the library `toxiproxy-python` and nothing else.

    with open_proxies(os.environ) as proxies:
        proxy = proxies.create("kv-store", "127.0.0.1:7000")     # clients connect to proxy.listen
        heal = proxy.latency(50, jitter_ms=10)
        ...
        heal()                                                   # may be called again; does nothing then

Owns names of toxics and the translation of the library's errors. Does not decide when a fault fires or what must hold then. The
library keeps the server's address in a class: one process drives one server at a time, and a second is refused.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from chaos.toxiproxy.address import Address, parse_address
from chaos.toxiproxy.choosing import Kind, Served, offered, serving
from engine_under_test.errors import BadInput, ConfigError, ProtocolError, RunnerError

if TYPE_CHECKING:
    from types import TracebackType

    import toxiproxy


_UNUSED = ("127.0.0.1", 8474)  # where the library points until it is told otherwise


class Stream(StrEnum):
    """Which bytes a toxic works on."""

    UPSTREAM = "upstream"  # from the client to the server
    DOWNSTREAM = "downstream"  # from the server to the client


class Heal:
    """Takes one fault back, once; as a context manager, at the end of the block."""

    def __init__(self, fault: str, undo: Any) -> None:
        self.fault = fault
        self._undo = undo

    def __call__(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> Heal:
        return self

    def __exit__(self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self()


class Proxy:
    """Clients connect to ``listen`` and reach ``upstream``. Each fault returns its heal; faults of one stream add up in order.

    ``toxicity``: the probability, 0 to 1, that a connection is affected; the dice fall for each connection and toxic.
    """

    def __init__(self, proxy: toxiproxy.Proxy, owner: Proxies) -> None:
        self.name: str = proxy.name
        self.upstream: str = proxy.upstream
        self.listen: Address = parse_address(proxy.listen)
        self._proxy = proxy
        self._owner = owner
        self._numbers = itertools.count(1)

    def latency(self, ms: int, *, jitter_ms: int = 0, stream: Stream = Stream.DOWNSTREAM, toxicity: float = 1.0) -> Heal:
        """Each piece of data comes ``ms`` ± ``jitter_ms`` later; throughput and order stay."""
        return self._toxic("latency", stream, toxicity, latency=ms, jitter=jitter_ms)

    def bandwidth(self, kb_per_s: int, *, stream: Stream = Stream.DOWNSTREAM, toxicity: float = 1.0) -> Heal:
        """At most that many kilobytes (1000 bytes) per second."""
        return self._toxic("bandwidth", stream, toxicity, rate=kb_per_s)

    def slow_close(self, ms: int, *, stream: Stream = Stream.DOWNSTREAM, toxicity: float = 1.0) -> Heal:
        """The end of a connection comes ``ms`` late."""
        return self._toxic("slow_close", stream, toxicity, delay=ms)

    def timeout(self, ms: int, *, stream: Stream = Stream.DOWNSTREAM, toxicity: float = 1.0) -> Heal:
        """Nothing comes any more, then, unless ``ms`` is 0, the connection closes; healing closes it too."""
        return self._toxic("timeout", stream, toxicity, timeout=ms)

    def reset_peer(self, ms: int = 0, *, stream: Stream = Stream.DOWNSTREAM, toxicity: float = 1.0) -> Heal:
        """A connection opened from now on is reset ``ms`` after its first data; one that is open already is closed."""
        return self._toxic("reset_peer", stream, toxicity, timeout=ms)

    def slicer(
        self,
        average_bytes: int,
        *,
        variation_bytes: int = 0,
        delay_us: int = 0,
        stream: Stream = Stream.DOWNSTREAM,
        toxicity: float = 1.0,
    ) -> Heal:
        """Data comes in small pieces, ``delay_us`` apart."""
        if not 0 <= variation_bytes < average_bytes:
            raise ConfigError(f"a slicer varies by less than its average, found {variation_bytes} of {average_bytes} bytes")
        attributes = {"average_size": average_bytes, "size_variation": variation_bytes, "delay": delay_us}
        return self._toxic("slicer", stream, toxicity, **attributes)

    def limit_data(self, limit_bytes: int, *, stream: Stream = Stream.DOWNSTREAM, toxicity: float = 1.0) -> Heal:
        """A connection closes after that many bytes."""
        return self._toxic("limit_data", stream, toxicity, bytes=limit_bytes)

    def down(self) -> Heal:
        """Connections are closed and new ones refused."""
        with self._owner.speaking():
            self._proxy.disable()
        return Heal(f"down on {self.name}", self._up)

    def toxics(self) -> tuple[str, ...]:
        """Names of the toxics that the server has now."""
        with self._owner.speaking():
            return tuple(self._proxy.toxics())

    def remove(self) -> None:
        """The proxy, its toxics and its connections are gone."""
        from toxiproxy.exceptions import NotFound

        with self._owner.speaking(), contextlib.suppress(NotFound):
            self._proxy.destroy()
        self._owner.forget(self)

    def heal(self) -> None:
        """Up, and no toxics."""
        for name in self.toxics():
            self._remove_toxic(name)
        self._up()

    def _toxic(self, kind: str, stream: Stream, toxicity: float, **attributes: int) -> Heal:
        """The server takes any number; what makes no sense is refused here, before anything is sent."""
        negative = {name: value for name, value in attributes.items() if value < 0}
        if negative or not 0 <= toxicity <= 1:
            raise ConfigError(f"{kind} takes attributes of 0 or more and a toxicity of 0 to 1, found {negative or toxicity}")
        name = f"{kind}_{stream}_{next(self._numbers)}"
        with self._owner.speaking():
            self._proxy.add_toxic(name=name, type=kind, stream=str(stream), toxicity=toxicity, attributes=attributes)
        return Heal(f"{kind} on {self.name}", lambda: self._remove_toxic(name))

    def _remove_toxic(self, name: str) -> None:
        """One that a reset, or the end of its proxy, took first is healed already."""
        from toxiproxy.exceptions import NotFound

        with self._owner.speaking(), contextlib.suppress(NotFound):
            self._proxy.destroy_toxic(name)

    def _up(self) -> None:
        """The library takes a server's refusal for success, so the server is asked again."""
        with self._owner.speaking():
            self._proxy.enable()
            again = self._owner.find(self.name)
        if again is None or not again.enabled:
            raise RunnerError(
                f"proxy {self.name} does not come up at {self.listen} again: is its port taken by another process?"
            )


class Proxies:
    """All proxies of one server. ``kind`` goes into every result."""

    def __init__(self, server: toxiproxy.Toxiproxy, served: Served) -> None:
        self._server = server
        self.served = served
        self._made: dict[str, Proxy] = {}

    @property
    def kind(self) -> Kind:
        return self.served.offer.kind

    def create(self, name: str, upstream: str | Address, *, listen: str | Address = "127.0.0.1:0") -> Proxy:
        """``upstream`` need not be there yet: clients are refused until it is."""
        if not name or "/" in name:
            raise ConfigError(f"a proxy's name is part of a path, so it is not empty and has no '/', found {name!r}")
        with self.speaking():
            try:
                made = self._server.create(upstream=str(upstream), name=name, listen=str(listen))
            except KeyError as error:  # the library reads a refusal as if it were a proxy
                raise RunnerError(
                    f"proxy {name} can not listen on {listen}: is the port taken, or the address not here?"
                ) from error
        self._made[name] = Proxy(made, self)
        return self._made[name]

    def find(self, name: str) -> toxiproxy.Proxy | None:
        return self._server.get_proxy(name)

    def heal_all(self) -> None:
        """Every proxy made here is up and has no toxics. Others of a shared server are left alone."""
        for proxy in self._made.values():
            proxy.heal()

    def remove_all(self) -> None:
        """Those made here, not those that others made on a shared server."""
        for proxy in [*self._made.values()]:
            proxy.remove()

    def forget(self, proxy: Proxy) -> None:
        self._made.pop(proxy.name, None)

    @contextlib.contextmanager
    def speaking(self) -> Iterator[None]:
        """Around every call of the library: to the right server, and its errors in one tree."""
        import requests
        from toxiproxy.api import APIConsumer
        from toxiproxy.exceptions import InvalidToxic, NotFound, ProxyExists

        if (APIConsumer.host, APIConsumer.port) != self.served.address:
            raise ProtocolError(f"the proxies of {self.served.address} are closed, or the library was pointed elsewhere")
        try:
            yield
        except (InvalidToxic, ProxyExists, NotFound) as error:
            raise RunnerError(f"Toxiproxy refused: {_words(error)}") from error
        except requests.RequestException as error:
            raise RunnerError(f"Toxiproxy at {self.served.address} does not answer: {type(error).__name__}") from error


@contextlib.contextmanager
def open_proxies(environ: Mapping[str, str], *, seed: int | None = None) -> Iterator[Proxies]:
    """The best server that ``environ`` offers (`chaos.toxiproxy.choosing`), for this block; then its proxies are removed."""
    try:
        from toxiproxy import Toxiproxy
        from toxiproxy.api import APIConsumer
    except ImportError as error:
        raise BadInput(
            "faults on connections need the extra 'chaos', found that toxiproxy-python is not installed; "
            "say pip install -c constraints.txt -e '.[chaos]'"
        ) from error
    before = (APIConsumer.host, APIConsumer.port)
    if before != _UNUSED:
        raise ProtocolError(f"this process drives the Toxiproxy at {before[0]}:{before[1]} already; close that one first")
    with serving(offered(environ), seed=seed) as served:
        check_reachable(served.address)
        server = Toxiproxy()
        server.update_api_consumer(*served.address)
        proxies = Proxies(server, served)
        try:
            yield proxies
        finally:
            with contextlib.suppress(RunnerError):
                proxies.remove_all()
            server.update_api_consumer(*before)


def check_reachable(address: Address) -> None:
    """The library speaks through `requests`, which obeys the proxy variables of the environment, also for loopback."""
    from requests.utils import get_environ_proxies

    if get_environ_proxies(f"http://{address}"):
        raise BadInput(f"HTTP_PROXY would send requests to {address} elsewhere; put {address.host} into NO_PROXY")


def _words(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace").strip() if isinstance(said, bytes) else str(said)
