"""World over a device with streams: nothing false on a correct run, every missing wait and false declaration found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest

from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.schedule import Chance, Chooser, Delays, Priorities
from engine_under_test.execution.simulated_device import SimulatedDevice, SimulatedFence
from engine_under_test.seams import DeviceOp, Stream
from models.build import hasher_of, target_from
from models.streamed_device import StreamedDevice
from models.walk import large_shape, small_shape, walk_ops
from models.world import World
from properties.op import Op

CHOOSERS: dict[str, Callable[[], Chooser]] = {
    "as soon as possible": Delays,
    "by chance": lambda: Chance(5),
    "by priorities": lambda: Priorities(5, 1500),
}


def run(ops: list[Op], chooser: Chooser, seed: int = 0) -> tuple[World, StreamedDevice]:
    shape = small_shape(seed)
    target = target_from(shape.spec())
    device = StreamedDevice(target.caps, chooser)
    world = World(target, hasher=hasher_of(shape.spec()), device=device)
    world.run(ops)
    return world, device


def walk(seed: int, count: int) -> list[Op]:
    return list(islice(walk_ops(seed, small_shape(0)), count))


@pytest.mark.parametrize("name", CHOOSERS)
@pytest.mark.parametrize("seed", range(3))
def test_a_correct_engine_has_no_race(name: str, seed: int) -> None:
    world, device = run(walk(seed, 250), CHOOSERS[name]())
    assert world.violation is None
    assert device.simulated.num_run > 300
    for identifier in ("AS-1", "AS-2", "AS-5"):
        assert world.evaluations[identifier] > 200


def test_a_large_pool_has_no_race() -> None:
    shape = large_shape(0)
    target = target_from(shape.spec())
    device = StreamedDevice(target.caps, Chance(1))
    world = World(target, hasher=hasher_of(shape.spec()), device=device)
    world.run(islice(walk_ops(1, shape), 120))
    assert world.violation is None


@pytest.mark.parametrize("name", CHOOSERS)
def test_ops_with_the_choices_of_a_run_run_the_same_way(name: str) -> None:
    ops = walk(4, 150)
    world, device = run(ops, CHOOSERS[name]())
    found = device.recorded()
    again, other = run([replace(op, choices=found.get(number, ())) for number, op in enumerate(ops)], Delays())
    assert other.recorded() == found
    assert again.checked_steps == world.checked_steps > 50
    assert again.snapshot == world.snapshot


# -- what must be found ----------------------------------------------------------------------------------------

_submit = SimulatedDevice.submit_to


def without_waits_of(stream: Stream) -> Callable[..., SimulatedFence]:
    def submit_to(self: SimulatedDevice, target: Stream, op: DeviceOp, after: Any = ()) -> SimulatedFence:
        return _submit(self, target, op, () if target is stream else after)

    return submit_to


def on_another_stream(name: str) -> Callable[..., SimulatedFence]:
    def submit_to(self: SimulatedDevice, target: Stream, op: DeviceOp, after: Any = ()) -> SimulatedFence:
        return _submit(self, Stream.TRANSFER if op.name == name else target, op, after)

    return submit_to


@pytest.fixture(autouse=True)
def _restored(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    yield
    monkeypatch.undo()


def found_by(monkeypatch: pytest.MonkeyPatch, place: type, name: str, value: Any) -> str:
    monkeypatch.setattr(place, name, value)
    for seed in range(4):
        world, _device = run(walk(seed, 300), Chance(seed))
        if world.violation is not None:
            return world.violation.invariant
    return "nothing"


def test_rows_that_do_not_wait_for_their_upload_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by(monkeypatch, SimulatedDevice, "submit_to", without_waits_of(Stream.COMPUTE)) in ("AS-2", "KV-3")


def test_a_download_that_does_not_wait_for_its_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by(monkeypatch, SimulatedDevice, "submit_to", without_waits_of(Stream.COPY_OUT)) == "AS-2"


def test_fills_off_the_stream_that_rows_wait_for_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found_by(monkeypatch, SimulatedDevice, "submit_to", on_another_stream("fill")) in ("KV-3", "AS-2")


def test_a_host_that_does_not_wait_for_results_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(self: SimulatedDevice, fence: SimulatedFence) -> None:
        del fence
        self.turn(host_waits=True)

    assert found_by(monkeypatch, SimulatedDevice, "wait", wait) == "AS-2"


def test_a_block_that_is_read_but_not_declared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ops_of = FingerprintRunner._ops

    def undeclared(self: FingerprintRunner, *arguments: Any) -> tuple[list[DeviceOp], DeviceOp]:
        before, rows = ops_of(self, *arguments)
        return before, replace(rows, reads=rows.writes)

    assert found_by(monkeypatch, FingerprintRunner, "_ops", undeclared) == "AS-5"


def test_a_block_that_is_written_but_not_declared_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ops_of = FingerprintRunner._ops

    def undeclared(self: FingerprintRunner, *arguments: Any) -> tuple[list[DeviceOp], DeviceOp]:
        before, rows = ops_of(self, *arguments)
        return [replace(op, writes=frozenset(list(op.writes)[1:])) if op.name == "fill" else op for op in before], rows

    assert found_by(monkeypatch, FingerprintRunner, "_ops", undeclared) == "AS-5"
