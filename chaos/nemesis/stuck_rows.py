"""One row of a step asks for what can not be done (a grammar leaves no token, media can not be encoded): it ends alone."""

from __future__ import annotations

from typing import Final

from chaos.faults import FaultKind
from chaos.nemesis.base import Nemesis, befalls_a_row
from properties.op import OpKind

NEMESIS: Final = Nemesis(
    FaultKind.STUCK_ROWS,
    seam="Launch.result: RunnerError.rows, without distrusts",
    heals="at once: the rows beside it are planned again",
    observed="that request alone ends with an error that says so; the prefix that it shared with others is found as before",
    watched_by=("KV-15", "SC-12", "SC-7", "SE-2", "KV-12", "SC-5"),
    strike=befalls_a_row(OpKind.STUCK_ROW),
)
