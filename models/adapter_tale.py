"""How every walk with adapters begins: a load undone, one lost, a restart, slots wanted before their last reader has settled.

Owns these operations; what chance adds to them stands in `models.walk`.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_under_test.types import Adapter, Request, SamplingParams
from properties.op import Op, OpKind

_STEP, _PLAN, _DRAIN = Op(OpKind.STEP), Op(OpKind.PLAN), Op(OpKind.DRAIN)

_Add = Callable[[str, Adapter], Op]
_Abort = Callable[..., tuple[Op, ...]]


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
    return (*undone, *begun_anew, *lost, *held, *let_go, *late, *elsewhere, *_later(add, abort, one, two, three, depth))


def _later(add: _Add, abort: _Abort, one: Adapter, two: Adapter, three: Adapter, depth: int) -> tuple[Op, ...]:
    """Two plans lost of which the later one loads too; a load lost while its fence is held, with its slot wanted again; the
    slot read last is not the one loaded last; a name asked for under the version before the one that may be named; a version
    replaced of which nothing is wanted any more but its slot, that was read last."""
    both = (
        Op(OpKind.RESTART),
        add("tale-9", one),
        _PLAN,
        *((add("tale-10", two), _PLAN) if depth else ()),
        Op(OpKind.ABANDON, k=0, on=True),
    )
    again = (*[_STEP] * 3, _DRAIN)
    held = (Op(OpKind.RESTART), Op(OpKind.HOLD_FENCES, on=True), add("tale-11", one), _PLAN, Op(OpKind.ABANDON, k=0))
    wanted = (*abort("tale-11"), add("tale-12", two), _PLAN, add("tale-13", three), _PLAN, _DRAIN)
    hot = [op for number, each in enumerate((one, two, one, three, one)) for op in (add(f"tale-hot-{number}", each), _DRAIN)]
    named = [Adapter("tale", version) for version in (1, 2)]
    loads = [Op(OpKind.LOAD_ADAPTER, request_id=each.name, k=each.version) for each in named]
    older = (loads[0], add("tale-14", named[0]), _STEP, loads[1], add("tale-15", named[0]), add("tale-16", named[1]), _STEP)
    newer = Op(OpKind.LOAD_ADAPTER, request_id="tale", k=3)
    replaced = (_DRAIN, add("tale-17", one), _DRAIN, add("tale-18", named[1]), _DRAIN, newer, add("tale-19", three), _DRAIN)
    gone = Op(OpKind.UNLOAD_ADAPTER, request_id="tale", k=3)
    return (*both, *again, *held, *wanted, *hot, *older, *replaced, gone)
