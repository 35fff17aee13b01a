"""Loads, stores and everything that can come between: the connector and a store's session over a link in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from engine_under_test.distributed import messages as m
from engine_under_test.distributed.protocol import State
from engine_under_test.errors import ConfigError, ProtocolError, RunnerError
from properties.kv_end import key_of
from properties.kv_link import SESSION, Direction, Fate
from properties.kv_world import BLOCK_BYTES, CONFIG, LIMITS, KvWorld, content_of

TO_STORE, TO_ENGINE = Direction.TO_STORE, Direction.TO_ENGINE


def connected(capacity_blocks: int = 10) -> KvWorld:
    world = KvWorld(capacity_blocks=capacity_blocks)
    world.settle()
    assert world.connector.session is State.OPEN
    return world


def with_remote_prefix(num_blocks: int = 5) -> KvWorld:
    """The store holds the first blocks of family 0, the engine nothing."""
    world = connected()
    world.begin("first", 0, num_blocks)
    world.settle()
    assert len(world.pool) == num_blocks
    world.forget()
    assert len(world.free) == len(world.content)
    return world


def asking(num_blocks: int = 5) -> tuple[KvWorld, int]:
    """A request waits for its load, of which nothing has been delivered yet."""
    world = with_remote_prefix(num_blocks)
    world.begin("second", 0, num_blocks)
    transfer = world.requests["second"].transfer
    assert transfer is not None
    return world, transfer


def arrive(world: KvWorld, transfer: int, count: int) -> None:
    """The next `count` messages of the load arrive at the engine."""
    for _ in range(count):
        world.deliver((TO_ENGINE, transfer))
        world.step()


def moving(num_arrived: int) -> tuple[KvWorld, int]:
    """The load's credit has arrived at the store, and `num_arrived` of the three blocks that it covers at the engine."""
    world, transfer = asking()
    world.deliver((TO_STORE, transfer))
    arrive(world, transfer, 1)
    world.deliver((TO_STORE, transfer))
    arrive(world, transfer, num_arrived)
    return world, transfer


def storing(num_blocks: int) -> tuple[KvWorld, int]:
    """A request missed, computed, and stores what it computed: of that nothing has been delivered yet."""
    world = connected()
    world.begin("first", 0, num_blocks)
    asked = world.requests["first"].transfer
    assert asked is not None
    world.deliver((TO_STORE, asked))
    world.deliver((TO_ENGINE, asked))
    world.step()
    (number,) = world.connector.transfers
    return world, number


# ---- loads -----------------------------------------------------------------------------------------------------------


def test_a_remote_prefix_is_loaded_and_not_computed() -> None:
    world, _ = asking()
    world.settle()
    assert world.num_loaded == 5
    assert not world.requests


def test_a_longer_request_loads_what_is_there_and_computes_the_rest() -> None:
    world = with_remote_prefix(3)
    world.begin("longer", 0, 6)
    world.settle()
    assert world.num_loaded == 3
    assert len(world.pool) == 6, "what was computed was stored behind"


def test_a_miss_is_answered_and_computed() -> None:
    world = with_remote_prefix()
    world.begin("other", 1, 2)
    world.settle()
    assert world.num_loaded == 0
    assert not world.requests


def test_nobody_waits_while_there_is_no_connection() -> None:
    world = with_remote_prefix()
    world.link.cut()
    world.step()
    world.begin("second", 0, 5)
    assert not world.requests, "it computed at once"


def test_a_waiting_load_keeps_nobody_else_waiting() -> None:
    world, transfer = asking()
    world.begin("other", 1, 3)
    world.settle(held_up=(transfer,))
    assert list(world.requests) == ["second"], "the one behind it is done"


def test_fewer_blocks_than_the_hit_are_loaded_if_no_more_are_free() -> None:
    world, transfer = asking()
    world.deliver((TO_STORE, transfer))
    world.deliver((TO_ENGINE, transfer))
    world.step(most_accepted=2)
    world.settle()
    assert world.num_loaded == 2
    assert not world.requests


# ---- aborts, in every phase, both orders --------------------------------------------------------------------------------

PHASES: dict[str, Callable[[], tuple[KvWorld, int]]] = {
    "its OPEN is under way": asking,
    "credit is granted, nothing has arrived": lambda: moving(0),
    "one block has arrived": lambda: moving(1),
    "all that credit covers has arrived": lambda: moving(3),
}


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_aborted_then_arrived(phase: Callable[[], tuple[KvWorld, int]]) -> None:
    """What arrives behind the abort is written nowhere, and its blocks come back with the store's last word."""
    world, transfer = phase()
    before = dict(world.content)
    world.abort("second")
    while (TO_ENGINE, transfer) in world.link.lanes:
        world.deliver((TO_ENGINE, transfer))
        world.step()
    assert dict(world.content) == before
    held = len(world.connector.transfers[transfer].blocks)
    assert len(world.free) == len(world.content) - held, "pinned until the abort is answered"
    world.settle()
    assert len(world.free) == len(world.content)
    assert world.answers[transfer] == 0


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_aborted_and_never_arrived(phase: Callable[[], tuple[KvWorld, int]]) -> None:
    """Nothing comes, not even an answer to the abort: the connection is closed, and only then the blocks come back."""
    world, transfer = phase()
    held = len(world.connector.transfers[transfer].blocks)
    world.abort("second")
    world.clock.time += CONFIG.abort_grace_s - 0.1
    world.step()
    assert len(world.free) == len(world.content) - held
    world.clock.time += 0.2
    world.step()
    assert len(world.free) == len(world.content)
    assert world.link.closed == [f"the abort of transfer {transfer} was not answered"]


@pytest.mark.parametrize("phase", PHASES.values(), ids=PHASES)
def test_aborted_then_the_connection_is_lost(phase: Callable[[], tuple[KvWorld, int]]) -> None:
    world, _ = phase()
    world.abort("second")
    world.link.cut()
    world.step()
    assert len(world.free) == len(world.content)
    world.drain()


def test_an_abort_behind_the_answer_tells_nothing() -> None:
    world, transfer = asking()
    world.link.cut()
    world.connector.step()  # the answer is there, nobody has taken it
    world.abort("second")
    world.step()
    assert world.answers[transfer] == 0


def test_both_ends_abort_at_once() -> None:
    world, transfer = moving(1)
    world.clock.time += LIMITS.lease_s + 0.1
    world.tick_store()  # its ABORT is under way behind the blocks
    world.abort("second")  # and so is ours
    world.settle()
    assert transfer not in world.connector.transfers
    assert world.link.session is not None
    assert not world.link.session.transfers


# ---- partial arrival ------------------------------------------------------------------------------------------------------


def _lose_connection(world: KvWorld, _transfer: int) -> None:
    world.link.cut()


def _store_lease(world: KvWorld, transfer: int) -> None:
    """The store's clock runs ahead: its ABORT arrives while the engine still counts on the lease."""
    world.clock.time += LIMITS.lease_s + 0.1
    world.tick_store()
    world.clock.time -= LIMITS.lease_s + 0.1
    while (TO_ENGINE, transfer) in world.link.lanes:
        world.deliver((TO_ENGINE, transfer), Fate.LOST if len(world.link._lanes[TO_ENGINE, transfer]) > 1 else Fate.ARRIVES)


def _engine_lease(world: KvWorld, _transfer: int) -> None:
    world.clock.time += LIMITS.lease_s + 0.1


def _deadline(world: KvWorld, _transfer: int) -> None:
    world.clock.time += CONFIG.load_deadline_s + 0.1


ENDS = {
    "the connection is lost": _lose_connection,
    "the lease ends at the store": _store_lease,
    "the lease ends at the engine": _engine_lease,
    "the deadline passes": _deadline,
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("num_arrived", [0, 1, 2])
def test_a_partial_load_is_cut_to_whole_blocks(num_arrived: int, end: Callable[[KvWorld, int], None]) -> None:
    world, transfer = moving(num_arrived)
    end(world, transfer)
    world.step()
    assert world.num_loaded == num_arrived
    assert not world.requests, "the rest was computed"
    world.drain()


def test_a_lost_block_cuts_in_front_of_it() -> None:
    world, transfer = moving(1)
    world.deliver((TO_ENGINE, transfer), Fate.LOST)
    world.settle()
    world.clock.time += LIMITS.lease_s + 0.1
    world.drain()
    assert world.num_loaded == 1


def test_a_block_that_the_store_spoiled_cuts_in_front_of_it() -> None:
    world, _ = asking()
    world.rot(key_of(0, 2))
    world.settle()
    assert world.num_loaded == 2
    assert world.connector.counters.corrupt_blocks == 1


def test_a_spoiled_block_among_fewer_than_the_hit_does_not_wait_for_the_lease() -> None:
    world, transfer = asking()
    world.rot(key_of(0, 1))
    world.deliver((TO_STORE, transfer))
    world.deliver((TO_ENGINE, transfer))
    world.step(most_accepted=3)
    world.settle()
    assert world.num_loaded == 1
    assert not world.requests


def test_a_lease_counts_from_what_the_engine_said_last() -> None:
    """The store keeps what it offered at least as long as the engine counts on it, however slow the way is."""
    world, transfer = moving(0)
    session = world.link.session
    assert session is not None
    assert world.connector.transfers[transfer].lease_ends <= session.transfers[transfer].lease_ends


# ---- stores ---------------------------------------------------------------------------------------------------------------


def test_nothing_is_visible_in_front_of_its_end() -> None:
    world, number = storing(2)
    for _ in range(4):
        world.step()
        for lane in ((TO_STORE, number), (TO_ENGINE, number)):
            if lane in world.link.lanes and not isinstance(m.decode(world.link.head(lane)), m.End):
                world.deliver(lane)
    assert world.link.session is not None
    assert len(world.link.session.transfers[number].staged) == 2
    assert len(world.pool) == 0
    world.settle()
    assert len(world.pool) == 2


def test_a_store_goes_on_over_the_next_connection() -> None:
    world, number = storing(4)
    world.deliver((TO_STORE, number))
    world.link.cut()
    world.step()
    assert sum(world.pins.values()) == 4, "the source stays pinned"
    world.settle()
    assert len(world.pool) == 4
    assert not +world.pins


def test_a_store_whose_acknowledgement_was_lost_changes_nothing_when_it_is_repeated() -> None:
    world, number = storing(2)
    while not len(world.pool):
        world.step()
        for lane in ((TO_STORE, number), (TO_ENGINE, number)):
            if lane in world.link.lanes and not len(world.pool):
                world.deliver(lane)
    before = dict(world.pool._blocks)
    world.link.cut()  # with the acknowledgement under way
    world.settle()
    assert dict(world.pool._blocks) == before
    assert world.connector.counters.stored_blocks == 2
    assert not world.connector.transfers


def test_a_store_is_given_up_at_its_deadline() -> None:
    world, _ = storing(2)
    world.link.cut()
    world.step()
    assert +world.pins
    world.clock.time += CONFIG.store_deadline_s + 0.1
    world.step()
    assert not +world.pins
    world.drain()
    assert len(world.pool) == 0


def test_a_full_store_evicts_what_was_used_least_recently_tail_first() -> None:
    world = connected(capacity_blocks=4)
    world.begin("first", 0, 3)
    world.settle()
    world.begin("second", 1, 2)
    world.settle()
    assert [world.pool.count_prefix([key_of(family, place) for place in range(3)], 24) for family in (0, 1)] == [2, 2]


def test_what_a_load_reads_is_not_evicted() -> None:
    world, transfer = moving(1)
    assert world.pool.pinned
    for family in (1, 2):
        world.begin(f"pressure {family}", family, 5)
        world.settle(held_up=(transfer,))
    world.settle()
    assert world.num_loaded == 5


# ---- credits --------------------------------------------------------------------------------------------------------------


def test_a_transfer_that_is_held_up_slows_nobody_else() -> None:
    world = with_remote_prefix()
    world.begin("slow", 0, 5)
    slow = world.requests["slow"].transfer
    assert slow is not None
    world.begin("fast", 0, 4)
    world.begin("stored", 1, 4)
    world.settle(held_up=(slow,))
    assert list(world.requests) == ["slow"]
    assert world.num_loaded == 4
    assert len(world.pool) == 9


def test_a_source_without_credit_waits() -> None:
    world, transfer = moving(0)
    session = world.link.session
    assert session is not None
    assert session.transfers[transfer].moved == CONFIG.window_bytes // BLOCK_BYTES * BLOCK_BYTES, "whole blocks"
    assert session.next_message() is None, "two more blocks wait for credit"


def test_a_congested_transport_gets_no_blocks_but_hears_aborts() -> None:
    world, _ = asking()
    world.begin("other", 1, 2)
    world.link.is_congested = True
    world.abort("second")
    world.settle()
    assert len(world.pool) == 5
    world.link.is_congested = False
    world.settle()
    assert len(world.pool) == 7


# ---- the peer is wrong ------------------------------------------------------------------------------------------------------


def test_a_store_with_another_token_is_left_alone() -> None:
    world = KvWorld(token=b"the token of the engine")
    world.shelf.token = b"the token of the store!"
    world.link.connect()
    for _ in range(6):
        world.step()
        world.link.run_store()
        for lane in world.link.lanes:
            world.deliver(lane)
    assert "token" in world.link.faults[0]
    world.begin("first", 0, 2)
    assert not world.requests


def test_an_equal_token_opens_the_session() -> None:
    world = KvWorld(token=b"a token that both have")
    world.settle()
    assert world.connector.session is State.OPEN


def test_a_store_that_does_not_welcome_is_left() -> None:
    world = KvWorld()
    world.link.connect()
    world.step()
    world.clock.time += CONFIG.handshake_s + 0.1
    world.step()
    assert "did not welcome" in world.link.closed[0]


@pytest.mark.parametrize(
    "wrong",
    [
        pytest.param(m.Block(0, 7, b"d" * 16, bytes(24)), id="a block that was not offered"),
        pytest.param(m.Block(0, 1, b"d" * 16, bytes(23)), id="a block of another size"),
        pytest.param(m.End(0, 3), id="an end of another length"),
        pytest.param(m.Refuse(0, "too late"), id="a refusal behind the offer"),
        pytest.param(m.Open(0, False, 24, (b"k",)), id="an OPEN from the store"),
        pytest.param(m.Hello(1, bytes(16), 0), id="a second greeting"),
    ],
)
def test_what_the_store_may_not_say_ends_the_connection_and_the_request_computes(wrong: m.Message) -> None:
    world, transfer = moving(1)
    if wrong and getattr(wrong, "transfer", None) == 0:
        wrong = wrong._replace(transfer=transfer)  # type: ignore[call-arg] # each with that field has it
    world.link._arrived.append(m.encode(wrong))
    world.step()
    assert world.link.closed
    assert not world.requests
    assert world.num_loaded == 1
    world.drain()


def test_more_than_was_granted_ends_the_connection() -> None:
    world, transfer = moving(3)
    extra = m.Block(transfer, 3, m.digest_of(content_of(key_of(0, 3))), content_of(key_of(0, 3)))
    world.connector.transfers[transfer].granted = 3 * 24
    world.link._arrived.append(m.encode(extra))
    world.step()
    assert "may bring" in world.link.closed[0]


def test_a_restart_hears_nothing_of_its_past() -> None:
    world, _ = moving(1)
    world.restart()
    assert not world.connector.transfers
    world.drain()
    assert world.num_loaded == 0


def test_what_can_not_work_is_said_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match="window_bytes must hold a block"):
        type(CONFIG)(100, window_bytes=99)
    world, transfer = asking()
    world.deliver((TO_STORE, transfer))
    world.deliver((TO_ENGINE, transfer))
    world.connector.step()
    with pytest.raises(ProtocolError, match="a hit of 5 blocks"):
        world.connector.accept(transfer, [1, 1])
    with pytest.raises(ProtocolError, match="a key for each block"):
        world.connector.store([b"k"], [])


def test_a_reused_lane_of_the_session_is_not_a_transfer() -> None:
    world = KvWorld()
    world.link.connect()
    world.step()
    assert world.link.lanes == [(TO_STORE, SESSION)]


# ---- a device that has no memory for a copy -------------------------------------------------------------------------------


def test_a_block_that_can_not_be_read_leaves_its_store_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    world = connected()
    monkeypatch.setattr(world, "read", _refused)
    world.begin("first", 0, 3)
    world.settle()
    counters = world.connector.counters
    assert (counters.unmoved_blocks, counters.stored_blocks, len(world.pool)) == (1, 0, 0)
    assert not +world.pins, "nothing waits for the deadline of the store"
    world.drain()


def test_a_block_that_can_not_be_written_cuts_its_load_in_front_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world, transfer = moving(0)
    third, taken = world.connector.transfers[transfer].blocks[2], world.write
    monkeypatch.setattr(world, "write", lambda block, data: _refused(block) if block == third else taken(block, data))
    world.settle()
    assert (world.connector.counters.unmoved_blocks, world.num_loaded) == (1, 2)
    world.drain()


def _refused(block: int) -> NoReturn:
    raise RunnerError(f"no memory for block {block}")
