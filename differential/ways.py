"""Which way a runner went, seen from outside: the calls of each back end of attention, each forward pass, packed products.

Owns the counting, and what a setting says should have been counted. So a switch that leads nowhere, or elsewhere, is a trial
that did not run what it names: unknown, not valid. Never a judgement of what was computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from differential.setting import World
from engine_under_test.execution.attention import Eager, PagedTorch, PagedTriton
from engine_under_test.execution.forward import TiledForward, WholeForward
from engine_under_test.execution.graphs import Rerun
from engine_under_test.execution.products import PackedProduct
from engine_under_test.execution.tiles import FixedTiles

ALLOCATIONS = "allocations"  # that the memory was asked for
_ATTENTIONS: Mapping[str, type[Any]] = {
    "eager": Eager,
    "paged-torch": PagedTorch,
    "paged-triton": PagedTriton,
    "fixed-tiles": FixedTiles,
}
_BUCKETED = "replays of buckets"
_FORWARDS: Mapping[str, type[Any]] = {"products in tiles": TiledForward, "products over the whole batch": WholeForward}
_PACKED = "packed products"


@contextmanager
def counted(reached: Counter[str]) -> Iterator[None]:
    """While the block runs, counts in `reached` how often each way was gone, packed products also by their rows."""

    def count_rows(_product: object, x: torch.Tensor, *_: object) -> None:
        reached[_PACKED] += 1
        reached[f"{_PACKED} of {len(x)} rows"] += 1

    with ExitStack() as stack:
        for name, owner in _ATTENTIONS.items():
            _spy(stack, owner, "attend", _counting(reached, f"attention {name}"))
        for name, owner in _FORWARDS.items():
            _spy(stack, owner, "__call__", _counting(reached, name))
        _spy(stack, PackedProduct, "__call__", count_rows)
        _spy(stack, Rerun, "replay", _counting(reached, _BUCKETED))
        yield


def strayed(world: World, reached: Mapping[str, int], description: str) -> tuple[str, ...]:
    """What a run did not do though its setting says so, or did though its setting says nothing of it; in words."""
    refused = sum(count for name, count in reached.items() if name.endswith(" refused"))
    wanted = _wanted(world) if reached.get("steps", 0) > refused else ()  # who gets no memory computes nothing
    found = [f"{name} at least once, found never" for name in wanted if not reached.get(name)]
    ways = (*(f"attention {each}" for each in _ATTENTIONS), *_FORWARDS, _PACKED, _BUCKETED)
    strange = [name for name in ways if name not in wanted and reached.get(name)]
    found += [f"nothing by {name}, found it {reached[name]} times" for name in strange]
    words = _described(world)
    found += [f"a runner that says {word!r}, found {description!r}" for word in words if word not in description]
    layers = 1 if world.model.shape is None else world.model.shape.num_layers
    asked, due = reached.get(ALLOCATIONS, 0), reached.get("steps", 0) * layers
    if asked < due and not (world.setting.refuses or world.setting.buckets):  # a recording has its memory
        found.append(f"the memory asked at least {due} times, once a step and layer, found {asked}")
    return tuple(found)


def _attention_of(world: World) -> str:
    """What the setting names, or what a CPU has."""
    return "fixed-tiles" if world.setting.is_batch_invariant else world.setting.attention or "paged-torch"


def _packs(world: World) -> bool:
    return world.setting.packs_weights and world.model.dtype == "float32" and torch._C._has_mkldnn


def _wanted(world: World) -> tuple[str, ...]:
    forward = "products in tiles" if world.setting.is_batch_invariant else "products over the whole batch"
    buckets = [_BUCKETED] if world.setting.buckets else []
    return f"attention {_attention_of(world)}", forward, *([_PACKED] if _packs(world) else []), *buckets


def _described(world: World) -> tuple[str, ...]:
    return f"attention {_attention_of(world)} on cpu", world.model.dtype, *(["packed weights"] if _packs(world) else [])


def _counting(reached: Counter[str], name: str) -> Callable[..., None]:
    def count(*_: object) -> None:
        reached[name] += 1

    return count


def _spy(stack: ExitStack, owner: type[Any], method: str, told: Callable[..., None]) -> None:
    """`told` hears each call of the method until the stack unwinds."""
    original = getattr(owner, method)

    def heard(*arguments: Any) -> Any:
        told(*arguments)
        return original(*arguments)

    setattr(owner, method, heard)
    stack.callback(setattr, owner, method, original)
