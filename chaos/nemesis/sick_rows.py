"""One row of a step comes to no number (NaN among its logits): its request ends, and its batch-mates run again without it."""

from __future__ import annotations

from typing import Final

from chaos.faults import FaultKind
from chaos.nemesis.base import Nemesis, befalls_a_row
from properties.op import OpKind

NEMESIS: Final = Nemesis(
    FaultKind.SICK_ROWS,
    seam="Launch.result: RunnerError.rows",
    heals="at once: the rows beside it are planned again",
    observed="that request alone ends with an error that says so",
    watched_by=("SC-12", "SC-7", "SE-2", "KV-12", "SC-5"),
    strike=befalls_a_row(OpKind.SICK_ROW),
)
