"""The protocol's table, message for message: what it does not list is refused at both ends, generated from the table itself."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.frames import HEADER_BYTES, FrameReader, FrameWriter
from engine_under_test.distributed.protocol import (
    SESSION_KINDS,
    SESSION_STATES,
    TABLE,
    TRANSFER_STATES,
    VERSION,
    Kind,
    Machine,
    State,
    Way,
    following,
)
from engine_under_test.distributed.store_pool import StoredBlock, StorePool
from engine_under_test.distributed.store_session import StoreSession, StoreShelf, proof_of
from engine_under_test.errors import ConfigError, ProtocolError
from properties.kv_world import BLOCK_BYTES, LIMITS, HandClock, KvWorld, content_of

_SESSIONS = (Machine.CLIENT_SESSION, Machine.STORE_SESSION)
KEYS = (b"k0", b"k1", b"k2")
DATA = content_of(KEYS[0])


def _cases(machine: Machine) -> list[tuple[State, Way, Kind]]:
    states = SESSION_STATES if machine in _SESSIONS else TRANSFER_STATES
    kinds = [kind for kind in Kind if (kind in SESSION_KINDS) == (machine in _SESSIONS)]
    return [(state, way, kind) for state in states for way in Way for kind in kinds]


ILLEGAL = [(machine, *case) for machine in Machine for case in _cases(machine) if case not in TABLE[machine]]


def _name(case: tuple[Machine, State, Way, Kind]) -> str:
    machine, state, way, kind = case
    return f"{machine.value} {state.value}: {way.value} {kind.name}"


@pytest.mark.parametrize("case", ILLEGAL, ids=_name)
def test_an_illegal_transition_is_refused(case: tuple[Machine, State, Way, Kind]) -> None:
    _, state, _, kind = case
    with pytest.raises(ProtocolError, match=f"{kind.name} may not be .* {state.value}"):
        following(*case)


def test_the_table_lists_what_both_ends_agree_on() -> None:
    """What one end may say in a state of the plain flow, the other may hear in it, and both go on alike."""
    for ours, theirs in ((Machine.LOAD_SINK, Machine.LOAD_SOURCE), (Machine.STORE_SOURCE, Machine.STORE_SINK), _SESSIONS):
        for (state, way, kind), then in TABLE[ours].items():
            if kind in (Kind.ABORT, Kind.ABORTED) or State.ABORTING in (state, then):
                continue
            other = Way.THEIRS if way is Way.OURS else Way.OURS
            assert TABLE[theirs].get((state, other, kind), then) is then
            if way is Way.OURS:
                assert (state, Way.THEIRS, kind) in TABLE[theirs]


def test_every_state_is_reached_and_can_be_left() -> None:
    for machine, rows in TABLE.items():
        states = SESSION_STATES if machine in _SESSIONS else TRANSFER_STATES
        entered = set(rows.values()) | {states[0]}
        left = {state for (state, _, _), then in rows.items() if then is not state} | {State.CLOSED}
        skipped = {State.OFFERED} if machine in (Machine.STORE_SINK, Machine.STORE_SOURCE) else set()
        assert entered | skipped == set(states)
        assert left | skipped == set(states)


# ---- the store's end really refuses -------------------------------------------------------------------------------------

MESSAGE: dict[Kind, m.Message] = {
    Kind.HELLO: m.Hello(VERSION, bytes(16), 0),
    Kind.CHALLENGE: m.Challenge(VERSION, bytes(32)),
    Kind.PROOF: m.Proof(bytes(32)),
    Kind.WELCOME: m.Welcome(bytes(16), 1, 1, 1),
    Kind.BYE: m.Bye(),
    Kind.FAULT: m.Fault("no"),
    Kind.OPEN: m.Open(1, False, BLOCK_BYTES, KEYS),
    Kind.OFFER: m.Offer(1, 1, 1),
    Kind.REFUSE: m.Refuse(1, "no"),
    Kind.CREDIT: m.Credit(1, BLOCK_BYTES),
    Kind.BLOCK: m.Block(1, 0, m.digest_of(DATA), DATA),
    Kind.END: m.End(1, 3),
    Kind.ACK: m.Ack(1, 3),
    Kind.ABORT: m.Abort(1, "no"),
    Kind.ABORTED: m.Aborted(1),
}


class Store:
    """A session with a pool that holds the first three keys."""

    def __init__(self) -> None:
        self.clock = HandClock()
        self.pool = StorePool(10 * BLOCK_BYTES)
        self.pool.put(KEYS, [StoredBlock(m.digest_of(content_of(key)), content_of(key)) for key in KEYS])
        self.session = StoreSession(StoreShelf(self.pool, bytes(16), LIMITS), self.clock, bytes(32))

    def hear(self, *messages: m.Message) -> Store:
        for message in messages:
            self.session.receive(m.encode(message))
            while self.session.next_message() is not None:
                pass
        return self

    def greeted(self) -> Store:
        return self.hear(MESSAGE[Kind.HELLO], MESSAGE[Kind.PROOF])

    def late(self) -> Store:
        """The lease runs out: the store aborts."""
        self.clock.time += LIMITS.lease_s
        self.session.expire()
        return self


_LOAD, _STORE = MESSAGE[Kind.OPEN], m.Open(1, True, BLOCK_BYTES, (b"n0", b"n1", b"n2"))
STORES: dict[tuple[Machine, State], Callable[[], Store]] = {
    (Machine.STORE_SESSION, State.NEW): Store,
    (Machine.STORE_SESSION, State.CHALLENGED): lambda: Store().hear(MESSAGE[Kind.HELLO]),
    (Machine.STORE_SESSION, State.OPEN): lambda: Store().greeted(),
    (Machine.STORE_SESSION, State.CLOSED): lambda: Store().greeted().hear(m.Bye()),
    (Machine.LOAD_SOURCE, State.IDLE): lambda: Store().greeted(),
    (Machine.LOAD_SOURCE, State.OFFERED): lambda: Store().greeted().hear(_LOAD),
    (Machine.LOAD_SOURCE, State.MOVING): lambda: Store().greeted().hear(_LOAD, m.Credit(1, BLOCK_BYTES)),
    (Machine.LOAD_SOURCE, State.WHOLE): lambda: Store().greeted().hear(_LOAD, m.Credit(1, 3 * BLOCK_BYTES)),
    (Machine.LOAD_SOURCE, State.ABORTING): lambda: Store().greeted().hear(_LOAD).late(),
    (Machine.LOAD_SOURCE, State.CLOSED): lambda: Store().greeted().hear(_LOAD, MESSAGE[Kind.ABORT]),
    (Machine.STORE_SINK, State.MOVING): lambda: Store().greeted().hear(_STORE),
    (Machine.STORE_SINK, State.ABORTING): lambda: Store().greeted().hear(_STORE).late(),
    (Machine.STORE_SINK, State.CLOSED): lambda: Store().greeted().hear(_STORE, MESSAGE[Kind.ABORT]),
}
"""The states in which the store's end comes to rest."""

HEARD_ILLEGALLY = [
    (machine, state, kind) for machine, state, way, kind in ILLEGAL if way is Way.THEIRS and (machine, state) in STORES
]


@pytest.mark.parametrize("case", HEARD_ILLEGALLY, ids=lambda case: f"{case[0].value} {case[1].value}: {case[2].name}")
def test_the_store_refuses_what_it_may_not_hear_and_lets_go_of_everything(case: tuple[Machine, State, Kind]) -> None:
    machine, state, kind = case
    store = STORES[machine, state]()
    if machine is Machine.STORE_SESSION:
        assert store.session.state is state
    elif state not in (State.IDLE, State.CLOSED):
        assert store.session.transfers[1].state is state
    before = dict(store.pool._blocks)
    with pytest.raises(ProtocolError):
        store.hear(MESSAGE[kind])
    store.session.close()
    assert not store.pool.pinned
    assert not store.session.staged_bytes
    assert dict(store.pool._blocks) == before


def test_a_transfer_in_front_of_the_greeting_is_refused() -> None:
    with pytest.raises(ProtocolError, match="greet first"):
        Store().hear(_LOAD)


def test_another_version_is_refused_with_both_numbers() -> None:
    with pytest.raises(ProtocolError, match="version 1 of the protocol, found 2"):
        Store().hear(m.Hello(2, bytes(16), 0))


def test_a_proof_of_another_challenge_is_refused() -> None:
    """A handshake that was recorded opens no second session."""
    token = b"a token of enough bytes"
    shelf = StoreShelf(StorePool(1000), bytes(16), LIMITS, token)
    recorded = m.encode(m.Proof(proof_of(token, b"1" * 32, bytes(16), 0)))
    for nonce, is_right in ((b"1" * 32, True), (b"2" * 32, False)):
        session = StoreSession(shelf, HandClock(), nonce)
        session.receive(m.encode(MESSAGE[Kind.HELLO]))
        if is_right:
            session.receive(recorded)
        else:
            with pytest.raises(ProtocolError, match="not that of this store's token"):
                session.receive(recorded)
        assert session.is_open is is_right


def test_a_repeated_identifier_with_other_content_is_refused() -> None:
    store = Store().greeted().hear(_LOAD)
    store.hear(_LOAD)  # once more the same
    with pytest.raises(ProtocolError, match="open with other content"):
        store.hear(m.Open(1, False, BLOCK_BYTES, KEYS[:2]))


def test_a_store_may_not_send_more_than_was_granted_nor_stage_more_than_its_limit() -> None:
    granted = LIMITS.window_bytes // BLOCK_BYTES
    opened = m.Open(1, True, BLOCK_BYTES, tuple(b"n%d" % number for number in range(8)))
    store = Store().greeted()
    store.session.receive(m.encode(opened))  # its credit is never taken
    refused = Store().greeted()
    refused.session.receive(m.encode(opened._replace(transfer=2)))
    refused.session.receive(m.encode(opened._replace(transfer=3)))
    refused.session.receive(m.encode(opened._replace(transfer=4)))
    assert refused.session.staged_bytes == LIMITS.max_staged_bytes
    for number in range(granted):
        store.session.receive(m.encode(m.Block(1, number, m.digest_of(DATA), DATA)))
    store.session.transfers[1].granted = granted * BLOCK_BYTES
    with pytest.raises(ProtocolError, match="may send"):
        store.session.receive(m.encode(m.Block(1, granted, m.digest_of(DATA), DATA)))


def test_the_engine_refuses_every_answer_that_the_table_does_not_list() -> None:
    """For a transfer that was never opened: each costs the connection."""
    for kind in (kind for kind in Kind if kind not in SESSION_KINDS):
        world = KvWorld()
        world.settle()
        world.link._arrived.append(m.encode(MESSAGE[kind]))
        world.step()
        assert world.link.closed, kind


# ---- messages and frames -------------------------------------------------------------------------------------------------


def test_messages_are_what_they_were() -> None:
    for message in MESSAGE.values():
        assert m.decode(m.encode(message)) == message


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xdd\xff\xff\xff\xff")  # an array of 2**32 - 1
@example(b"\xc6\xff\xff\xff\xff")  # as many bytes
@example(b"\x91" * 200)  # nested
@example(b"\x92\x14\xc7\x00\x05")  # an extension
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_a_message_or_a_protocol_error(data: bytes) -> None:
    try:
        message = m.decode(data)
    except ProtocolError:
        return
    assert m.decode(m.encode(message)) == message


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param((20, 1, 0, b"d" * 16), id="a field is missing"),
        pytest.param((20, 1, 0, b"d" * 16, b"x", 1), id="a field is too many"),
        pytest.param((20, -1, 0, b"d" * 16, b"x"), id="a negative number"),
        pytest.param((20, True, 0, b"d" * 16, b"x"), id="a truth for a number"),
        pytest.param((20, 1.0, 0, b"d" * 16, b"x"), id="a fraction"),
        pytest.param((20, 1, 0, b"d" * 15, b"x"), id="a short digest"),
        pytest.param((20, 1, 0, "d" * 16, b"x"), id="text for bytes"),
        pytest.param((16, 1, False, 8, (b"k", b"k")), id="a key twice"),
        pytest.param((16, 1, False, 8, ()), id="no key"),
        pytest.param((16, 1, False, 8, (b"k" * 65,)), id="a long key"),
        pytest.param((18, 1, "x" * 257), id="a long text"),
        pytest.param((99, 1), id="an unknown kind"),
        pytest.param((), id="nothing"),
    ],
)
def test_fields_out_of_range_are_refused(fields: tuple[object, ...]) -> None:
    import msgpack

    with pytest.raises(ProtocolError):
        m.decode(msgpack.packb(fields))


@given(st.lists(st.binary(max_size=60), max_size=6), st.integers(1, 30))
@settings(max_examples=60, deadline=None)
def test_frames_survive_any_cutting(messages: list[bytes], piece: int) -> None:
    writer, reader = FrameWriter(), FrameReader(100)
    stream = b"".join(map(writer.frame, messages))
    found = []
    for start in range(0, len(stream), piece):
        reader.feed(stream[start : start + piece])
        while (message := reader.next_message()) is not None:
            found.append(message)
    assert found == messages
    assert not reader.is_inside_a_frame


@given(st.binary(min_size=1, max_size=40), st.data())
@settings(max_examples=100, deadline=None)
def test_any_flipped_bit_is_seen(message: bytes, data: st.DataObject) -> None:
    frame = bytearray(FrameWriter().frame(message))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= 1 << data.draw(st.integers(0, 7))
    reader = FrameReader(100)
    reader.feed(bytes(frame))
    try:
        assert reader.next_message() is None, "a greater length waits for more"
        assert 8 <= place < 12
    except ProtocolError:
        pass


def test_a_repeated_frame_is_refused() -> None:
    writer, reader = FrameWriter(), FrameReader(100)
    frame = writer.frame(b"once")
    reader.feed(frame + frame)
    assert reader.next_message() == b"once"
    with pytest.raises(ProtocolError, match="frame 1 of the connection is due, found 0"):
        reader.next_message()


def test_a_length_over_the_limit_is_refused_before_it_is_read() -> None:
    reader = FrameReader(10)
    reader.feed(FrameWriter().frame(b"x" * 11)[:HEADER_BYTES])
    with pytest.raises(ProtocolError, match="at most 10 bytes here, found one of 11"):
        reader.next_message()


def test_limits_that_can_not_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="must hold a block"):
        replace(LIMITS, window_bytes=BLOCK_BYTES - 1)
    with pytest.raises(ConfigError, match="max_blocks"):
        replace(LIMITS, max_blocks=0)


def test_the_engine_imports_nothing_of_distributed() -> None:
    """A connector is an extra: who has none needs none of its libraries."""
    code = (
        "import sys, engine_under_test; "
        "print([name for name in sys.modules if name in ('msgpack', 'xxhash') or '.distributed' in name])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
