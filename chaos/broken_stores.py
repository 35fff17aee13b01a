"""Stores that break the protocol, fall silent or answer nonsense, before an engine of good will: a table of kinds.

Owns the kinds, the socket that speaks for them, and what became of the engine's load. What must hold is said with each kind:
that it costs the store its connection, or the load its blocks, within so many seconds of the engine's clock, and nothing else:
the next connection to a store that is well is welcomed. Never judges (`properties/invariants/peers.py`).
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from chaos.good_engine import GoodEngine
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.frames import FrameReader, FrameWriter
from engine_under_test.distributed.protocol import VERSION, State
from properties.invariants.peers import PeerMoment
from properties.kv_world import HandClock

_BLOCK_BYTES, _NUM_BLOCKS, _WINDOW = 4096, 8, 3  # blocks
_HANDSHAKE_S, _LOAD_S, _GRACE_S = 5.0, 10.0, 5.0  # of the engine
_STEP_S: Final = 1.0  # of the engine's clock
_TURNS, _WAIT_S = 20, 0.001  # before that passes, whatever else the machine does: enough for all that happens at once
_PATIENCE_S: Final = 5.0  # of real time, for what happens at once; waited out only where something is wrong
_RETRY_S: Final = 4.0
_NONSENSE: Final = b"\xc1no message"

Said = m.Message | bytes
Answer = Callable[[m.Message], Sequence[Said]]


class Broken(NamedTuple):
    """``says``: what it answers to a message, behind a greeting like any other's unless it says something there. ``within_s``:
    by when its connection has ended, None: it goes on. ``num_whole``: of the load, which has its answer by then. ``opens``: it
    comes as far as a load, or, if it ``is_stored_to``, a store."""

    name: str
    says: Answer
    within_s: float | None = 0.0
    num_whole: int = 0
    opens: bool = True
    is_stored_to: bool = False


_WELCOME: Final = m.Welcome(b"a broken store's", 64, _BLOCK_BYTES, 60_000)


def _greeting(message: m.Message) -> Sequence[Said]:
    if isinstance(message, m.Hello):
        return (m.Challenge(VERSION, bytes(32)),)
    return (_WELCOME,) if isinstance(message, m.Proof) else ()


def _on_open(*what: Callable[[int], Said], is_store: bool = False) -> Answer:
    """Says this to each load that is opened, or store."""

    def says(message: m.Message) -> Sequence[Said]:
        if isinstance(message, m.Open) and message.is_store is is_store:
            return [each(message.transfer) for each in what]
        return _greeting(message)

    return says


def _on_credit(*what: Callable[[int], Said]) -> Answer:
    """Offers all, and says this to the first credit, which is a window."""

    def says(message: m.Message) -> Sequence[Said]:
        if isinstance(message, m.Credit) and message.total_bytes == _WINDOW * _BLOCK_BYTES:
            return [each(message.transfer) for each in what]
        return _on_open(_offers(_NUM_BLOCKS))(message)

    return says


def _offers(count: int) -> Callable[[int], Said]:
    return lambda transfer: m.Offer(transfer, count, 60_000)


def _block(number: int, *, size: int = _BLOCK_BYTES, digest: bytes = b"") -> Callable[[int], Said]:
    data = GoodEngine.content(number)[:size]
    return lambda transfer: m.Block(transfer, number, digest or m.digest_of(data), data)


def _instead(kind: type[m.Hello] | type[m.Proof], *what: Said) -> Answer:
    """Says this there, and greets otherwise."""
    return lambda message: what if isinstance(message, kind) else _greeting(message)


def _rots(message: m.Message) -> Sequence[Said]:
    """Sends all that is granted; the third block is not what its digest says."""
    if isinstance(message, m.Credit):
        first, last = max(0, message.total_bytes // _BLOCK_BYTES - _WINDOW), message.total_bytes // _BLOCK_BYTES
        blocks = [_block(at, digest=b"x" * 16 if at == 2 else b"")(message.transfer) for at in range(first, last)]
        return [*blocks, m.End(message.transfer, _NUM_BLOCKS)] if last == _NUM_BLOCKS else blocks
    return _on_open(_offers(_NUM_BLOCKS))(message)


KINDS: Final = (
    Broken("says nothing at all", lambda _: (), _HANDSHAKE_S, opens=False),
    Broken("never welcomes", _instead(m.Proof), _HANDSHAKE_S, opens=False),
    Broken("welcomes before the proof", _instead(m.Hello, _WELCOME)),
    Broken("welcomes twice", _instead(m.Proof, _WELCOME, _WELCOME)),
    Broken("ends the greeting with a fault", _instead(m.Proof, m.Fault("no"))),
    Broken("speaks nonsense", _on_open(lambda _: _NONSENSE)),
    Broken("never answers a load", _on_open(), _LOAD_S + _GRACE_S),
    Broken("offers more than was asked for", _on_open(_offers(_NUM_BLOCKS + 1))),
    Broken("offers what nobody asked for", _on_open(lambda _: m.Offer(1 << 40, 1, 60_000))),
    Broken("acknowledges a load", _on_open(lambda transfer: m.Ack(transfer, 1))),
    Broken("sends before there is credit", _on_open(_offers(_NUM_BLOCKS), _block(0))),
    Broken("ends before there is credit", _on_open(_offers(_NUM_BLOCKS), lambda each: m.End(each, _NUM_BLOCKS))),
    Broken("offers, and sends nothing", _on_credit(), _LOAD_S + _GRACE_S),
    Broken("sends a block, and no more", _on_credit(_block(0)), _LOAD_S + _GRACE_S, 1),
    Broken("sends more than there is credit for", _on_credit(*map(_block, range(_NUM_BLOCKS))), num_whole=_WINDOW),
    Broken("sends half a block", _on_credit(_block(0, size=_BLOCK_BYTES // 2))),
    Broken("sends a block that was not offered", _on_credit(_block(_NUM_BLOCKS))),
    Broken("ends with fewer than it offered", _on_credit(_block(0), lambda each: m.End(each, 1)), num_whole=1),
    Broken("ends with more than it offered", _on_credit(_block(0), lambda each: m.End(each, 9)), num_whole=1),
    Broken("never gives credit to a store", _on_open(is_store=True), 30.0 + _GRACE_S, is_stored_to=True),
    Broken("refuses a load", _on_open(lambda each: m.Refuse(each, "no")), None),
    Broken("aborts a load", _on_credit(_block(0), lambda each: m.Abort(each, "no")), None, 1),
    Broken("sends a block whose digest is another's", _rots, None, 2),
)


class _Store:
    """One connection at a time; ``is_ended``: the engine ended the first one. From the second on it greets, and is silent."""

    def __init__(self, kind: Broken) -> None:
        self.is_ended = False
        self._kind = kind
        self._num_accepted = 0
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.setblocking(False)
        host, port = self._listening.getsockname()
        self.address: tuple[str, int] = (str(host), int(port))
        self._socket: socket.socket | None = None

    def look(self) -> None:
        if self._socket is None:
            with contextlib.suppress(BlockingIOError):
                self._socket, _ = self._listening.accept()
                self._socket.setblocking(False)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._reader, self._writer = FrameReader(1 << 20), FrameWriter()
                self._num_accepted += 1
            return
        try:
            data = self._socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.is_ended = True
            self.close_connection()
            return
        self._reader.feed(data)
        while (message := self._reader.next_message()) is not None:
            self._answer(m.decode(message))

    def _answer(self, message: m.Message) -> None:
        assert self._socket is not None  # it was heard on it
        says = self._kind.says if self._num_accepted == 1 else _greeting
        said = [each if isinstance(each, bytes) else m.encode(each) for each in says(message)]
        with contextlib.suppress(OSError):  # the engine was faster
            self._socket.sendall(b"".join(map(self._writer.frame, said)))  # at once: all of it may come in one poll

    def close_connection(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        self.close_connection()
        self._listening.close()


def before_broken_stores() -> Iterator[tuple[str, list[PeerMoment]]]:
    """Each kind's name, and what became of it and of the engine before it."""
    for kind in KINDS:
        store = _Store(kind)
        with contextlib.closing(store):
            yield kind.name, list(_meet(kind, store))


def _meet(kind: Broken, store: _Store) -> Iterator[PeerMoment]:
    clock = HandClock()
    engine = GoodEngine(
        store.address, clock, window_bytes=_WINDOW * _BLOCK_BYTES, handshake_s=_HANDSHAKE_S, load_deadline_s=_LOAD_S,
        store_deadline_s=30.0, abort_grace_s=_GRACE_S,
    )  # fmt: skip
    connector, title = engine.connector, f"a store that {kind.name}"

    def turn() -> None:
        connector.step()
        for hit in connector.take_hits():
            connector.accept(hit.transfer, range(8, 8 + min(hit.num_blocks, _NUM_BLOCKS)))
        store.look()

    def until(is_so: Callable[[], bool], seconds: float) -> bool:
        """Everything happens that does at once; then time passes, up to so many seconds, until it is so."""
        gone = 0.0
        while True:
            ends = time.monotonic() + (_PATIENCE_S if gone >= seconds else 0.0)
            turns = 0
            while not is_so() and (turns < _TURNS or time.monotonic() < ends):
                turn()
                engine.transport.wait(_WAIT_S)
                turns += 1
            if is_so() or gone >= seconds:
                return is_so()
            clock.time += _STEP_S
            gone += _STEP_S

    asked: int | None = None
    if kind.opens:
        until(lambda: connector.session is State.OPEN or store.is_ended, 0.0)
    if connector.session is State.OPEN:
        if kind.is_stored_to:
            connector.store(engine.keys, range(_NUM_BLOCKS))
        else:
            asked = connector.ask("good", engine.keys)
    if kind.within_s is not None:
        is_ended = until(lambda: store.is_ended, kind.within_s + _STEP_S)
        yield PeerMoment(title, fault=f"it {kind.name}, and {kind.within_s:g} s are over", is_ended=is_ended)
    else:
        until(lambda: not connector.transfers, _STEP_S)
        if store.is_ended:
            yield PeerMoment(title, trouble="its connection was ended")
    found = [answer.num_blocks for answer in connector.take_answers()]
    if asked is not None and found != [kind.num_whole]:
        yield PeerMoment(title, trouble=f"its load was answered by {found or 'nothing'}, of which {kind.num_whole} are whole")
    if kind.within_s is not None and not until(lambda: connector.session is State.OPEN, _RETRY_S):
        yield PeerMoment(title, trouble="it does not come to another connection")
    yield PeerMoment(title, trouble="" if connector.session is State.OPEN else "it has no connection")
    engine.transport.close("the end")
