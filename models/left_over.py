"""What an engine still keeps of requests that have all ended, looked for in everything that it holds on to (SC-11).

Owns the walk over a target's objects, and which of them live no longer than a request or a plan. It knows no attribute by name:
a table that nobody thought of is seen as well. Never: what a snapshot shows, which is `properties.invariants.scheduler_life`.
"""

from __future__ import annotations

import gc
from collections import OrderedDict, deque
from enum import Enum
from itertools import pairwise
from typing import Final

from engine_under_test.adapters.base import Target
from engine_under_test.book import LiveRequest
from engine_under_test.flights import InFlight
from engine_under_test.kv.record import BlockTable, Record
from engine_under_test.sequence import Sequence
from engine_under_test.types import Plan, PlannedStep, Request, Reservation, StepResult
from properties.invariants.predicate import violation
from properties.verdict import Violation

_SHORT_LIVED: Final = frozenset(
    {LiveRequest, InFlight, BlockTable, Record, Sequence, Plan, PlannedStep, Request, Reservation, StepResult}
)
_CONTAINERS: Final = frozenset({dict, list, tuple, set, frozenset, deque, OrderedDict})
_OURS: Final = "engine_under_test"


def left_over(target: Target) -> Violation | None:
    """The first thing of a request or a plan that the target still reaches, with the way to it. For targets at rest."""
    seen = {id(target)}
    ways: list[tuple[object, tuple[object, ...]]] = [(target, ())]
    for holder, way in ways:  # which grows meanwhile
        for child in gc.get_referents(holder):
            kind = type(child)
            if id(child) in seen or not (kind in _CONTAINERS or _is_walked(kind)):
                continue
            seen.add(id(child))
            if kind in _SHORT_LIVED:
                found = f"{kind.__name__} in {_told((*way, holder, child))}"
                return violation("SC-11", "what the target keeps behind a drain", found, "nothing of any request or plan")
            ways.append((child, (*way, holder)))
    return None


def _is_walked(kind: type) -> bool:
    """Objects of the engine: not those of whoever watches it, whose business it is what they remember."""
    return kind.__module__.startswith(_OURS) and not issubclass(kind, Enum | type)


def _told(way: tuple[object, ...]) -> str:
    """The way by the names of attributes: "Engine._in_flight, Flights._early"."""
    names = [
        f"{type(holder).__name__}.{name}" for holder, child in pairwise(way) if (name := _name_of(holder, child)) is not None
    ]
    return ", ".join(names) or type(way[0]).__name__


def _name_of(holder: object, child: object) -> str | None:
    if type(holder) in _CONTAINERS:
        return None
    slots = [name for kind in type(holder).__mro__ for name in getattr(kind, "__slots__", ())]
    return next((name for name in (*slots, *getattr(holder, "__dict__", ())) if getattr(holder, name, None) is child), None)
