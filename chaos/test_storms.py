"""Storms are values: repeatable bit for bit, woven stably, healed at the end, and shrunk together with their faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from chaos.document import PAGE, lines
from chaos.faults import OF_THE_SCHEDULE, Fault, FaultKind, draw_plan
from chaos.nemesis import NEMESES
from chaos.run import failure_of, run_storm
from chaos.storm import KINDS_OF_OTHERS, PCT_STEPS, draw_storm
from chaos.suites import run_orders, run_storms
from engine_under_test.errors import BadInput
from engine_under_test.execution.schedule import Priorities
from engine_under_test.execution.simulated_device import SimulatedDevice, SimulatedFence
from engine_under_test.seams import DeviceOp, Stream
from models.shrink import run_once
from models.streamed_device import StreamedDevice
from properties.invariants import CATALOGUE
from properties.op import Op, OpKind
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict


@pytest.fixture
def without_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows that do not wait for their uploads, fills and copies."""
    submit = SimulatedDevice.submit_to

    def submit_to(
        self: SimulatedDevice, stream: Stream, op: DeviceOp, after: tuple[SimulatedFence, ...] = ()
    ) -> SimulatedFence:
        return submit(self, stream, op, () if stream is Stream.COMPUTE else after)

    monkeypatch.setattr(SimulatedDevice, "submit_to", submit_to)
    yield
    monkeypatch.undo()


@pytest.mark.parametrize("seed", range(4))
def test_a_storm_is_repeatable_bit_for_bit(seed: int) -> None:
    one, other = run_storm(draw_storm(seed)), run_storm(draw_storm(seed))
    assert one.violation is None
    assert one.digest == other.digest
    assert one.ops == other.ops
    assert one.driver.world.checked_steps > 50


def test_its_ops_alone_do_it_all_again() -> None:
    run = run_storm(draw_storm(11))
    from models.build import world_from

    world = world_from(run.storm.spec())
    world.run(run.ops)
    assert world.violation is None
    assert world.snapshot == run.driver.world.snapshot
    assert world.checked_steps == run.driver.world.checked_steps


def test_a_plan_prints_as_one_line_that_names_every_fault() -> None:
    plan = draw_plan(3, 200)
    assert all(fault.option in plan.options for fault in plan.faults)
    assert all(fault.kind in plan.active for fault in plan.faults)
    assert Fault(FaultKind.HELD_FENCES, 12, 3, 2, True).option == "held-fences@12+3:2!"


def test_a_kind_that_is_not_wanted_does_not_strike() -> None:
    wanted = (FaultKind.ABORTS, FaultKind.STREAM_DELAYS)
    plans = [draw_plan(seed, 200, wanted) for seed in range(40)]
    assert {fault.kind for plan in plans for fault in plan.faults} == {FaultKind.ABORTS}
    assert {kind for plan in plans for kind in plan.active} == set(wanted)


def test_over_many_seeds_every_kind_is_active_and_every_pair_of_two() -> None:
    plans = [draw_plan(seed, 200) for seed in range(300)]
    pairs = {(one, other) for plan in plans for one in plan.active for other in plan.active if one < other}
    kinds = sorted(FaultKind)
    impossible = {tuple(sorted(OF_THE_SCHEDULE))}
    assert pairs == {(one, other) for one in kinds for other in kinds if one < other} - impossible


def test_every_kind_has_a_nemesis_and_names_invariants_of_the_catalogue() -> None:
    assert set(NEMESES) == set(FaultKind)
    for nemesis in NEMESES.values():
        assert set(nemesis.watched_by) <= set(CATALOGUE)
        assert nemesis.heals


def test_the_committed_page_of_faults_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == "\n".join(lines()) + "\n"


def test_a_storm_ends_healed_and_drained() -> None:
    ops = list(draw_storm(0).ops())
    assert ops[-1] == Op(OpKind.DRAIN)
    held = [op.on for op in ops if op.kind is OpKind.HOLD_FENCES]
    assert held
    assert held[-1] is False


def test_no_storm_is_longer_than_the_bound_of_its_priorities_says() -> None:
    for seed in range(40):
        storm = draw_storm(seed, (FaultKind.PRIORITIES, FaultKind.LOST_PLANS, FaultKind.ABORTS))
        if FaultKind.PRIORITIES in storm.plan.active and storm.shape == "large-deeper":
            run = run_storm(storm)
            device = run.driver.world.device
            assert isinstance(device, StreamedDevice)
            assert isinstance(device.simulated.chooser, Priorities)
            assert device.simulated.chooser._done <= PCT_STEPS
            return
    pytest.fail("no storm by priorities was drawn")


@pytest.mark.usefixtures("without_waits")
def test_a_missing_wait_is_found_and_shrunk() -> None:
    run = run_storm(draw_storm(0))
    assert run.violation is not None
    failure = failure_of(run, shrink_s=20.0)
    assert failure.violation.invariant == run.violation.invariant in ("AS-2", "KV-3", "KV-10")
    assert len(failure.ops) <= 3
    assert "missing: " in failure.violation.facts[0]
    assert failure.world["device"] == "streams"
    assert run_once(failure.world, failure.ops) == failure.violation


def test_the_suites_are_valid_on_a_correct_engine() -> None:
    storms = run_storms(SuiteContext(Profile.QUICK, 5))
    assert (storms.verdict, storms.missed) == (Verdict.VALID, ())
    assert storms.reached["operations that ran or were seen late"] > 0
    orders = run_orders(SuiteContext(Profile.QUICK, 5))
    assert orders.verdict is Verdict.VALID
    assert orders.reached["operations of the device"] >= 4000


@pytest.mark.usefixtures("without_waits")
def test_the_suites_find_a_missing_wait() -> None:
    for run in (run_storms, run_orders):
        result = run(SuiteContext(Profile.QUICK, 5, shrink_s=5.0))
        assert result.verdict is Verdict.INVALID
        assert result.failures[0].violation.invariant in ("AS-2", "KV-3", "KV-10")


def test_an_engine_written_by_others_has_storms_of_what_its_verbs_allow() -> None:
    storm = draw_storm(3, engine="transformers")
    assert storm.spec()["target"] == "transformers"
    assert set(storm.plan.active) <= set(KINDS_OF_OTHERS)


def test_an_engine_that_is_not_there_is_refused() -> None:
    with pytest.raises(BadInput, match="an engine is assay or one of"):
        draw_storm(3, engine="nobody")


def test_a_storm_against_transformers_is_judged_like_ours() -> None:
    pytest.importorskip("transformers", reason="the extra `reference` is not installed")
    storm = draw_storm(0, (FaultKind.ABORTS, FaultKind.STREAM_DELAYS), num_ops=40, engine="transformers")
    run = run_storm(replace(storm, shape="transformers-swap"))
    assert run.violation is None
    assert run.driver.world.checked_steps > 20
    assert {"KV-1", "SE-1", "SC-6"} <= run.driver.world.evaluations.keys()
