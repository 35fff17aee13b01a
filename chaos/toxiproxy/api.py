"""The HTTP API, version 2, without HTTP: a request value in, a response value out. Owns routes, shapes and status codes.

One request changes the proxies at a time. Shapes and codes follow "HTTP API" in Toxiproxy's README and the API's source.
"""

from __future__ import annotations

import asyncio
import json
import random
import traceback
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

from chaos.toxiproxy.api_error import (
    ApiError,
    bad_body,
    missing,
    no_proxy,
    no_such_stream,
    no_such_type,
    proxy_exists,
)
from chaos.toxiproxy.fields import Fields, json_value
from chaos.toxiproxy.metrics import metrics_text
from chaos.toxiproxy.proxy import STREAMS, Proxy
from chaos.toxiproxy.stage import Toxic, ToxicEntry
from chaos.toxiproxy.toxics import TOXICS

VERSION = "2.9.0+embedded"

_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str
    user_agent: str = ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Response:
    status: HTTPStatus
    body: bytes = b""
    content_type: str = _JSON


_Handler: TypeAlias = Callable[..., Awaitable[Response]]


class Api:
    """All proxies of one server. ``chance`` is behind every jitter, slice and toxicity."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._proxies: dict[str, Proxy] = {}
        self._changing = asyncio.Lock()
        # A route is a path in which * stands for any one name, and the methods that it takes.
        self._routes: dict[tuple[str, ...], dict[str, _Handler]] = {
            ("reset",): {"POST": self._reset},
            ("proxies",): {"GET": self._list, "POST": self._create},
            ("populate",): {"POST": self._populate},
            ("proxies", "*"): {"GET": self._show, "POST": self._update, "PATCH": self._update, "DELETE": self._delete},
            ("proxies", "*", "toxics"): {"GET": self._list_toxics, "POST": self._create_toxic},
            ("proxies", "*", "toxics", "*"): {
                "GET": self._show_toxic,
                "POST": self._update_toxic,
                "PATCH": self._update_toxic,
                "DELETE": self._delete_toxic,
            },
            ("version",): {"GET": self._version},
            ("metrics",): {"GET": self._metrics},
        }

    async def answer(self, request: Request) -> Response:
        """Never raises for anything that a request says."""
        if request.user_agent.startswith("Mozilla/"):  # a page in a browser must not reach this API
            return Response(HTTPStatus.FORBIDDEN, b"User agent not allowed\n", _TEXT)
        route = self._route(request.target)
        if route is None:
            return Response(HTTPStatus.NOT_FOUND, b"404 page not found\n", _TEXT)
        methods, names = route
        if request.method not in methods:
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"", _TEXT)
        return await self._handle(methods[request.method], request, names)

    async def _handle(self, handler: _Handler, request: Request, names: list[str]) -> Response:
        try:
            if request.method == "GET":  # reads at one moment, and must not wait behind a slow name
                return await handler(request, *names)
            async with self._changing:
                return await handler(request, *names)
        except ApiError as error:
            return _json(error.status, {"error": error.message, "status": error.status})
        except Exception as error:  # a mistake in here costs one answer, not the server
            traceback.print_exc()
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            return _json(status, {"error": f"the server failed: {type(error).__name__}", "status": status})

    async def close(self) -> None:
        async with self._changing:
            for proxy in self._proxies.values():
                await proxy.stop()

    def _route(self, target: str) -> tuple[dict[str, _Handler], list[str]] | None:
        try:
            path = unquote(urlsplit(target).path)
        except ValueError:
            return None
        parts = path.removeprefix("/").split("/")
        for pattern, methods in self._routes.items():
            pairs = list(zip(pattern, parts, strict=False))
            if len(pattern) == len(parts) and all(part and want in ("*", part) for want, part in pairs):
                return methods, [part for want, part in pairs if want == "*"]
        return None

    # Proxies.

    async def _list(self, _request: Request) -> Response:
        return _json(HTTPStatus.OK, {name: _proxy_json(proxy) for name, proxy in sorted(self._proxies.items())})

    async def _create(self, request: Request) -> Response:
        given = Fields(json_value(request.body))
        proxy, is_enabled = self._proposed(given, "")
        if proxy.name in self._proxies:
            raise proxy_exists()
        if is_enabled:
            await proxy.start()
        self._proxies[proxy.name] = proxy
        return _json(HTTPStatus.CREATED, _proxy_json(proxy))

    async def _populate(self, request: Request) -> Response:
        """Every entry is read before any is applied; those applied before one fails stay, and are in the answer."""
        applied: list[Proxy] = []
        try:
            given = json_value(request.body)
            if not isinstance(given, list | None):
                raise bad_body("expected a list of proxies")
            proposed = [self._proposed(Fields(entry), f" at proxy {place}") for place, entry in enumerate(given or (), 1)]
            for proxy, is_enabled in proposed:
                applied.append(await self._apply(proxy, is_enabled))
        except ApiError as error:
            body = {"error": error.message, "status": error.status, "proxies": [_proxy_json(proxy) for proxy in applied]}
            return _json(error.status, body)
        return _json(HTTPStatus.CREATED, {"proxies": [_proxy_json(proxy) for proxy in applied]})

    async def _apply(self, proxy: Proxy, is_enabled: bool) -> Proxy:
        """One that is there with the same addresses stays untouched, its toxics and connections too."""
        existing = self._proxies.get(proxy.name)
        if existing is not None:
            if (existing.listen, existing.upstream) == (proxy.listen, proxy.upstream):
                return existing
            await existing.stop()
        if is_enabled:
            await proxy.start()
        self._proxies[proxy.name] = proxy
        return proxy

    async def _show(self, _request: Request, name: str) -> Response:
        return _json(HTTPStatus.OK, _proxy_json(self._proxy(name)))

    async def _update(self, request: Request, name: str) -> Response:
        """New addresses restart the proxy and drop its connections; a name can not be changed."""
        proxy = self._proxy(name)
        given = Fields(json_value(request.body))
        listen, upstream = given.text("listen", proxy.listen), given.text("upstream", proxy.upstream)
        is_enabled = given.truth("enabled", proxy.is_enabled)
        if (listen, upstream) != (proxy.listen, proxy.upstream):
            await proxy.stop()
            proxy.listen, proxy.upstream = listen, upstream
        if is_enabled:
            await proxy.start()
        elif proxy.is_enabled:
            await proxy.stop()
        return _json(HTTPStatus.OK, _proxy_json(proxy))

    async def _delete(self, _request: Request, name: str) -> Response:
        await self._proxy(name).stop()
        del self._proxies[name]
        return Response(HTTPStatus.NO_CONTENT)

    async def _reset(self, _request: Request) -> Response:
        for proxy in self._proxies.values():
            await proxy.start()
            for entry in proxy.toxics:
                await proxy.remove_toxic(entry.name)
        return Response(HTTPStatus.NO_CONTENT)

    def _proxy(self, name: str) -> Proxy:
        if name not in self._proxies:
            raise no_proxy()
        return self._proxies[name]

    def _proposed(self, given: Fields, where: str) -> tuple[Proxy, bool]:
        """A proxy that is not started, and whether it is to be."""
        name, listen, upstream = given.text("name"), given.text("listen"), given.text("upstream")
        is_enabled = given.truth("enabled", True)
        for field, value in (("name", name), ("upstream", upstream)):
            if not value:
                raise missing(f"{field}{where}")
        return Proxy(name, listen, upstream, self._chance), is_enabled

    # Toxics.

    async def _list_toxics(self, _request: Request, name: str) -> Response:
        return _json(HTTPStatus.OK, [_toxic_json(entry) for entry in self._proxy(name).toxics])

    async def _create_toxic(self, request: Request, name: str) -> Response:
        proxy = self._proxy(name)
        given = Fields(json_value(request.body))
        kind, stream = given.text("type"), given.text("stream", STREAMS[1])
        toxicity, toxic_name = given.number("toxicity", 1.0), given.text("name")
        if stream.lower() not in STREAMS:
            raise no_such_stream()
        if kind not in TOXICS:
            raise no_such_type()
        toxic_name = toxic_name or f"{kind}_{stream}"
        proxy.check_is_new(toxic_name)
        toxic = _with_attributes(TOXICS[kind](), given.value("attributes"))
        entry = ToxicEntry(toxic_name, kind, stream, toxicity, toxic)
        proxy.add_toxic(entry)
        return _json(HTTPStatus.OK, _toxic_json(entry))

    async def _show_toxic(self, _request: Request, name: str, toxic: str) -> Response:
        return _json(HTTPStatus.OK, _toxic_json(self._proxy(name).toxic(toxic)))

    async def _update_toxic(self, request: Request, name: str, toxic: str) -> Response:
        """Attributes and toxicity; what is not given stays."""
        proxy = self._proxy(name)
        entry = proxy.toxic(toxic)
        given = Fields(json_value(request.body))
        toxicity = given.number("toxicity", entry.toxicity)
        await proxy.change_toxic(entry, _with_attributes(entry.toxic, given.value("attributes")), toxicity)
        return _json(HTTPStatus.OK, _toxic_json(entry))

    async def _delete_toxic(self, _request: Request, name: str, toxic: str) -> Response:
        await self._proxy(name).remove_toxic(toxic)
        return Response(HTTPStatus.NO_CONTENT)

    # The server.

    async def _version(self, _request: Request) -> Response:
        body = json.dumps({"version": VERSION}).encode() + b"\n"
        return Response(HTTPStatus.OK, body, "application/json;charset=utf-8")

    async def _metrics(self, _request: Request) -> Response:
        return Response(
            HTTPStatus.OK, metrics_text(self._proxies.values()).encode(errors="replace"), "text/plain; version=0.0.4"
        )


def _with_attributes(toxic: Toxic, given: object) -> Toxic:
    values = Fields(given)
    return type(toxic)(**{field.name: values.whole(field.name, getattr(toxic, field.name)) for field in fields(toxic)})


def _proxy_json(proxy: Proxy) -> dict[str, Any]:
    return {
        "name": proxy.name,
        "listen": proxy.listen,
        "upstream": proxy.upstream,
        "enabled": proxy.is_enabled,
        "toxics": [_toxic_json(entry) for entry in proxy.toxics],
    }


def _toxic_json(entry: ToxicEntry) -> dict[str, Any]:
    toxicity = int(entry.toxicity) if entry.toxicity == int(entry.toxicity) else entry.toxicity
    return {
        "attributes": asdict(entry.toxic),
        "name": entry.name,
        "type": entry.type,
        "stream": entry.stream,
        "toxicity": toxicity,
    }


def _json(status: HTTPStatus, value: Mapping[str, Any] | list[Any]) -> Response:
    return Response(status, json.dumps(value).encode())
