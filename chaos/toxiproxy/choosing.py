"""Which Toxiproxy: a real one where one is offered, otherwise the embedded server. Owns the order of preference.

1. ``TOXIPROXY_URL`` names one that runs. 2. `toxiproxy-server` is on the PATH. 3. A Docker engine has an image of it (none is
pulled). 4. The embedded one. What is offered and then does not work is an error, never a reason to take the next: a result
says ``real`` or ``embedded``, and must not change that silently.
"""

from __future__ import annotations

import contextlib
import http.client
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from chaos.toxiproxy.address import Address, parse_address
from chaos.toxiproxy.owner import StartError, child
from engine_under_test.errors import BadInput, RunnerError

URL = "TOXIPROXY_URL"
_DEFAULT_PORT = 8474
_IMAGES = ("ghcr.io/shopify/toxiproxy", "shopify/toxiproxy")
_ANSWER_S = 5.0


class Kind(StrEnum):
    """Carried by every result."""

    EMBEDDED = "embedded"
    REAL = "real"


class Way(StrEnum):
    """Where a server comes from."""

    URL = "url"
    BINARY = "binary"
    IMAGE = "image"
    EMBEDDED = "embedded"


@dataclass(frozen=True, slots=True)
class Offer:
    """``what``: the URL, the path of the binary or the name of the image; empty for the embedded server."""

    way: Way
    what: str = ""

    @property
    def kind(self) -> Kind:
        return Kind.EMBEDDED if self.way is Way.EMBEDDED else Kind.REAL


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers: where its API is."""

    offer: Offer
    address: Address
    version: str


def local_image() -> str | None:
    """The first tag of an image of Toxiproxy that a running Docker engine has; None without docker-py, engine or image."""
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        return None
    try:
        engine = docker.from_env(timeout=_ANSWER_S)
        with contextlib.closing(engine):
            tags = [tag for name in _IMAGES for image in engine.images.list(name=name) for tag in image.tags]
    except (DockerException, OSError):
        return None
    return tags[0] if tags else None


def offered(environ: Mapping[str, str], image: Callable[[], str | None] = local_image) -> Offer:
    """What there is, best first. ``environ``: of the process (`TOXIPROXY_URL`, `PATH`)."""
    if url := environ.get(URL, ""):
        return Offer(Way.URL, url)
    if binary := shutil.which("toxiproxy-server", path=environ.get("PATH", "")):
        return Offer(Way.BINARY, binary)
    if tag := image():
        return Offer(Way.IMAGE, tag)
    return Offer(Way.EMBEDDED)


@contextlib.contextmanager
def serving(offer: Offer, *, seed: int | None = None) -> Iterator[Served]:
    """The server of ``offer``, started if it has to be, and ended with this block or with this process.

    ``seed``: of the embedded server's dice; a real one has its own.
    """
    if offer.way is Way.URL:
        address = _address_in(offer.what)
        yield Served(offer, address, _version_at(address, offer.what))
        return
    if offer.way is Way.EMBEDDED:
        seeded = () if seed is None else ("--seed", str(seed))
        started = child("chaos.toxiproxy.server", "--listen", "127.0.0.1:0", *seeded)
    else:
        started = child("chaos.toxiproxy.keeper", str(offer.way), offer.what)
    with contextlib.ExitStack() as stack:
        try:
            address = parse_address(stack.enter_context(started))
        except StartError as error:
            raise RunnerError(str(error)) from error
        yield Served(offer, address, _version_at(address, str(address)))


def _address_in(url: str) -> Address:
    try:
        parts = urlsplit(url if "//" in url else f"//{url}")
        host, port = parts.hostname, parts.port or _DEFAULT_PORT
    except ValueError:
        host, port, parts = None, 0, urlsplit("")
    if not host or parts.scheme not in ("", "http"):
        raise BadInput(f"{URL} takes http://HOST:PORT, found {url!r}; unset it to use the embedded server")
    return Address(host, port)


def _version_at(address: Address, name: str) -> str:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_ANSWER_S)
    try:
        connection.request("GET", "/version")
        answer = connection.getresponse()
        text = answer.read(1000).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        raise BadInput(f"no Toxiproxy answers at {name} ({error or type(error).__name__}); start it, or unset {URL}") from error
    finally:
        connection.close()
    if answer.status != http.HTTPStatus.OK or "2." not in text:
        raise BadInput(f"{name} is no Toxiproxy with API version 2: /version said {answer.status} {text[:60]!r}")
    return text.strip()
