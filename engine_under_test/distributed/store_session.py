"""The store's end of one connection: whole messages in, whole messages out. No sockets; the clock is handed in.

Owns the states of this connection's session and transfers, what a client has staged, and the leases of what it reads. Content
becomes visible in the pool at END of a store and not before. Everything a peer can do wrong raises ProtocolError: the caller
then closes the connection, and `close` gives back whatever it held.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.protocol import SESSION_KINDS, VERSION, Kind, Machine, State, Way, following
from engine_under_test.distributed.store_pool import StoredBlock, StorePool
from engine_under_test.errors import ConfigError, ProtocolError
from engine_under_test.seams import Clock

_CLOSED_REMEMBERED: Final = 1024
MOST_LEASE_S: Final = 86_400.0  # a transfer that stands still for a day is none


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """``window_bytes``: what one transfer may have under way to the store. ``max_staged_bytes``: what a connection may have
    sent of stores that are not complete. ``lease_s``: how long a transfer may stand still. ``abort_grace_s``: how long an
    ABORT may go unanswered before the connection is closed."""

    max_blocks: int = 1024
    max_block_bytes: int = 4 << 20
    max_transfers: int = 64
    window_bytes: int = 8 << 20
    max_staged_bytes: int = 64 << 20
    lease_s: float = 30.0
    abort_grace_s: float = 10.0
    completed_remembered: int = 4096

    def __post_init__(self) -> None:
        if not 1 <= self.max_blocks <= m.MAX_KEYS:
            raise ConfigError(f"max_blocks of a transfer must be 1 to {m.MAX_KEYS}, found {self.max_blocks}; lower it")
        if not 1 <= self.max_block_bytes <= m.MAX_BLOCK_BYTES:
            raise ConfigError(f"max_block_bytes must be 1 to {m.MAX_BLOCK_BYTES}, found {self.max_block_bytes}; lower it")
        for name, seconds in (("lease_s", self.lease_s), ("abort_grace_s", self.abort_grace_s)):
            if not 0 < seconds <= MOST_LEASE_S:  # no number is in no range
                raise ConfigError(
                    f"{name} must be more than 0 and at most {MOST_LEASE_S:g} seconds, found {seconds}; correct it"
                )
        if self.window_bytes < self.max_block_bytes or self.max_staged_bytes < self.max_block_bytes:
            raise ConfigError(
                f"window_bytes and max_staged_bytes must hold a block of max_block_bytes ({self.max_block_bytes}), found "
                f"{self.window_bytes} and {self.max_staged_bytes}; raise them, or lower max_block_bytes"
            )


class StoreShelf:
    """What the connections of one store share: the pool, and which stores are complete (for repeated transfers)."""

    def __init__(self, pool: StorePool, identity: bytes, limits: StoreLimits, token: bytes = b"") -> None:
        self.pool = pool
        self.identity = identity
        self.limits = limits
        self.token = token
        self._completed: OrderedDict[tuple[bytes, int, int], tuple[tuple[bytes, ...], int]] = OrderedDict()

    def remember(self, identifier: tuple[bytes, int, int], keys: tuple[bytes, ...], num_blocks: int) -> None:
        self._completed[identifier] = (keys, num_blocks)
        while len(self._completed) > self.limits.completed_remembered:
            self._completed.popitem(last=False)

    def completed(self, identifier: tuple[bytes, int, int]) -> tuple[tuple[bytes, ...], int] | None:
        return self._completed.get(identifier)


def proof_of(token: bytes, nonce: bytes, client: bytes, generation: int) -> bytes:
    """HMAC-SHA256 (RFC 2104) over what the two ends have said: only who has the token can make it, for this connection."""
    return hmac.digest(token, b"assay kv-store 1" + nonce + client + generation.to_bytes(8, "big"), "sha256")


@dataclass(slots=True, eq=False)
class StoreTransfer:
    """One transfer as the store knows it. Bytes are those of blocks, counted since it began."""

    machine: Machine
    opened: m.Open
    state: State
    lease_ends: float
    pinned: tuple[bytes, ...] = ()
    num_blocks: int = 0
    next_index: int = 0  # of a load: the block to be sent next
    granted: int = 0
    moved: int = 0
    staged: dict[int, StoredBlock] = field(default_factory=dict)


class StoreSession:
    """See the module. ``receive`` whole messages; fetch with ``next_message`` what is to be sent, as the peer takes it."""

    def __init__(self, shelf: StoreShelf, clock: Clock, nonce: bytes) -> None:
        self.state = State.NEW
        self.transfers: dict[int, StoreTransfer] = {}
        self._shelf = shelf
        self._clock = clock
        self._nonce = nonce
        self._hello = m.Hello(0, bytes(16), 0)
        self._closed: OrderedDict[int, Machine] = OrderedDict()
        self._replies: deque[m.Message] = deque()
        self._moving: deque[StoreTransfer] = deque()  # loads with blocks to send, whose turn it is first
        self._staged_bytes = 0

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def staged_bytes(self) -> int:
        """Promised to stores that are not complete: at most `max_staged_bytes`."""
        return self._staged_bytes

    # ---- in ---------------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Raises ProtocolError if the peer said what it may not say; the session is of no use then."""
        message = m.decode(data)
        kind = m.kind_of(message)
        if kind in SESSION_KINDS:
            self.state = following(Machine.STORE_SESSION, self.state, Way.THEIRS, kind)
            self._greet(message)
            return
        if self.state is not State.OPEN:
            raise ProtocolError(f"{kind.name} may not be received by a session that is {self.state.value}; greet first")
        self._receive_for_transfer(kind, message)

    def _greet(self, message: m.Message) -> None:
        if isinstance(message, m.Hello):
            if message.version != VERSION:
                raise ProtocolError(
                    f"this store speaks version {VERSION} of the protocol, found {message.version}; use the same"
                )
            self._hello = message
            self._say(m.Challenge(VERSION, self._nonce))
        elif isinstance(message, m.Proof):
            shelf, limits = self._shelf, self._shelf.limits
            due = proof_of(shelf.token, self._nonce, self._hello.client, self._hello.generation)
            if shelf.token and not hmac.compare_digest(due, message.mac):
                raise ProtocolError("the proof is not that of this store's token; start the engine with the same token")
            self._say(m.Welcome(shelf.identity, limits.max_blocks, limits.max_block_bytes, _ms(limits.lease_s)))

    def _receive_for_transfer(self, kind: Kind, message: Any) -> None:
        number = message.transfer
        transfer = self.transfers.get(number)
        if transfer is not None:
            state, machine = transfer.state, transfer.machine
        elif number in self._closed:
            state, machine = State.CLOSED, self._closed[number]
        else:
            state, machine = State.IDLE, _machine_for(message)
        then = following(machine, state, Way.THEIRS, kind)
        if kind is Kind.ABORT:
            self._say(m.Aborted(number))
        if transfer is None:
            if state is State.IDLE:  # so that it is an OPEN
                self._open(message)
            return
        was, transfer.state = transfer.state, then
        if was is not State.ABORTING:
            _HANDLERS[kind](self, transfer, message)
        if transfer.state is State.CLOSED:
            self._forget(transfer)

    def _open(self, message: m.Open) -> None:
        """A transfer begins, or is answered at once: refused, or acknowledged because it is complete already."""
        machine = _machine_for(message)
        transfer = StoreTransfer(machine, message, State.ASKED, self._clock.now() + self._shelf.limits.lease_s)
        self.transfers[message.transfer] = transfer
        done = self._shelf.completed(self._identifier(message.transfer)) if message.is_store else None
        if done is not None and done[0] == message.keys:
            self._answer(transfer, m.Ack(message.transfer, done[1]))
        elif refusal := self._refusal(message):
            self._answer(transfer, m.Refuse(message.transfer, refusal))
        elif message.is_store:
            self._staged_bytes += _staging(message)
            self._grant(transfer)
        else:
            self._offer(transfer)
        if transfer.state is State.CLOSED:
            self._forget(transfer)

    def _refusal(self, message: m.Open) -> str:
        limits = self._shelf.limits
        if len(self.transfers) > limits.max_transfers:
            return f"at most {limits.max_transfers} transfers at a time"
        if len(message.keys) > limits.max_blocks or message.block_bytes > limits.max_block_bytes:
            return f"at most {limits.max_blocks} blocks of {limits.max_block_bytes} bytes"
        if message.is_store and self._staged_bytes + _staging(message) > limits.max_staged_bytes:
            return f"at most {limits.max_staged_bytes} bytes of stores at a time"
        return ""

    def _offer(self, transfer: StoreTransfer) -> None:
        opened = transfer.opened
        count = self._shelf.pool.count_prefix(opened.keys, opened.block_bytes)
        if not count:
            self._answer(transfer, m.Refuse(opened.transfer, "not here"))
            return
        transfer.num_blocks = count
        transfer.pinned = opened.keys[:count]
        self._shelf.pool.pin(transfer.pinned)
        self._answer(transfer, m.Offer(opened.transfer, count, _ms(self._shelf.limits.lease_s)))

    def _grant(self, transfer: StoreTransfer) -> None:
        """As much as the window allows, in steps of half a window."""
        total = transfer.opened.block_bytes * len(transfer.opened.keys)
        window = self._shelf.limits.window_bytes
        due = min(total, transfer.moved + window)
        if due > transfer.granted and (due == total or due - transfer.granted >= window // 2):
            transfer.granted = due
            self._answer(transfer, m.Credit(transfer.opened.transfer, due))

    # ---- what a message does ----------------------------------------------------------------------------------------------

    def _on_open(self, transfer: StoreTransfer, message: m.Open) -> None:
        if message != transfer.opened:
            raise ProtocolError(f"transfer {message.transfer} is open with other content; identifiers are used once")

    def _on_credit(self, transfer: StoreTransfer, message: m.Credit) -> None:
        if message.total_bytes > transfer.granted:
            transfer.granted = message.total_bytes
            self._renew(transfer)
        if transfer.state is State.MOVING and transfer not in self._moving:
            self._moving.append(transfer)

    def _on_block(self, transfer: StoreTransfer, message: m.Block) -> None:
        opened = transfer.opened
        if message.number in transfer.staged:
            return
        if message.number >= len(opened.keys) or len(message.data) != opened.block_bytes:
            raise ProtocolError(
                f"block {message.number} of {len(message.data)} bytes is not one of the {len(opened.keys)} of "
                f"{opened.block_bytes} bytes that transfer {opened.transfer} opened"
            )
        if transfer.moved + len(message.data) > transfer.granted:
            raise ProtocolError(f"transfer {opened.transfer} may send {transfer.granted} bytes so far, found more")
        transfer.moved += len(message.data)
        transfer.staged[message.number] = StoredBlock(message.digest, message.data)
        self._renew(transfer)
        self._grant(transfer)

    def _on_end(self, transfer: StoreTransfer, message: m.End) -> None:
        """Commit: what arrived whole, as far as it is contiguous, becomes visible. Behind a first END nothing is done again."""
        opened = transfer.opened
        if message.num_blocks != len(opened.keys):
            raise ProtocolError(f"transfer {opened.transfer} opened {len(opened.keys)} blocks, END says {message.num_blocks}")
        whole = []
        for index in range(len(opened.keys)):
            block = transfer.staged.get(index)
            if block is None or m.digest_of(block.data) != block.digest:
                break
            whole.append(block)
        count = self._shelf.pool.put(opened.keys[: len(whole)], whole)
        self._shelf.remember(self._identifier(opened.transfer), opened.keys, count)
        self._answer(transfer, m.Ack(opened.transfer, count))

    def _on_end_of_interest(self, transfer: StoreTransfer, message: Any) -> None:
        """ACK, ABORT, ABORTED: nothing is left to do but to forget the transfer."""

    # ---- out --------------------------------------------------------------------------------------------------------------

    def next_message(self) -> bytes | None:
        """The next message for the peer: answers first, then blocks of loads within their credit, the transfers in turn."""
        if self._replies:
            return m.encode(self._replies.popleft())
        for _ in range(len(self._moving)):
            transfer = self._moving.popleft()
            if transfer.state is not State.MOVING:
                continue
            message = self._next_block(transfer)
            if message is None:  # without credit until the peer grants more
                continue
            transfer.state = following(transfer.machine, transfer.state, Way.OURS, m.kind_of(message))
            self._renew(transfer)
            self._moving.append(transfer)
            return m.encode(message)
        return None

    def _next_block(self, transfer: StoreTransfer) -> m.Block | m.End | None:
        opened, index = transfer.opened, transfer.next_index
        if index == transfer.num_blocks:
            return m.End(opened.transfer, index)
        if transfer.moved + opened.block_bytes > transfer.granted:
            return None
        block = self._shelf.pool.get(transfer.pinned[index])
        assert block is not None  # pinned
        transfer.next_index += 1
        transfer.moved += len(block.data)
        return m.Block(opened.transfer, index, *block)

    def _answer(self, transfer: StoreTransfer, message: m.TransferMessage) -> None:
        transfer.state = following(transfer.machine, transfer.state, Way.OURS, m.kind_of(message))
        self._say(message)

    def _say(self, message: m.Message) -> None:
        if (kind := m.kind_of(message)) in SESSION_KINDS:
            self.state = following(Machine.STORE_SESSION, self.state, Way.OURS, kind)
        self._replies.append(message)

    def fault(self, text: str) -> bytes:
        """The last message of a session that the store ends."""
        if self.state is not State.CLOSED:
            self.state = following(Machine.STORE_SESSION, self.state, Way.OURS, Kind.FAULT)
        return m.encode(m.Fault(text[: m.MAX_TEXT]))

    # ---- time and ends ----------------------------------------------------------------------------------------------------

    def _renew(self, transfer: StoreTransfer) -> None:
        """Something moved."""
        transfer.lease_ends = self._clock.now() + self._shelf.limits.lease_s

    def expire(self) -> None:
        """Ends transfers whose lease has run out. Raises ProtocolError if an ABORT went unanswered for too long."""
        now, limits = self._clock.now(), self._shelf.limits
        for transfer in [each for each in self.transfers.values() if each.lease_ends <= now]:
            if transfer.state is State.ABORTING:
                raise ProtocolError(f"the abort of transfer {transfer.opened.transfer} was not answered")
            self._answer(transfer, m.Abort(transfer.opened.transfer, "the lease has run out"))
            self._release(transfer)
            transfer.lease_ends = now + limits.abort_grace_s

    def close(self) -> None:
        """The connection is gone: nothing of it is held any more, and nothing that it staged becomes visible."""
        for transfer in self.transfers.values():
            self._release(transfer)
        self.transfers.clear()
        self._moving.clear()
        self._replies.clear()
        self.state = State.CLOSED

    def _release(self, transfer: StoreTransfer) -> None:
        """Lets go of what it pinned or staged, once."""
        if transfer.pinned:
            self._shelf.pool.unpin(transfer.pinned)
            transfer.pinned = ()
        if transfer.granted and transfer.machine is Machine.STORE_SINK:
            self._staged_bytes -= _staging(transfer.opened)
            transfer.granted = 0
        transfer.staged.clear()

    def _forget(self, transfer: StoreTransfer) -> None:
        self._release(transfer)
        number = transfer.opened.transfer
        del self.transfers[number]
        self._closed[number] = transfer.machine
        if len(self._closed) > _CLOSED_REMEMBERED:
            self._closed.popitem(last=False)

    def _identifier(self, transfer: int) -> tuple[bytes, int, int]:
        return self._hello.client, self._hello.generation, transfer


def _machine_for(message: m.TransferMessage) -> Machine:
    is_store = isinstance(message, m.Open) and message.is_store
    return Machine.STORE_SINK if is_store else Machine.LOAD_SOURCE


def _staging(opened: m.Open) -> int:
    return opened.block_bytes * len(opened.keys)


def _ms(seconds: float) -> int:
    return max(round(seconds * 1000), 1)


_HANDLERS: Final[dict[Kind, Callable[[StoreSession, StoreTransfer, Any], None]]] = {
    Kind.OPEN: StoreSession._on_open,
    Kind.CREDIT: StoreSession._on_credit,
    Kind.BLOCK: StoreSession._on_block,
    Kind.END: StoreSession._on_end,
    Kind.ACK: StoreSession._on_end_of_interest,
    Kind.ABORT: StoreSession._on_end_of_interest,
    Kind.ABORTED: StoreSession._on_end_of_interest,
}
