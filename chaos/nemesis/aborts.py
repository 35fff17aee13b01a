"""A user leaves while the plan that computes for him is on its way."""

from __future__ import annotations

from typing import Final

from chaos.faults import Fault, FaultKind
from chaos.nemesis.base import Nemesis, Ops
from properties.op import Op, OpKind


def _leave(fault: Fault) -> Ops:
    return (Op(OpKind.PLAN), *(Op(OpKind.ABORT, request_id=f"r{number}") for number in _names(fault)))


def _names(fault: Fault) -> range:
    """Names of the workload are numbered as they come, about one in two iterations."""
    newest = 1 + fault.at // 2
    return range(max(1, newest - fault.k - 1), newest + 1)


NEMESIS: Final = Nemesis(
    FaultKind.ABORTS,
    seam="abort",
    heals="at once",
    observed="the requests that were aborted end with that reason",
    watched_by=("SC-6", "AS-3", "KV-10", "SC-5"),
    strike=_leave,
)
