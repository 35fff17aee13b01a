"""The one vocabulary of operations: what a machine, a walk, a storm and a replay file are made of.

An op is a value: JSON in, JSON out. Ops are *total*: one that does not apply in the state it meets is recorded as a no-op.
Ops are *stable*: each carries its payload and names requests by identifier, plans by their place among those in flight, so
that removing an op leaves the meaning of the others as it was.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from engine_under_test.events import DeviceChoice
from engine_under_test.seams import Stream
from engine_under_test.types import Adapter, GrammarKind, GrammarSpec, LogprobsMode, Media, Request, SamplingParams


class OpKind(StrEnum):
    """What can be done to a target, and with which payload."""

    ADD = "add"  # request
    ABORT = "abort"  # request_id
    PLAN = "plan"  # the next plan is decided, reserved and launched; on: fences pass between the two
    LAND = "land"  # k: the k-th plan in flight (0 = oldest) is executed and its result handed in
    STEP = "step"  # poll, plan (if allowed), land the oldest, deliver: one synchronous iteration
    POLL = "poll"  # fences and transfers advance
    HOLD_FENCES = "hold_fences"  # on: until released by off, `poll` settles nothing
    DELIVER = "deliver"  # outputs are handed to the users
    ADVANCE = "advance"  # seconds
    ROLLBACK = "rollback"  # reserve the next plan and roll it back; on: fences pass between the two
    REFUSE_BLOCK = "refuse_block"  # k: the k-th block taken from now on is refused, once
    ABANDON = "abandon"  # k: the k-th plan in flight is lost, and every later one; on: whatever did not run yet never will
    LAND_AGAIN = "land_again"  # k: a result that was handed in or abandoned before (0 = latest) is handed in (again)
    REFUSE_MEMORY = "refuse_memory"  # k: the k-th allocation from now on is refused, once; on: and all later ones
    FRAGMENT_MEMORY = "fragment_memory"  # k: free memory lies in pieces of k words, none larger; 0: in one piece again
    SICK_ROW = "sick_row"  # k: the k-th row of the newest plan in flight comes to no number: it alone is to blame
    STUCK_ROW = "stuck_row"  # k: likewise, it asks for what can not be done: nothing that it read is to blame
    SPOIL = "spoil"  # request_id (none: who runs last), k: the slot of its k-th position holds no number; on: a wrong one
    LINK = "link"  # k: what befalls the link to the remote pool, by its place in `types.LinkFault`; 0 heals it
    LOAD_ADAPTER = "load_adapter"  # request_id: the name, k: the version of the adapter that requests may name from now on
    UNLOAD_ADAPTER = "unload_adapter"  # request_id, k: likewise, that no request may name any more
    RESET_CACHE = "reset_cache"
    RESTART = "restart"  # on: the memory keeps its content
    DRAIN = "drain"  # faults healed, everything runs to its end: liveness and quiescence are checked


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. Only the columns that its kind names have a meaning."""

    kind: OpKind
    request: Request | None = None
    request_id: str = ""
    k: int = 0
    on: bool = False
    seconds: float = 0.0
    choices: tuple[DeviceChoice, ...] = ()  # with any kind: when a simulated device runs what this op puts on its streams

    def to_json(self) -> dict[str, Any]:
        """A JSON object without the columns that stand at their defaults."""
        found: dict[str, Any] = {"op": self.kind.value}
        if self.request is not None:
            found["request"] = _without_defaults(self.request)
        for name in ("request_id", "k", "on", "seconds"):
            value = getattr(self, name)
            if value != getattr(_DEFAULT, name):
                found[name] = value
        if self.choices:
            found["choices"] = [list(choice) for choice in self.choices]
        return found

    @staticmethod
    def from_json(data: dict[str, Any]) -> Op:
        """The inverse of `to_json`. Raises ValueError, KeyError or TypeError on anything that is not an op."""
        known = {"op", "request", "request_id", "k", "on", "seconds", "choices"}
        if unknown := set(data) - known:
            raise ValueError(f"an op has the fields {sorted(known)}, found {sorted(unknown)}")
        request = _request_from_json(data["request"]) if "request" in data else None
        return Op(
            OpKind(data["op"]),
            request=request,
            request_id=_typed(data, "request_id", str, ""),
            k=_typed(data, "k", int, 0),
            on=_typed(data, "on", bool, False),
            seconds=_seconds(data.get("seconds", 0.0)),
            choices=tuple(_choice_from_json(choice) for choice in data.get("choices", ())),
        )


_DEFAULT = Op(OpKind.POLL)
_MOST_SECONDS = 1e9


def _typed(data: dict[str, Any], name: str, expected: type, default: Any) -> Any:
    value = data.get(name, default)
    if type(value) is not expected:
        raise TypeError(f"{name} must be of type {expected.__name__}, found {value!r}")
    return value


def _seconds(value: Any) -> float:
    """Time passes forward, and ends."""
    if type(value) not in (int, float) or not 0 <= value <= _MOST_SECONDS:
        raise ValueError(f"seconds must be a number from 0 to {_MOST_SECONDS:g}, found {value!r}")
    return float(value)


def _without_defaults(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for column in dataclasses.fields(value):
        item = getattr(value, column.name)
        if column.default is not dataclasses.MISSING and item == column.default:
            continue
        found[column.name] = _to_plain(item)
    return found


def _to_plain(item: Any) -> Any:
    if dataclasses.is_dataclass(item):
        return _without_defaults(item)
    return [_to_plain(each) for each in item] if isinstance(item, tuple) else item


def _choice_from_json(data: Any) -> DeviceChoice:
    stream, *numbers = data
    if stream not in list(Stream):
        raise ValueError(f"a choice is of a stream ({', '.join(Stream)}), found {stream!r}")
    if type(stream) is not str or len(numbers) != 3 or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError(f"a choice is [stream, k-th, delay, late] with numbers >= 0, found {data!r}")
    return DeviceChoice(stream, *numbers)


def _sampling_from_json(data: dict[str, Any]) -> SamplingParams:
    fields: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in data.items()}
    for name in ("bad_words", "logit_bias"):
        fields[name] = tuple(map(tuple, fields.get(name, ())))
    if "logprobs_mode" in fields:
        fields["logprobs_mode"] = LogprobsMode(fields["logprobs_mode"])
    if "grammar" in fields:
        kind, sources = fields["grammar"]["kind"], fields["grammar"]["sources"]
        fields["grammar"] = GrammarSpec(GrammarKind(kind), tuple(sources))
    return SamplingParams(**fields)


def _request_from_json(data: dict[str, Any]) -> Request:
    fields = dict(data)
    fields["prompt"] = tuple(fields["prompt"])
    fields["sampling"] = _sampling_from_json(fields.get("sampling", {}))
    if fields.get("adapter") is not None:
        fields["adapter"] = Adapter(**fields["adapter"])
    fields["media"] = tuple(Media(**item) for item in fields.get("media", ()))
    return Request(**fields)
