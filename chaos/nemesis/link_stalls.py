"""Nothing arrives over the link to the remote pool for a while; sometimes for longer than a load may take."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops, befall
from engine_under_test.caps import LinkFault
from properties.op import Op, OpKind

_LONG_S = 5.0  # longer than a load may take


def _stall(_fault: Fault) -> Ops:
    return (befall(LinkFault.STALL),)


def _go_on(fault: Fault) -> Ops:
    """With ``on``: only after everybody who waited has given up."""
    late = (Op(OpKind.ADVANCE, seconds=_LONG_S), Op(OpKind.POLL)) if fault.on else ()
    return (*late, befall(LinkFault.NONE))


NEMESIS: Final = Nemesis(
    FaultKind.LINK_STALLS,
    seam="Transport",
    heals="what was under way arrives",
    observed="nothing: the same tokens",
    watched_by=("DI-3", "SC-7", "SC-11"),
    strike=_stall,
    heal=_go_on,
)
