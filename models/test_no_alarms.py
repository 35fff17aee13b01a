"""Stories in which nothing broke, each of which some sentence once took for broken. What they have in common stands in ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from engine_under_test.caps import LinkFault
from engine_under_test.types import Adapter, Request, SamplingParams
from models.build import world_from
from properties.op import Op, OpKind

_PLAN, _DRAIN, _UNDONE = Op(OpKind.PLAN), Op(OpKind.DRAIN), Op(OpKind.ROLLBACK)
_STEPS = _CONNECTS = (Op(OpKind.STEP), Op(OpKind.STEP))
_STALLED = Op(OpKind.LINK, k=list(LinkFault).index(LinkFault.STALL))
_REFUSED = Op(OpKind.REFUSE_BLOCK, k=1)
_SMALL: dict[str, Any] = {"num_blocks": 12, "block_size": 2, "max_num_seqs": 2, "max_tokens_per_step": 8, "vocab_size": 16}
_BY_PRIORITY = {**_SMALL, "order": "priority", "max_overtakes": 4}
_ONE_SLOT = {
    **_SMALL, "max_plans_in_flight": 2, "max_active_adapters": 1, "max_adapter_overtakes": 4, "adapters": [["x", 1], ["y", 1]],
}  # fmt: skip


def _add(name: str, length: int = 3, max_tokens: int = 2, **fields: Any) -> Op:
    return Op(OpKind.ADD, request=Request(name, tuple(range(length)), SamplingParams(max_tokens=max_tokens), **fields))


def _with(op: Op, adapter: Adapter) -> Op:
    assert op.request is not None
    return replace(op, request=replace(op.request, adapter=adapter))


_AWAITS_THE_SLOT = (  # of a row in flight whose request is gone: b goes before a
    _with(_add("r"), Adapter("x", 1)),
    _PLAN,
    Op(OpKind.ABORT, request_id="r"),
    _with(_add("a"), Adapter("y", 1)),
    _add("b"),
)
_SLOT_IS_FREE = (Op(OpKind.LAND), Op(OpKind.POLL), _PLAN, _DRAIN)

_UNLOAD_X = Op(OpKind.UNLOAD_ADAPTER, request_id="x", k=1)
_TWO_SLOTS = {**_SMALL, "num_blocks": 20, "max_active_adapters": 2, "adapters": [["x", 1], ["y", 1], ["z", 1]]}

STORIES: dict[str, tuple[dict[str, Any], tuple[Op, ...]]] = {
    "a second try that was undone goes before who came since and is more urgent": (
        {"config": _BY_PRIORITY},
        (_add("a", priority=2), _REFUSED, _UNDONE, _add("b", priority=-1), _PLAN, _DRAIN),
    ),
    "a second try that was undone goes before who waited for a slot at its first": (
        {"config": _ONE_SLOT},
        (*_AWAITS_THE_SLOT, _REFUSED, _UNDONE, *_SLOT_IS_FREE),
    ),
    "a plan that was lost goes before who waited for a slot when it was made": (
        {"config": _ONE_SLOT},
        (*_AWAITS_THE_SLOT, _PLAN, Op(OpKind.ABANDON, k=1), *_SLOT_IS_FREE),
    ),
    "who was the last to use an adapter ends with the step that loads another one": (
        {"config": _TWO_SLOTS},
        (
            *(_with(_add("r"), Adapter("y", 1)), *_STEPS),
            *(_with(_add("a", max_tokens=9, deadline_s=2.0), Adapter("x", 1)), *_STEPS, _UNLOAD_X),
            *(_with(_add("b"), Adapter("z", 1)), Op(OpKind.ADVANCE, seconds=4.0), _PLAN, _DRAIN),
        ),
    ),
    "who was the last to use an adapter ends with its second try, and another plan is undone": (
        {"config": _TWO_SLOTS},
        (
            *(_with(_add("a", max_tokens=9), Adapter("x", 1)), *_STEPS, _UNLOAD_X, _PLAN, Op(OpKind.ABANDON, on=True)),
            *(_REFUSED, _UNDONE, _DRAIN),
        ),
    ),
    "a restart ends what a store held, of which the pool hears nothing": (
        {"config": _SMALL, "remote": {"capacity_blocks": 48}},
        (*_CONNECTS, _add("a", 2, 1), Op(OpKind.STEP), _STALLED, Op(OpKind.RESTART), *_CONNECTS, Op(OpKind.POLL), _DRAIN),
    ),
    "a store's blocks are evicted by the next one, before it was answered": (
        {"config": {**_SMALL, "num_blocks": 14}, "remote": {"capacity_blocks": 2}},
        (*_CONNECTS, Op(OpKind.ADD, request=Request("b", (0, 0), SamplingParams(max_tokens=3))), _add("e", 6, 1), _DRAIN),
    ),
}


@pytest.mark.parametrize(("more", "ops"), STORIES.values(), ids=STORIES)
def test_nothing_is_found_where_nothing_broke(more: dict[str, Any], ops: tuple[Op, ...]) -> None:
    world = world_from({"target": "assay", **more})
    world.run(ops)
    assert world.violation is None
    assert not world.num_live
