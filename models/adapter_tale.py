"""How every walk with adapters begins: a load undone, one lost, a restart, slots wanted before their last reader has settled.

Owns these operations; what chance adds to them stands in `models.walk`.
"""

from __future__ import annotations

from engine_under_test.types import Adapter, Request, SamplingParams
from properties.op import Op, OpKind

_STEP, _PLAN, _DRAIN = Op(OpKind.STEP), Op(OpKind.PLAN), Op(OpKind.DRAIN)


def adapter_tale(adapters: tuple[Adapter, ...], depth: int) -> tuple[Op, ...]:
    """About the first three adapters, which are loaded; nothing is live behind it."""
    one, two, three = adapters[:3]

    def add(name: str, adapter: Adapter) -> Op:
        return Op(OpKind.ADD, request=Request(name, (1, 2, 3, 4, 5), SamplingParams(max_tokens=8), adapter=adapter))

    def abort(*names: str) -> tuple[Op, ...]:
        return tuple(Op(OpKind.ABORT, request_id=name) for name in names)

    undone = (add("tale-1", one), Op(OpKind.ROLLBACK), _STEP, _STEP)
    begun_anew = (Op(OpKind.RESTART), _STEP)
    lost = (add("tale-2", two), *[_PLAN] * (1 + depth), Op(OpKind.ABANDON, k=0), _STEP, _STEP, _STEP)
    held = (Op(OpKind.HOLD_FENCES, on=True), _STEP, *abort("tale-1", "tale-2"), add("tale-3", three), add("tale-4", one), _PLAN)
    let_go = (Op(OpKind.HOLD_FENCES, on=False), Op(OpKind.LAND), _STEP, _STEP)
    late = (_PLAN, *abort("tale-3", "tale-4"), add("tale-5", two), add("tale-6", one), _PLAN, _STEP, _DRAIN)
    elsewhere = (Op(OpKind.RESTART), add("tale-7", two), _STEP, _DRAIN, add("tale-8", one), _STEP, _DRAIN)
    return (*undone, *begun_anew, *lost, *held, *let_go, *late, *elsewhere)
