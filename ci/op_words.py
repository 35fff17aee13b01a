"""Operations in a person's words: a short title and a detail.

Owns the wording only.
"""

from __future__ import annotations

from collections.abc import Callable

from engine_under_test.types import Request
from properties.op import Op, OpKind


def describe_op(op: Op) -> tuple[str, str]:
    """(title, detail) of an operation."""
    words = _WORDS.get(op.kind)
    return words(op) if words else (op.kind.value.replace("_", " "), "")


def describe_request(request: Request) -> str:
    """What is asked for, without what stands at its default."""
    sampling = request.sampling
    parts = [f"prompt {len(request.prompt)} tokens, max {sampling.max_tokens}"]
    parts += [
        f"{name} {getattr(sampling, name):g}" for name in ("min_tokens", "temperature", "seed") if getattr(sampling, name)
    ]
    parts += [f"n {sampling.n}"] if sampling.n != 1 else []
    parts += [f"{name} {getattr(request, name)}" for name in ("priority", "tenant", "cache_salt") if getattr(request, name)]
    parts += [f"deadline {request.deadline_s:g} s"] if request.deadline_s is not None else []
    parts += [f"adapter {request.adapter.name} v{request.adapter.version}"] if request.adapter else []
    parts += [f"media {item.digest} at {item.start}..{item.start + item.length - 1}" for item in request.media]
    return ", ".join(parts)


def _add(op: Op) -> tuple[str, str]:
    return (f"add {op.request.request_id}", describe_request(op.request)) if op.request else ("add", "nothing")


def _fences(op: Op) -> tuple[str, str]:
    return ("hold fences", "no plan settles") if op.on else ("release fences", "plans settle again")


def _memory(op: Op) -> tuple[str, str]:
    if op.k < 1:
        return "grant memory", "the device refuses no allocation"
    return f"refuse memory {op.k}", f"allocation number {op.k} from now on{', and every later one' if op.on else ''}"


def _pieces(op: Op) -> tuple[str, str]:
    if op.k < 1:
        return "join memory", "free memory lies in one piece"
    return f"fragment memory {op.k}", f"free memory lies in pieces of {op.k} words"


def _slowly(op: Op, verb: str, end: str) -> tuple[str, str]:
    between = ", fences pass, and it is " if op.on else " and "
    return verb, f"the next step is reserved{between}{end}"


def _place(k: int) -> str:
    return "the oldest" if k == 0 else f"the oldest but {k}"


_WORDS: dict[OpKind, Callable[[Op], tuple[str, str]]] = {
    OpKind.ADD: _add,
    OpKind.ABORT: lambda op: (f"abort {op.request_id}", ""),
    OpKind.LOAD_ADAPTER: lambda op: (f"load adapter {op.request_id} v{op.k}", "older versions take no more requests"),
    OpKind.UNLOAD_ADAPTER: lambda op: (f"unload adapter {op.request_id} v{op.k}", "it takes no more requests"),
    OpKind.STEP: lambda _op: ("step", "plan, execute, commit, deliver"),
    OpKind.PLAN: lambda op: _slowly(op, "plan", "launched"),
    OpKind.LAND: lambda op: (f"land {op.k}", f"the result of {_place(op.k)} plan in flight arrives"),
    OpKind.LAND_AGAIN: lambda op: (f"land again {op.k}", "a result that had its chance arrives"),
    OpKind.ABANDON: lambda op: (f"abandon {op.k}", f"{_place(op.k)} plan and later ones are lost"),
    OpKind.ROLLBACK: lambda op: _slowly(op, "rollback", "undone"),
    OpKind.REFUSE_BLOCK: lambda op: (f"refuse block {op.k}", f"block number {op.k} taken from now on"),
    OpKind.REFUSE_MEMORY: _memory,
    OpKind.FRAGMENT_MEMORY: _pieces,
    OpKind.SICK_ROW: lambda op: (f"sick row {op.k}", "this row of the newest plan in flight comes to no number"),
    OpKind.STUCK_ROW: lambda op: (f"stuck row {op.k}", "this row of the newest plan in flight asks for what can not be done"),
    OpKind.SPOIL: lambda op: (
        f"spoil {op.request_id or 'the last'} at {op.k}",
        f"the slot of that position holds {'a wrong number' if op.on else 'no number'}",
    ),
    OpKind.HOLD_FENCES: _fences,
    OpKind.ADVANCE: lambda op: (f"advance {op.seconds:g} s", "the clock moves"),
    OpKind.DRAIN: lambda _op: ("drain", "faults healed, everything runs to its end"),
}
