"""World: what it catches at a target's edges, what it records, and that no op is too odd for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from engine_under_test.adapters.ours import AssayTarget
from engine_under_test.config import EngineConfig
from engine_under_test.types import Admission, Output, RefusalReason, Request, SamplingParams, StepResult
from models.build import config_from, config_to, world_from
from models.walk import small_shape
from models.world import World
from properties.history import OpRecord
from properties.invariants import ALL
from properties.op import Op, OpKind

T = TypeVar("T")
SMALL = EngineConfig(num_blocks=4, block_size=2, max_tokens_per_step=4, max_num_seqs=2, vocab_size=8, max_plans_in_flight=2)
GOOD = Request("a", (1, 2, 3), SamplingParams(max_tokens=2))
SPECS: dict[str, dict[str, Any]] = {
    "assay": {"target": "assay", "config": config_to(SMALL)},
    "radix": {"target": "radix", "config": config_to(replace(SMALL, block_size=1, num_blocks=8, max_plans_in_flight=1))},
}


def add(request: Request = GOOD) -> Op:
    return Op(OpKind.ADD, request=request)


def step(times: int = 1) -> list[Op]:
    return [Op(OpKind.STEP)] * times


class Lying(AssayTarget):
    """Our target with one verb bent."""

    def __init__(self, **bent: Callable[..., Any]) -> None:
        super().__init__(SMALL)
        self._bent = bent

    def add(self, request: Request) -> Admission:
        return self._through("add", super().add(request))

    def take_outputs(self) -> tuple[Output, ...]:
        return self._through("take_outputs", super().take_outputs())

    def abort(self, request_id: str) -> bool:
        return self._through("abort", super().abort(request_id))

    def commit(self, result: StepResult) -> None:
        self._through("commit", result)
        super().commit(result)

    def poll(self) -> int:
        return self._through("poll", super().poll())

    def _through(self, verb: str, answer: T) -> T:
        bend: Callable[[T], T] | None = self._bent.get(verb)
        return answer if bend is None else bend(answer)


def found_in(target: AssayTarget, ops: list[Op]) -> tuple[str, str]:
    world = World(target, predicates=())
    world.run(ops)
    assert world.violation is not None
    return world.violation.invariant, world.violation.sentence


def other_tokens(outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    return tuple(replace(each, token_ids=tuple((t + 1) % 8 for t in each.token_ids)) for each in outputs)


def without_ends(outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    return tuple(replace(each, finish_reason=None) for each in outputs)


def broken(_result: StepResult) -> None:
    raise RuntimeError("the commit is broken")


@pytest.mark.parametrize(
    ("bent", "ops", "invariant"),
    [
        ({"add": lambda _: Admission("a", 0, RefusalReason.TOO_LONG)}, [add()], "SC-4"),
        ({"add": lambda _: Admission("b", 1)}, [add(replace(GOOD, prompt=()))], "SC-4"),
        ({"add": lambda _: Admission("a", 0, RefusalReason.TOO_LONG)}, [add(replace(GOOD, prompt=()))], "SC-4"),
        ({"add": lambda answer: replace(answer, incarnation=1)}, [add(), Op(OpKind.ABORT, request_id="a"), add()], "SC-4"),
        ({"abort": lambda _: False}, [add(), Op(OpKind.ABORT, request_id="a")], "SC-6"),
        ({"take_outputs": other_tokens}, [add(), *step(3)], "SC-1"),
        ({"take_outputs": lambda outputs: outputs * 2}, [add(), *step(3)], "SC-5"),
        ({"take_outputs": without_ends}, [add(), Op(OpKind.DRAIN)], "SC-5"),
        ({"take_outputs": lambda _: ()}, [add(), Op(OpKind.DRAIN)], "SC-5"),
        ({"poll": lambda count: count + 1}, [add(), *step()], "SC-1"),
        ({"commit": broken}, [add(), *step()], "CRASH"),
    ],
    ids=[
        "a good request refused",
        "an empty prompt accepted",
        "an empty prompt refused for another reason",
        "an incarnation given twice",
        "an abort of a live request denied",
        "other tokens told than the results carried",
        "outputs told twice",
        "an end never told",
        "nothing ever told",
        "a plan in flight too many",
        "an exception",
    ],
)
def test_a_lie_at_the_edge_is_found(bent: dict[str, Callable[..., Any]], ops: list[Op], invariant: str) -> None:
    assert found_in(Lying(**bent), ops)[0] == invariant


def test_the_honest_target_is_not_suspected() -> None:
    world = World(Lying())
    world.run([add(), *step(2), add(replace(GOOD, request_id="b")), Op(OpKind.ABORT, request_id="b"), Op(OpKind.DRAIN)])
    assert world.violation is None


def test_a_crash_tells_the_op_and_the_exception() -> None:
    _, sentence = found_in(Lying(commit=broken), [add(), *step()])
    assert "op 1 (step)" in sentence
    assert "RuntimeError: the commit is broken" in sentence


def test_nothing_is_done_after_a_violation() -> None:
    world = World(Lying(commit=broken))
    world.run([add(), *step()])
    assert not world.apply(add(replace(GOOD, request_id="b")))
    assert [record.op.kind for record in world.history.of(OpRecord)] == [OpKind.ADD, OpKind.STEP]


def test_an_op_that_does_not_apply_is_recorded_as_a_no_op() -> None:
    world = world_from(SPECS["assay"])
    assert not world.apply(Op(OpKind.LAND))
    assert (world.ops, world.noops) == (0, 1)
    assert [record.is_noop for record in world.history.of(OpRecord)] == [True]


BEGINNINGS: dict[str, list[Op]] = {
    "nothing": [],
    "one waiting": [add()],
    "one planned": [add(), Op(OpKind.PLAN)],
    "two planned, the later result first": [add(), Op(OpKind.PLAN), Op(OpKind.PLAN), Op(OpKind.LAND, k=1)],
    "one decoding": [add(), *step(1)],
    "one finished and unsent": [add(replace(GOOD, sampling=SamplingParams(max_tokens=1))), Op(OpKind.PLAN), Op(OpKind.LAND)],
    "fences held, a plan lost": [add(), Op(OpKind.HOLD_FENCES, on=True), Op(OpKind.PLAN), Op(OpKind.ABANDON)],
    "one past its deadline": [add(replace(GOOD, deadline_s=1.0)), Op(OpKind.ADVANCE, seconds=2.0)],
}
ODD_OPS = [
    Op(kind, request=request, request_id=name, k=k, on=on, seconds=seconds)
    for kind in OpKind
    for request, name, k, on, seconds in [
        (None, "", 0, False, 0.0),
        (GOOD, "a", 1, True, 1.5),
        (replace(GOOD, request_id="", prompt=()), "nobody", -1, False, -1.0),
        (replace(GOOD, sampling=SamplingParams(max_tokens=0, n=0)), "a", 99, True, float("nan")),
    ]
    if not (kind is OpKind.SPOIL and on)  # a wrong number must be noticed: chaos/spoiled_suite.py
]


@pytest.mark.parametrize("target", SPECS)
@pytest.mark.parametrize("beginning", BEGINNINGS)
def test_ops_are_total(target: str, beginning: str) -> None:
    for op in ODD_OPS:
        world = world_from(SPECS[target])
        world.run([*BEGINNINGS[beginning], op, Op(OpKind.DRAIN)])
        assert world.violation is None, (op, world.violation)


def test_predicates_are_counted_where_they_were_evaluated() -> None:
    world = world_from(SPECS["assay"])
    world.run([add(), *step(3), Op(OpKind.DRAIN)])
    assert world.violation is None
    assert world.evaluations["KV-1"] > 0
    on_cells = [p for p in ALL if p.identifier == "SE-1"]
    assert world.evaluations["SE-1"] == len(on_cells) * world.checked_steps > 0


def test_a_configuration_comes_back_from_its_spec() -> None:
    config = small_shape(2).config
    assert config_from(config_to(config)) == config
