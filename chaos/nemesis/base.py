"""What a nemesis is: the operations that a fault is made of, those that heal it, and what people may expect of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos.faults import Fault, FaultKind
from engine_under_test.caps import LinkFault
from properties.op import Op, OpKind

Ops = tuple[Op, ...]


def nothing(_fault: Fault) -> Ops:
    """No operation."""
    return ()


def befalls_a_row(kind: OpKind) -> Callable[[Fault], Ops]:
    """One row of a plan that is made for it; `on`: another plan is launched behind it, before anybody knows."""
    return lambda fault: (Op(OpKind.PLAN), Op(kind, k=fault.k % 3), *((Op(OpKind.PLAN),) if fault.on else ()))


def befall(fault: LinkFault) -> Op:
    """The link to the remote pool, or the pool, fails in this way; or is healed."""
    return Op(OpKind.LINK, k=tuple(LinkFault).index(fault))


@dataclass(frozen=True, slots=True)
class Nemesis:
    """One kind of fault. The words become docs/faults.md.

    ``seam``: where it strikes. ``heals``: how it ends. ``observed``: what users may see of it, beyond being slower.
    ``watched_by``: the invariants that are most likely to notice a target that takes it badly. ``modes``: where it is real.
    """

    kind: FaultKind
    seam: str
    heals: str
    observed: str
    watched_by: tuple[str, ...]
    strike: Callable[[Fault], Ops] = nothing
    heal: Callable[[Fault], Ops] = nothing
    modes: tuple[str, ...] = ("simulated",)
