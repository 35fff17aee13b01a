"""HTTP/1.1 for the API: requests off a connection, responses onto it. Owns every limit on a peer; knows no routes.

A broken, slow or greedy peer loses its own connection and costs nobody else anything: a request has `READ_S` seconds and
`BODY_BYTES` bytes, a response `READ_S` seconds to be fetched, and at most `CONNECTIONS` wait at a time: the newcomer takes the
place of whoever has waited longest without asking anything. The parser is h11.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import TypeAlias

import h11

from chaos.toxiproxy.api import Request, Response

READ_S = 15.0
IDLE_S = 60.0
BODY_BYTES = 1 << 20
HEAD_BYTES = 16 * 1024
CONNECTIONS = 256

_Answer: TypeAlias = Callable[[Request], Awaitable[Response]]


class Doors:
    """``converse`` is what `asyncio.start_server` calls for each connection."""

    def __init__(self, answer: _Answer) -> None:
        self._answer = answer
        self._waiting: dict[asyncio.StreamWriter, None] = {}  # in the order in which they began to wait

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._waiting) >= CONNECTIONS:
            longest = next(iter(self._waiting))
            del self._waiting[longest]
            longest.transport.abort()
        try:
            await self._requests(reader, writer)
        except (OSError, TimeoutError):
            writer.transport.abort()
        finally:
            self._waiting.pop(writer, None)
            writer.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        parser = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        patience_s = READ_S
        while True:
            self._waiting[writer] = None
            try:
                async with asyncio.timeout(patience_s):
                    request = await _next_request(parser, reader, writer)
            except h11.RemoteProtocolError as error:
                await _send(parser, writer, _refusal(HTTPStatus(error.error_status_hint), str(error)))
                return
            self._waiting.pop(writer, None)
            if request is None:
                return
            await _send(parser, writer, await self._answer(request))
            if parser.our_state is not h11.DONE or parser.their_state is not h11.DONE:
                return
            parser.start_next_cycle()
            patience_s = IDLE_S


async def _next_request(parser: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
    """None when the peer has said goodbye between two requests."""
    head: h11.Request | None = None
    body = bytearray()
    while True:
        event = parser.next_event()
        if event is h11.NEED_DATA:
            if parser.they_are_waiting_for_100_continue:
                writer.write(parser.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
            parser.receive_data(await reader.read(64 * 1024))
        elif isinstance(event, h11.Request):
            head = event
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > BODY_BYTES:
                raise h11.RemoteProtocolError(f"a body may have {BODY_BYTES} bytes", error_status_hint=413)
        elif isinstance(event, h11.EndOfMessage) and head is not None:
            agent = next((value for name, value in head.headers if name == b"user-agent"), b"")
            return Request(head.method.decode("ascii"), head.target.decode("ascii"), agent.decode("latin-1"), bytes(body))
        else:
            return None


def _refusal(status: HTTPStatus, why: str) -> Response:
    return Response(status, f"{status.value} {status.phrase}: {why}\n".encode(), "text/plain; charset=utf-8")


async def _send(parser: h11.Connection, writer: asyncio.StreamWriter, response: Response) -> None:
    if parser.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return
    headers = [("Content-Type", response.content_type)] if response.body else []
    if response.status is not HTTPStatus.NO_CONTENT:
        headers.append(("Content-Length", str(len(response.body))))
    with contextlib.suppress(h11.LocalProtocolError):
        begin = h11.Response(status_code=response.status, headers=headers, reason=response.status.phrase)
        writer.write(parser.send(begin) or b"")
        writer.write(parser.send(h11.Data(data=response.body)) or b"")
        writer.write(parser.send(h11.EndOfMessage()) or b"")
    async with asyncio.timeout(READ_S):
        await writer.drain()
