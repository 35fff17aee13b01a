"""``host:port`` as the API writes it, and the sockets behind it. Owns parsing; an address says what is wrong with it."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from typing import NamedTuple

_RESOLVE_S = 5.0


class AddressError(ValueError):
    """Half a sentence: what is wrong with the address."""


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """``host:port`` or ``[host]:port``; no host means loopback, so that nothing is opened to a network by leaving it out."""
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise AddressError("missing port in address")
    if not (port.isascii() and port.isdigit() and int(port[:6]) <= 65535):
        raise AddressError(f"invalid port {port[:40]!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise AddressError("too many colons in address")
    return Address(host or "127.0.0.1", int(port))


async def listen_on(address: Address) -> socket.socket:
    """A listening socket that does not block; OSError says why there is none."""
    family, where = await _resolve(address)
    try:
        listener = socket.create_server(where, family=family, backlog=512)
    except OverflowError as error:
        raise OSError(str(error)) from error
    listener.setblocking(False)
    return listener


async def connect_to(address: Address) -> socket.socket:
    """A connected socket that does not block and sends at once."""
    family, where = await _resolve(address)
    end = socket.socket(family, socket.SOCK_STREAM)
    try:
        prepare(end)
        await asyncio.get_running_loop().sock_connect(end, where)
    except BaseException:
        end.close()
        raise
    return end


def prepare(end: socket.socket) -> None:
    """No waiting for more bytes: a slice must leave as a packet of its own."""
    end.setblocking(False)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def address_of(listener: socket.socket) -> Address:
    host, port = listener.getsockname()[:2]
    return Address(host, port)


def reason(error: OSError) -> str:
    """In the operating system's words, lower case, without the number."""
    text = error.strerror if isinstance(error, socket.gaierror) or error.errno is None else os.strerror(error.errno)
    return (text or str(error)).lower()


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def _resolve(address: Address) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """IPv4 before IPv6, as ``localhost`` means the former to most who listen. A number never waits behind slow names."""
    loop = asyncio.get_running_loop()
    try:
        if _is_number(address.host):
            found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        else:
            async with asyncio.timeout(_RESOLVE_S):
                found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
    except TimeoutError as error:
        raise OSError(f"nobody knew the host {address.host[:40]!r} within {_RESOLVE_S:.0f} s") from error
    except ValueError as error:  # no name of the domain name system: too long a label, a NUL
        raise OSError(f"no such host {address.host[:40]!r}") from error
    first = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return first[0], (str(first[4][0]), address.port)
