"""Each sentence on transfers lets a good instant pass and finds the one thing that is wrong in another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from properties.invariants.transfers import (
    TRANSFER_SENTENCES,
    ClientTransfer,
    RemoteTransfer,
    Shelf,
    Told,
    TransferMoment,
    Write,
    first_violation,
)

LOAD = ClientTransfer(1, 0, False, False, (5, 6), 3, 200, 100, waits=True)
STORE = ClientTransfer(2, 0, True, False, (5, 7), 2, 200, 100)
GONE = ClientTransfer(3, 0, False, True, (8,), 1, 100, 0)
ROWS = {b"a": 0, b"b": 1}
GOOD = TransferMoment(
    generation=0,
    window_bytes=100,
    store_window_bytes=150,
    pins={5: 2, 6: 1, 7: 1, 8: 1},
    free=(1, 2),
    clients=(LOAD, STORE, GONE),
    remotes=(RemoteTransfer(1, False, (b"a", b"b"), 200, 200), RemoteTransfer(2, True, (), 200, 50)),
    remote_pins={b"a": 1, b"b": 1},
    under_way={3: (8,)},
    writes=(Write(1, 0, 5),),
    content={5: ("x", "x")},
    remote={b"a": ("x", "x"), b"b": ("y", "y")},
    committed={b"a", b"b", b"c"},
    repeated=(ROWS, dict(ROWS)),
    answers={4: 1, 1: 0},
    aborted={3},
    told=(Told("r", (1, 2), (1, 2)),),
    is_quiet=True,
    held_up={1, 2, 3},
    shelf=Shelf(96, 96, 96),
)


class Bad(NamedTuple):
    sentence: str
    claim: str
    column: str
    new: Any


BAD = (
    Bad("writes_land_in_blocks_of_their_transfer", "another block", "writes", (Write(1, 0, 7),)),
    Bad("writes_land_in_blocks_of_their_transfer", "its transfer has ended", "writes", (Write(4, 0, 5),)),
    Bad("writes_land_in_blocks_of_their_transfer", "an older generation", "generation", 1),
    Bad("blocks_stay_pinned_while_writes_are_under_way", "an aborted load's block", "under_way", {3: (8,), 4: (9,)}),
    Bad("visible_blocks_hold_what_their_keys_say", "half of it came", "content", {5: ("x-", "x")}),
    Bad("visible_blocks_hold_what_their_keys_say", "the store shows another", "remote", {**GOOD.remote, b"b": ("z", "y")}),
    Bad("the_store_shows_committed_blocks_only", "b had no END", "committed", {b"a"}),
    Bad("pins_are_those_of_transfers", "a pin is left over", "pins", {**GOOD.pins, 9: 1}),
    Bad("pins_are_those_of_transfers", "an aborted load lost its pin", "pins", {5: 2, 6: 1, 7: 1}),
    Bad("pins_are_those_of_transfers", "a shared block lost one of two", "pins", {**GOOD.pins, 5: 1}),
    Bad("pins_are_those_of_transfers", "a pinned block is free", "free", (1, 2, 8)),
    Bad("sources_stay_pinned_until_acknowledged", "the store holds no pin", "remote_pins", {b"a": 1}),
    Bad(
        "sources_stay_pinned_until_acknowledged",
        "a store lets go early",
        "clients",
        (LOAD, STORE._replace(blocks=(5,)), GONE),
    ),
    Bad("pinned_sources_are_still_there", "b was evicted", "remote", {b"a": ("x", "x")}),
    Bad("repeated_transfers_change_nothing", "a block was replaced", "repeated", (ROWS, {**ROWS, b"b": 2})),
    Bad("loads_are_answered_once", "twice", "answers", {4: 2}),
    Bad("loads_are_answered_once", "an aborted one", "answers", {3: 1}),
    Bad("loads_are_answered_once", "its request waits on", "answers", {1: 1}),
    Bad("the_store_counts_what_lies_there", "what was stored again counts twice", "shelf", Shelf(120, 96, 240)),
    Bad("the_store_counts_what_lies_there", "more than fits", "shelf", Shelf(120, 120, 96)),
    Bad("outputs_equal_those_without_transfers", "another token", "told", (Told("r", (1, 3), (1, 2)),)),
    Bad(
        "bytes_in_flight_stay_within_credit",
        "more than was granted",
        "remotes",
        (RemoteTransfer(1, False, (b"a", b"b"), 150, 200), GOOD.remotes[1]),
    ),
    Bad("bytes_in_flight_stay_within_credit", "more than the window", "window_bytes", 99),
    Bad("bytes_in_flight_stay_within_credit", "more than the store's window", "store_window_bytes", 149),
    Bad("slow_transfers_slow_only_themselves", "2 is open for no reason", "held_up", {1, 3}),
)


@pytest.mark.parametrize("sentence", TRANSFER_SENTENCES, ids=lambda each: each.sentence)
def test_a_good_instant_passes(sentence: Any) -> None:
    assert sentence.check(GOOD) is None
    assert any(bad.sentence == sentence.check.__name__ for bad in BAD), "a sentence without a bad case"


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad.sentence}: {bad.claim}")
def test_the_one_wrong_thing_is_found(bad: Bad) -> None:
    moment = replace(GOOD, **{bad.column: bad.new})
    named = {each.check.__name__: each for each in TRANSFER_SENTENCES}[bad.sentence]
    found = named.check(moment)
    assert found is not None
    assert found.invariant == named.identifier
    assert found.found != found.expected
    assert first_violation(moment) is not None
