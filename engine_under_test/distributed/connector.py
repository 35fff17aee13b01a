"""The engine's end of the remote KV pool: loads on a remote prefix hit, write-behind of completed blocks. No sockets, no clock.

    load      ask(keys) ─► hits() says how many are there ─► accept(blocks): pinned, written as they come ─► answers(): how many
              arrived whole, contiguous from the first. The request waits meanwhile and blocks nobody; with 0 it computes.
    store     store(keys, blocks): pinned until acknowledged or expired; sent a few blocks a `step`

A block under transfer has two lifetimes. The request's is the engine's business: it holds what it accepted, and lets go of all
but the answered blocks. The transfer's is kept here, as a pin, until the other end can no longer write or read: its last word
has come, or the connection has ended. Either may end first.

Owns the client's states of the protocol, credits, leases and deadlines; what it deals in stands in `transfers.py`. Never
publishes anything and never decides who waits.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.protocol import SESSION_KINDS, VERSION, Kind, Machine, State, Way, following
from engine_under_test.distributed.store_session import proof_of
from engine_under_test.distributed.transfers import (
    ConnectorConfig,
    ConnectorCounters,
    KvPages,
    LoadAnswer,
    RemoteHit,
    Transfer,
)
from engine_under_test.errors import ProtocolError, RunnerError
from engine_under_test.seams import Clock, Transport

_CLOSED_REMEMBERED: Final = 1024


class Connector:
    """See the module. Call `step` often; everything else happens in it. ``identity``: 16 bytes that no other engine uses."""

    def __init__(
        self, config: ConnectorConfig, pages: KvPages, transport: Transport, clock: Clock, identity: bytes, generation: int = 0
    ) -> None:
        self.config = config
        self.generation = generation
        self.counters = ConnectorCounters()
        self.session = State.NEW
        self.transfers: dict[int, Transfer] = {}
        self._pages = pages
        self._transport = transport
        self._clock = clock
        self._identity = identity
        self._connection: int | None = None
        self._welcome: m.Welcome | None = None
        self._handshake_ends = 0.0
        self._next_number = 1
        self._closed: OrderedDict[int, Machine] = OrderedDict()
        self._hits: list[RemoteHit] = []
        self._answers: list[LoadAnswer] = []
        self._sending: deque[Transfer] = deque()  # stores in the order of their turns
        self._earning: list[Transfer] = []  # loads of which blocks have come: credit behind all that has, or none goes too far

    # ---- the engine's verbs -----------------------------------------------------------------------------------------------

    def ask(self, owner: Hashable, keys: Sequence[bytes]) -> int | None:
        """Asks for the longest prefix of `keys` that is there. None: do not wait, compute. Else one hit or one answer comes."""
        if not keys or not self._has_room(Machine.LOAD_SINK, self.config.max_loads):
            return None
        self.counters.loads += 1
        return self._open(Machine.LOAD_SINK, keys, owner, (), self.config.load_deadline_s).number

    def take_hits(self) -> list[RemoteHit]:
        """Hits that wait for `accept` or `abort`, each told once."""
        found, self._hits = self._hits, []
        return [hit for hit in found if self._is_offered(hit.transfer)]

    def accept(self, transfer: int, blocks: Sequence[int]) -> bool:
        """Loads into `blocks`, as many of the hit as they are. False if the offer is gone meanwhile: its answer has come."""
        found = self.transfers.get(transfer)
        if found is None or found.state is not State.OFFERED:
            return False
        if not 1 <= len(blocks) <= found.num_offered or len(set(blocks)) != len(blocks):
            raise ProtocolError(f"a hit of {found.num_offered} blocks is loaded into 1 to as many, each once, found {blocks}")
        found.blocks = tuple(blocks)
        self._pages.pin(found.blocks)
        self._grant(found)
        return True

    def abort(self, transfer: int) -> None:
        """The request does not wait any more, whatever the phase of its load. No answer comes; pins last while they must."""
        self._answers = [answer for answer in self._answers if answer.transfer != transfer]
        found = self.transfers.get(transfer)
        if found is not None and found.machine is Machine.LOAD_SINK:
            found.owner = None
            self._abort(found, "the request is gone")

    def take_answers(self) -> list[LoadAnswer]:
        found, self._answers = self._answers, []
        return found

    def store(self, keys: Sequence[bytes], blocks: Sequence[int]) -> int | None:
        """Write-behind of completed, committed blocks, in prefix order. None: not now, and nothing was pinned."""
        if len(keys) != len(blocks):
            raise ProtocolError(f"a store has a key for each block, found {len(keys)} keys for {len(blocks)} blocks")
        if not keys or not self._has_room(Machine.STORE_SOURCE, self.config.max_stores):
            return None
        assert self._welcome is not None  # the session is open
        blocks = tuple(blocks[: self._welcome.max_blocks])
        self._pages.pin(blocks)
        self.counters.stores += 1
        return self._open(Machine.STORE_SOURCE, keys, None, blocks, self.config.store_deadline_s).number

    def restart(self) -> None:
        """The engine's memory starts anew, pins included: nothing of the old generation arrives, and nothing of it is told."""
        self.generation += 1
        self._transport.close("the engine restarted")
        for transfer in list(self.transfers.values()):
            transfer.blocks = ()
            self._end(transfer)
        self._disconnected()
        self._hits.clear()
        self._answers.clear()

    def step(self) -> None:
        """Takes what has come, ends what is over, sends what may be sent. Never blocks."""
        self._transport.poll()
        self._follow_connection()
        try:
            for data in self._transport.receive():
                self._receive(data)
            self._expire()
            self._grant_earned()
        except ProtocolError as error:
            self.counters.broken = str(error)
            self._transport.close(str(error))
            self._follow_connection()
            return
        self._send_blocks()

    # ---- connection and session -------------------------------------------------------------------------------------------

    def _follow_connection(self) -> None:
        connection = self._transport.connection
        if connection == self._connection:
            return
        if self._connection is not None:
            self.counters.connections_lost += 1
            self._disconnected()
        self._connection = connection
        if connection is not None:
            self.session = State.NEW
            self._handshake_ends = self._clock.now() + self.config.handshake_s
            self._say(m.Hello(VERSION, self._identity, self.generation))

    def _disconnected(self) -> None:
        """Nothing arrives any more: loads end with what they have, stores wait for a new connection."""
        self._connection = None
        self.session = State.CLOSED
        self._sending.clear()
        self._earning.clear()
        for transfer in list(self.transfers.values()):
            if transfer.machine is Machine.LOAD_SINK or transfer.state is State.ABORTING:
                self._answer(transfer, "the connection was lost")
                self._end(transfer)
            else:
                transfer.state = State.IDLE

    def _greeted(self, message: m.Message) -> None:
        if isinstance(message, m.Challenge):
            mac = proof_of(self.config.token, message.nonce, self._identity, self.generation)
            self._say(m.Proof(mac))
        elif isinstance(message, m.Welcome):
            self._welcome = message
            for transfer in self.transfers.values():  # stores that the last connection left behind, oldest first
                transfer.granted = transfer.moved = transfer.next_index = 0
                self._tell(transfer, transfer.opened)
        elif isinstance(message, m.Fault):
            raise ProtocolError(f"the store ended the connection: {message.text}")

    def _has_room(self, machine: Machine, most: int) -> bool:
        return self.session is State.OPEN and sum(each.machine is machine for each in self.transfers.values()) < most

    def _open(
        self, machine: Machine, keys: Sequence[bytes], owner: Hashable, blocks: tuple[int, ...], deadline_s: float
    ) -> Transfer:
        assert self._welcome is not None  # the session is open
        number, self._next_number = self._next_number, self._next_number + 1
        is_store = machine is Machine.STORE_SOURCE
        opened = m.Open(number, is_store, self.config.block_bytes, tuple(keys[: self._welcome.max_blocks]))
        transfer = Transfer(number, machine, opened, State.IDLE, self._clock.now() + deadline_s, owner, blocks)
        self.transfers[number] = transfer
        self._tell(transfer, opened)
        return transfer

    # ---- in ---------------------------------------------------------------------------------------------------------------

    def _receive(self, data: bytes) -> None:
        message = m.decode(data)
        kind = m.kind_of(message)
        if kind in SESSION_KINDS:
            self.session = following(Machine.CLIENT_SESSION, self.session, Way.THEIRS, kind)
            self._greeted(message)
        elif self.session is not State.OPEN:
            raise ProtocolError(f"{kind.name} may not be received by a session that is {self.session.value}")
        else:
            self._receive_for_transfer(kind, message)

    def _receive_for_transfer(self, kind: Kind, message: Any) -> None:
        number = message.transfer
        transfer = self.transfers.get(number)
        if transfer is None:
            state = State.CLOSED if number in self._closed else State.IDLE
            following(self._closed.get(number, Machine.LOAD_SINK), state, Way.THEIRS, kind)
            if kind is Kind.ABORT:
                self._say(m.Aborted(number))
            return
        was, transfer.state = transfer.state, following(transfer.machine, transfer.state, Way.THEIRS, kind)
        if kind is Kind.ABORT:
            self._say(m.Aborted(number))
        if was is not State.ABORTING:
            _HANDLERS[kind](self, transfer, message)
        if transfer.state is State.CLOSED:
            self._end(transfer)

    def _on_offer(self, transfer: Transfer, message: m.Offer) -> None:
        if transfer.num_offered:
            return
        if message.num_blocks > len(transfer.opened.keys):
            raise ProtocolError(
                f"transfer {transfer.number} asked for {len(transfer.opened.keys)} blocks, offered are {message.num_blocks}"
            )
        transfer.num_offered = message.num_blocks
        self._hits.append(RemoteHit(transfer.owner, transfer.number, message.num_blocks))

    def _on_refuse(self, transfer: Transfer, message: m.Refuse) -> None:
        self._answer(transfer, f"refused: {message.reason}")

    def _on_credit(self, transfer: Transfer, message: m.Credit) -> None:
        transfer.granted = max(transfer.granted, message.total_bytes)
        if transfer not in self._sending:
            self._sending.append(transfer)

    def _on_block(self, transfer: Transfer, message: m.Block) -> None:
        if message.number in transfer.arrived or message.number in transfer.spoiled:
            return
        if message.number >= len(transfer.blocks) or len(message.data) != self.config.block_bytes:
            raise ProtocolError(
                f"block {message.number} of {len(message.data)} bytes is not one of the {len(transfer.blocks)} of "
                f"{self.config.block_bytes} bytes that transfer {transfer.number} accepted"
            )
        transfer.moved += len(message.data)
        if transfer.moved > transfer.granted:
            raise ProtocolError(f"transfer {transfer.number} may bring {transfer.granted} bytes so far, found more")
        if self._takes(transfer.blocks[message.number], message):
            transfer.arrived.add(message.number)
        else:
            transfer.spoiled.add(message.number)
        if transfer.state is not State.MOVING:
            return
        if len(transfer.arrived) + len(transfer.spoiled) == len(transfer.blocks) < transfer.num_offered:
            self._answer(transfer, "as much as was accepted")  # the store waits for credit that will not come
            self._abort(transfer, "enough")
        else:
            self._earning.append(transfer)

    def _takes(self, block: int, message: m.Block) -> bool:
        """Whether what has come is whole, and on its way into the block."""
        if m.digest_of(message.data) != message.digest:
            self.counters.corrupt_blocks += 1
            return False
        try:
            self._pages.write(block, message.data)
        except RunnerError:
            self.counters.unmoved_blocks += 1
            return False
        return True

    def _on_end(self, transfer: Transfer, message: m.End) -> None:
        if message.num_blocks != transfer.num_offered:
            raise ProtocolError(
                f"transfer {transfer.number} was offered {transfer.num_offered} blocks, END says {message.num_blocks}"
            )
        count = transfer.num_whole
        self._tell(transfer, m.Ack(transfer.number, count))
        self._answer(transfer, "complete" if count == len(transfer.blocks) else "some of it did not arrive whole")

    def _on_ack(self, transfer: Transfer, message: m.Ack) -> None:
        self.counters.stored_blocks += min(message.num_blocks, len(transfer.blocks))

    def _on_abort(self, transfer: Transfer, message: m.Abort) -> None:
        self._answer(transfer, f"aborted by the store: {message.reason}")

    # ---- out --------------------------------------------------------------------------------------------------------------

    def _grant(self, transfer: Transfer) -> None:
        """As much as the window allows, in steps of half a window; the lease is counted from what was said last."""
        window = self.config.window_bytes
        total = self.config.block_bytes * len(transfer.blocks)
        due = min(total, transfer.moved + window)
        if due > transfer.granted and (due == total or due - transfer.granted >= window // 2):
            transfer.granted = due
            self._tell(transfer, m.Credit(transfer.number, due))

    def _grant_earned(self) -> None:
        for transfer in self._earning:
            if transfer.state is State.MOVING:
                self._grant(transfer)
        self._earning.clear()

    def _send_blocks(self) -> None:
        """One block of each store in turn, as credit, congestion and `blocks_per_step` allow."""
        left = self.config.blocks_per_step
        not_yet: list[Transfer] = []
        while self._sending and left and not self._transport.is_congested:
            transfer = self._sending.popleft()
            if transfer.state is not State.MOVING:
                continue
            index = transfer.next_index
            if index == len(transfer.blocks):
                self._tell(transfer, m.End(transfer.number, index))
            elif transfer.moved + self.config.block_bytes <= transfer.granted:
                try:
                    data = self._pages.read(transfer.blocks[index])
                except RunnerError as error:
                    self.counters.unmoved_blocks += 1
                    self._abort(transfer, str(error))
                    continue
                if data is None:
                    not_yet.append(transfer)
                    continue
                transfer.next_index += 1
                transfer.moved += len(data)
                self._tell(transfer, m.Block(transfer.number, index, m.digest_of(data), data))
                self._sending.append(transfer)
                left -= 1
        self._sending.extend(not_yet)

    def _tell(self, transfer: Transfer, message: m.TransferMessage) -> None:
        transfer.state = following(transfer.machine, transfer.state, Way.OURS, m.kind_of(message))
        if self._welcome is not None and transfer.machine is Machine.LOAD_SINK:
            transfer.lease_ends = self._clock.now() + self._welcome.lease_ms / 1000
        self._transport.send(m.encode(message))

    def _say(self, message: m.Message) -> None:
        if (kind := m.kind_of(message)) in SESSION_KINDS:
            self.session = following(Machine.CLIENT_SESSION, self.session, Way.OURS, kind)
        self._transport.send(m.encode(message))

    # ---- ends -------------------------------------------------------------------------------------------------------------

    def _expire(self) -> None:
        now = self._clock.now()
        if self._connection is not None and self.session is not State.OPEN and self._handshake_ends <= now:
            raise ProtocolError(f"the store did not welcome within {self.config.handshake_s} s")
        for transfer in list(self.transfers.values()):
            if transfer.state is State.ABORTING:
                if transfer.grace_ends <= now:
                    raise ProtocolError(f"the abort of transfer {transfer.number} was not answered")
            elif transfer.deadline <= now or transfer.lease_ends <= now:
                reason = "the deadline has passed" if transfer.deadline <= now else "the lease has run out"
                self._answer(transfer, reason)
                self._abort(transfer, reason)

    def _abort(self, transfer: Transfer, reason: str) -> None:
        """From here on nothing of it is used. What the store may still write stays pinned; what it reads was copied out."""
        if transfer.state is State.ABORTING:
            return
        self.counters.aborted += 1
        if transfer.state is State.IDLE:  # a store without a connection
            self._end(transfer)
            return
        self._tell(transfer, m.Abort(transfer.number, reason))
        transfer.grace_ends = self._clock.now() + self.config.abort_grace_s
        if transfer.machine is Machine.STORE_SOURCE:
            self._unpin(transfer)

    def _answer(self, transfer: Transfer, reason: str) -> None:
        """Tells the request, once, how much of its load it has."""
        if transfer.owner is None:
            return
        count = transfer.num_whole
        self.counters.loaded_blocks += count
        self.counters.cut += count < transfer.num_offered
        self._answers.append(LoadAnswer(transfer.owner, transfer.number, count, reason))
        transfer.owner = None

    def _end(self, transfer: Transfer) -> None:
        """Nothing more of it can come: the transfer's lifetime of its blocks is over."""
        self._unpin(transfer)
        del self.transfers[transfer.number]
        self._closed[transfer.number] = transfer.machine
        if len(self._closed) > _CLOSED_REMEMBERED:
            self._closed.popitem(last=False)

    def _unpin(self, transfer: Transfer) -> None:
        if transfer.blocks:
            self._pages.unpin(transfer.blocks)
            transfer.blocks = ()

    def _is_offered(self, number: int) -> bool:
        transfer = self.transfers.get(number)
        return transfer is not None and transfer.state is State.OFFERED


def _nothing(_connector: Connector, _transfer: Transfer, _message: Any) -> None:
    """ABORTED: the end of the transfer is all there is to it."""


_HANDLERS: Final[dict[Kind, Callable[[Connector, Transfer, Any], None]]] = {
    Kind.OFFER: Connector._on_offer,
    Kind.REFUSE: Connector._on_refuse,
    Kind.CREDIT: Connector._on_credit,
    Kind.BLOCK: Connector._on_block,
    Kind.END: Connector._on_end,
    Kind.ACK: Connector._on_ack,
    Kind.ABORT: Connector._on_abort,
    Kind.ABORTED: _nothing,
}
