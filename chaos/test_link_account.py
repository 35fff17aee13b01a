"""The account of the link sees a store that sends something else, and a load that waits for more than itself."""

from __future__ import annotations

import pytest

from chaos.transfers_in_turn import SPEC, STORIES
from engine_under_test.remote import RemotePrefixes
from models.build import world_from
from models.streamed_device import StreamedDevice
from models.world import World
from properties.op import Op, OpKind


def told(*more: Op) -> World:
    world = world_from(SPEC)
    world.run((*STORIES[0], *more))
    return world


def test_a_story_of_a_store_and_a_load_is_as_it_should_be() -> None:
    assert told(Op(OpKind.DRAIN)).violation is None


def test_a_store_that_sends_what_its_block_never_held_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamedDevice, "content_of", lambda _self, _block: bytes(32))
    found = told().violation
    assert found is not None
    assert (found.invariant, found.expected) == ("DI-3", f"{bytes(32).hex()}, as when its store began")


def test_a_load_that_is_not_told_of_when_it_stands_in_the_store_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemotePrefixes, "_publish", lambda _self, _load: None)
    found = told(*[Op(OpKind.POLL)] * 3).violation
    assert found is not None
    assert (found.invariant, found.expected) == ("DI-5", "a wait for this load alone")


def test_who_waits_and_is_not_asked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemotePrefixes, "_ask", lambda _self, _seq: None)
    found = told().violation
    assert found is not None
    assert (found.invariant, found.expected) == ("DI-5", "one question within the poll")


def test_what_is_computed_and_not_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RemotePrefixes, "_note", lambda _self, _table, _first, _last: None)
    found = told().violation
    assert found is not None
    assert (found.invariant, found.expected) == ("DI-5", "a store with the commit")
