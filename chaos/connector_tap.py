"""An ear on the engine's end of a connection: every message that is sent or heard, and how each connection begins and ends.

Owns what can be known of the other end from its messages alone: credit given and heard, blocks that moved, which loads it may
still write. That is independent of what the connector believes. A `Transport` itself; it changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chaos.connector_account import Account, Sight
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.tcp import TcpTransport

_RESET = ("reset", "broken pipe")
_OF_THE_NETWORK = ("[Errno", "the peer ended the connection", "no connection")  # not a word about what was said on it


@dataclass(slots=True)
class Heard:
    """One transfer on one connection. ``granted``: credit that its sink gave, in bytes. ``moved``: bytes of blocks that its
    source sent, or that came. ``is_over``: nothing more of it can come."""

    opened: m.Open
    asked_s: float
    granted: int = 0
    moved: int = 0
    began_s: float = 0.0
    is_answered: bool = False
    is_over: bool = False


class Tap:
    """See the module."""

    def __init__(self, inner: TcpTransport, who: str, account: Account) -> None:
        self.inner = inner
        self.who = who
        self.account = account
        self.transfers: dict[int, Heard] = {}  # of the present connection
        self.stores: list[bytes] = []  # their identities, in the order in which they welcomed
        self.committed: set[bytes] = set()  # keys of stores that were sent to their END, over all connections
        self.spoken: set[bytes] = set()  # keys of any transfer
        self.own_closes: list[str] = []  # why connections were closed here
        self.said_again: set[int] = set()  # stores that were acknowledged over a later connection than their first
        self._first_told: dict[int, int] = {}
        self._connection: int | None = None
        self.alive_s = 0.0  # when that question of the present connection was asked that was answered last
        self._greeted_s: float | None = None  # while the greeting has no answer

    # ---- Transport --------------------------------------------------------------------------------------------------------

    @property
    def connection(self) -> int | None:
        return self.inner.connection

    @property
    def is_congested(self) -> bool:
        return self.inner.is_congested

    def poll(self) -> None:
        self.inner.poll()
        self._follow()
        if self.inner.is_inside_a_frame:
            self.account.note(self.who, Sight.IN_PIECES)

    def send(self, message: bytes) -> None:
        if self._connection is not None:
            self._say(m.decode(message))
        self.inner.send(message)

    def receive(self) -> Sequence[bytes]:
        found = self.inner.receive()
        for message in found:
            self._hear(m.decode(message))
        return found

    def close(self, reason: str) -> None:
        if self._connection is not None:
            self.own_closes.append(reason)
            self.account.note(self.who, Sight.HUNG_UP, words=reason)
        self._forget()
        self.inner.close(reason)

    def wait(self, timeout_s: float) -> None:
        self.inner.wait(timeout_s)

    # ---- what is known ------------------------------------------------------------------------------------------------------

    def waiting_since(self) -> list[float]:
        """When each question was asked that has no answer yet, the greeting included."""
        greeted = [] if self._greeted_s is None else [self._greeted_s]
        return greeted + [each.asked_s for each in self.transfers.values() if not each.is_answered]

    def may_still_write(self) -> list[int]:
        """Loads with credit whose last word was not heard."""
        return [
            number for number, each in self.transfers.items() if not each.opened.is_store and each.granted and not each.is_over
        ]

    def _follow(self) -> None:
        now = self.inner.connection
        reason = self.inner.last_error
        if now is None:
            self.inner.last_error = ""  # told here; while there is a connection it is why that one will end
        if now == self._connection:
            if now is None and reason:
                self.account.note(self.who, Sight.REFUSED, words=reason)
            return
        if self._connection is not None:
            if not reason.startswith(_OF_THE_NETWORK):
                self.own_closes.append(reason)
            is_reset = any(word in reason.lower() for word in _RESET)
            silent = len(self.waiting_since())
            self.account.note(self.who, Sight.RESET if is_reset else Sight.ENDED, silent, reason)
            self._forget()
        if now is not None:
            self._connection = now
            self._greeted_s = self.account.clock.now()
            self.account.note(self.who, Sight.CONNECTED)

    def _forget(self) -> None:
        self._connection = self._greeted_s = None
        self.alive_s = 0.0
        self.transfers.clear()

    def _say(self, message: m.Message) -> None:
        now = self.account.clock.now()
        match message:
            case m.Open(number):
                assert self._connection is not None  # asked above
                self.transfers.setdefault(number, Heard(message, now))
                self._first_told.setdefault(number, self._connection)
                self.spoken.update(message.keys)
            case m.Credit(number, total) if heard := self.transfers.get(number):
                heard.granted = max(heard.granted, total)
                heard.began_s = heard.began_s or now
            case m.Block(number, _, _, data) if heard := self.transfers.get(number):
                heard.moved += len(data)
                heard.began_s = heard.began_s or now
            case m.End(number) if heard := self.transfers.get(number):
                self.committed.update(heard.opened.keys)

    def _hear(self, message: m.Message) -> None:
        self._greeted_s = None
        if isinstance(message, m.Welcome):
            if message.store not in self.stores:
                self.stores.append(message.store)
                self.account.note(self.who, Sight.WELCOMED, words=message.store.hex()[:8])
            return
        heard = self.transfers.get(getattr(message, "transfer", 0))
        if heard is None:
            return
        now = self.account.clock.now()
        if not heard.is_answered:
            heard.is_answered = True
            self.alive_s = max(self.alive_s, heard.asked_s)
            self.account.note(self.who, Sight.ANSWERED, now - heard.asked_s)
        match message:
            case m.Credit(_, total):
                heard.granted = max(heard.granted, total)
            case m.Block(_, _, _, data):
                heard.moved += len(data)
            case m.Abort(_, reason):
                heard.is_over = True
                self.account.note(self.who, Sight.GIVEN_UP, words=reason)
            case m.End() | m.Refuse() | m.Ack() | m.Aborted():
                heard.is_over = True
        if heard.moved and isinstance(message, m.End | m.Ack):
            pace = heard.moved / max(now - heard.began_s, 1e-6)
            what = Sight.SENT if heard.opened.is_store else Sight.CAME
            self.account.note(self.who, what, pace, f"{heard.moved} bytes")
            if self._first_told[heard.opened.transfer] != self._connection:
                self.said_again.add(heard.opened.transfer)
