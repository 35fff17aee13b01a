"""The k-th allocation is refused, on the device or the host, once or until memory is back: its step or transfer is left out."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _refuse(fault: Fault) -> Ops:
    return (Op(OpKind.REFUSE_MEMORY, k=fault.k + 1, on=fault.on),)


def _grant(_fault: Fault) -> Ops:
    return (Op(OpKind.REFUSE_MEMORY, k=0),)


NEMESIS: Final = Nemesis(
    FaultKind.REFUSED_MEMORY,
    seam="Memory.admit",
    heals="after one refusal, or when the time is over",
    observed="a request whose step is refused twice ends with an error that says so; nothing of a transfer",
    watched_by=("KV-12", "KV-16", "SC-5", "SE-2"),
    strike=_refuse,
    heal=_grant,
)
