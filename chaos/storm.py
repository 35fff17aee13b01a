"""A storm as a value: a world, a workload, and the faults that strike it; all of it a pure function of a seed.

Owns how faults are woven into the workload. It never looks at a target.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from random import Random
from typing import Any

from chaos.faults import OF_THE_LINK, FaultKind, FaultPlan, draw_plan
from chaos.nemesis import NEMESES
from engine_under_test.errors import BadInput
from engine_under_test.execution.schedule import Chance, Chooser, Delays, Priorities
from models.compiled import IS_INSTALLED
from models.grammar_suite import with_grammars
from models.others import FAMILIES
from models.walk import (
    WalkShape,
    adapter_shape,
    large_shape,
    priority_shape,
    remote_shape,
    small_shape,
    speculating_shape,
    walk_ops,
)
from properties.op import Op, OpKind

NUM_OPS = 440  # of the workload: at least 150 steps of the engine
PCT_DEPTH = 3
PCT_STEPS = 2500  # of the device and of the host while something could run; a storm has fewer (a test says so)
_NEVER = 10**9

SHAPES: dict[str, WalkShape] = {
    "small": small_shape(),
    "small-deep": small_shape(1),
    "small-deeper": small_shape(2),
    "small-deep-two-bit": small_shape(1, hasher="two_bit"),
    "priority": priority_shape(),
    "large-deeper": large_shape(2, keeps_rows=True),
    "speculating": speculating_shape(),
    "speculating-deep": speculating_shape(1, width=4),
    "adapters-deep": adapter_shape(1),
    "adapters-one-slot": adapter_shape(2, num_slots=1),
}

REMOTE_SHAPES: dict[str, WalkShape] = {
    "remote": remote_shape(),
    "remote-deep": remote_shape(1),
    "remote-deeper": remote_shape(2),
    "remote-scarce": replace(remote_shape(1), remote_blocks=10),
}
GRAMMAR_SHAPES: dict[str, WalkShape] = {
    f"{label}-grammars": with_grammars(SHAPES[label])
    for label in ("small", "small-deep", "small-deeper", "large-deeper", "speculating", "speculating-deep", "adapters-deep")
}
_GRAMMARS_EVERY = 4  # storms, where the extra `grammar` is installed
_REMOTE_SHARE = 1 / 3  # of storms in which anything may happen
WITHOUT_LINK = tuple(kind for kind in FaultKind if kind not in OF_THE_LINK)

OUR_ENGINE = "assay"
KINDS_OF_OTHERS = (FaultKind.STREAM_DELAYS, FaultKind.PRIORITIES, FaultKind.STALE_RESULTS, FaultKind.ABORTS)


def shapes_of(engine: str) -> dict[str, WalkShape]:
    """The worlds of an engine. Of one written by others, those in which every request fits."""
    if engine == OUR_ENGINE:
        return {**SHAPES, **REMOTE_SHAPES, **GRAMMAR_SHAPES}
    if engine not in FAMILIES:
        raise BadInput(f"an engine is {OUR_ENGINE} or one of {sorted(FAMILIES)}, found {engine!r}; name one of them")
    return {f"{engine}-{family.label}": family.walk() for family in FAMILIES[engine] if not family.outgrows}


@dataclass(frozen=True, slots=True)
class Storm:
    """``shape``: a name in `shapes_of`. ``num_ops``: of the workload, without the faults and the drain."""

    seed: int
    shape: str
    plan: FaultPlan
    num_ops: int = NUM_OPS
    engine: str = OUR_ENGINE

    @property
    def title(self) -> str:
        """What this storm is, in one line that can be said again."""
        return f"{self.shape}#{self.seed:#x}: {self.plan.options}"

    def spec(self) -> dict[str, Any]:
        """How `models.build.world_from` builds its world."""
        return {**shapes_of(self.engine)[self.shape].spec(), "device": "streams"}

    def chooser(self) -> Chooser:
        """Who decides when operations of the device run."""
        if FaultKind.PRIORITIES in self.plan.active:
            return Priorities(self.seed, PCT_STEPS, PCT_DEPTH)
        return Chance(self.seed) if FaultKind.STREAM_DELAYS in self.plan.active else Delays()

    def ops(self) -> Iterator[Op]:
        """Workload and faults; then every fault is healed and everything runs to its end, twice, the second time with an
        empty cache."""
        shape = replace(shapes_of(self.engine)[self.shape], fault_rate=0.0, restart_rate=0.0, drain_every=_NEVER)
        strikes: dict[int, list[Op]] = {}
        for fault in self.plan.faults:
            nemesis = NEMESES[fault.kind]
            strikes.setdefault(fault.at, []).extend(nemesis.strike(fault))
            strikes.setdefault(fault.at + fault.length, []).extend(nemesis.heal(fault))
        for number, op in enumerate(islice(walk_ops(self.seed, shape), self.num_ops)):
            yield from strikes.get(number, ())
            yield op
        for fault in self.plan.faults:
            yield from NEMESES[fault.kind].heal(fault)
        yield from (Op(OpKind.DRAIN), Op(OpKind.RESET_CACHE), Op(OpKind.DRAIN))


def draw_storm(
    seed: int, kinds: Collection[FaultKind] = tuple(FaultKind), num_ops: int = NUM_OPS, engine: str = OUR_ENGINE
) -> Storm:
    """The storm of a seed: its world, then which faults it has at all, then when they strike. To an engine written by others
    happens only what its verbs allow, to a link only what there is one for."""
    if engine != OUR_ENGINE:
        shapes, allowed = list(shapes_of(engine)), [kind for kind in kinds if kind in KINDS_OF_OTHERS]
    elif Random(f"remote/{seed}").random() < _remote_share(kinds):
        shapes, allowed = list(REMOTE_SHAPES), list(kinds)
    else:
        has_grammars = seed % _GRAMMARS_EVERY == 1 and IS_INSTALLED
        shapes, allowed = list(GRAMMAR_SHAPES if has_grammars else SHAPES), [kind for kind in kinds if kind in WITHOUT_LINK]
    shape = Random(f"storm/{seed}").choice(shapes)
    return Storm(seed, shape, draw_plan(seed, num_ops, allowed), num_ops, engine)


def _remote_share(kinds: Collection[FaultKind]) -> float:
    """All storms, if faults of the link were asked for by name."""
    if all(kind in kinds for kind in FaultKind):
        return _REMOTE_SHARE
    return 1.0 if any(kind in OF_THE_LINK for kind in kinds) else 0.0
