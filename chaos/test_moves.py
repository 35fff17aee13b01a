"""Blocks between a runner and a remote pool: no buffer for a copy costs a transfer and nothing else, and what is no number is
not stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from chaos.memory_suite import run_memory_of_transfers
from chaos.transfers_in_turn import SPEC, STORIES
from engine_under_test.distributed import messages as m
from engine_under_test.distributed.connector import Connector
from engine_under_test.errors import OutOfMemory
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.seams import Space
from engine_under_test.types import FinishReason, Output
from models.build import world_from
from models.device import _Seen
from models.streamed_device import StreamedDevice
from models.world import World
from properties.history import OpRecord
from properties.op import Op, OpKind
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

DRAIN = Op(OpKind.DRAIN)
_LOADING = EventKind.LOADING


def told(ops: Sequence[Op]) -> tuple[World, dict[str, tuple[int, ...]]]:
    world = world_from(SPEC)
    world.run(ops)
    assert world.violation is None, world.violation
    streams: dict[str, tuple[int, ...]] = {}
    for output in world.history.of(Output):
        streams[output.request_id] = streams.get(output.request_id, ()) + output.token_ids
        assert output.finish_reason in (None, FinishReason.LENGTH)
    return world, streams


def unmoved(world: World) -> int:
    assert isinstance(world.device, StreamedDevice)
    return world.device.num_unmoved


class _Refuses:
    def __init__(self, *spaces: Space) -> None:
        self.spaces = spaces
        self.asked: list[tuple[int, Space]] = []

    def admit(self, num_bytes: int, space: Space = Space.DEVICE) -> bool:
        self.asked.append((num_bytes, space))
        return space not in self.spaces


@pytest.mark.parametrize("space", [Space.PINNED, Space.HOST])
def test_a_read_without_memory_is_refused_before_anything_is_done(space: Space) -> None:
    memory = _Refuses(space)
    runner = FingerprintRunner(4, 2, 16, memory=memory)
    with pytest.raises(OutOfMemory, match=f"a store of block 1: 32 bytes of {space} memory were refused; it is left out"):
        runner.read_block(1)
    assert {num_bytes for num_bytes, _ in memory.asked} == {runner.block_bytes}


def test_a_write_without_memory_leaves_the_block_as_it_was() -> None:
    runner = FingerprintRunner(4, 2, 16, memory=_Refuses(Space.PINNED))
    before = runner.store.copy()
    with pytest.raises(OutOfMemory, match="a load of block 1"):
        runner.write_block(1, bytes(32))
    assert (runner.store == before).all()


def _refusals() -> Iterator[int]:
    """Of the story in which nothing is refused, how many allocations there are."""
    world, _ = told((*STORIES[0], DRAIN))
    assert isinstance(world.device, StreamedDevice)
    yield from range(1, world.device.memory.num_asked + 1)


def test_whichever_allocation_of_a_story_with_transfers_is_refused_everybody_gets_the_same_tokens() -> None:
    _, due = told((*STORIES[0], DRAIN))
    num_unmoved = 0
    for k in _refusals():
        world, found = told((Op(OpKind.REFUSE_MEMORY, k=k), *STORIES[0], DRAIN))
        assert found == due, k
        num_unmoved += unmoved(world)
    assert num_unmoved >= 8


def test_the_suite_finds_a_block_that_counts_as_loaded_though_it_had_no_buffer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = Connector._takes

    def takes(self: Connector, block: int, message: m.Block) -> bool:
        taken(self, block, message)
        return True

    monkeypatch.setattr(Connector, "_takes", takes)
    result = run_memory_of_transfers(SuiteContext(Profile.PR, 1, shrink_s=0.5))
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.invariant in ("KV-6", "SE-1", "DI-3")


def _spoiled() -> World:
    """A block of the writer's loses a number while it runs, before it is stored."""
    story = STORIES[0]
    computed = story.index(Op(OpKind.STEP)) + 2  # behind a step that asks the remote pool, and one that computes
    world = world_from(SPEC)
    world.run((*story[:computed], Op(OpKind.SPOIL, request_id="writer", k=1), *story[computed:], DRAIN))
    (spoil,) = [record for record in world.history.of(OpRecord) if record.op.kind is OpKind.SPOIL]
    assert not spoil.is_noop
    return world


def test_what_is_no_number_is_not_stored_and_whoever_asks_next_computes() -> None:
    world = _spoiled()
    assert world.violation is None, world.violation
    ends = {output.request_id: output.finish_reason for output in world.history.of(Output) if output.finish_reason}
    assert ends == {"writer": FinishReason.ERROR, "neighbour": FinishReason.LENGTH, "reader": FinishReason.LENGTH}


def test_it_would_be_noticed_if_it_were_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Seen, "data", lambda seen: seen._move.data())
    found = _spoiled().violation
    assert found is not None
    assert found.invariant in ("KV-6", "DI-3", "SE-1")


def test_nothing_is_loaded_for_whoever_computes_all_of_the_prompt_for_its_log_probabilities() -> None:
    story, place = STORIES[0], next(at for at, op in enumerate(STORIES[0]) if op.request and op.request.request_id == "reader")
    reader = story[place].request
    assert reader is not None
    asks = Op(OpKind.ADD, replace(reader, sampling=replace(reader.sampling, prompt_logprobs=1)))
    world, _ = told((*story[:place], asks, *story[place + 1 :], DRAIN))
    assert "reader" not in {event.row.request_id for event in world.history.of(Event) if event.kind is _LOADING and event.row}
    world, _ = told((*story, DRAIN))
    assert "reader" in {event.row.request_id for event in world.history.of(Event) if event.kind is _LOADING and event.row}
