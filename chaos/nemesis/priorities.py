"""Streams and host run by priorities that change at a few random places (PCT): one of them races ahead or starves."""

from __future__ import annotations

from typing import Final

from chaos.faults import FaultKind
from chaos.nemesis.base import Nemesis

NEMESIS: Final = Nemesis(
    FaultKind.PRIORITIES,
    seam="Device: which stream runs next",
    heals="with the storm: whoever waits is served",
    observed="nothing: the same tokens",
    watched_by=("AS-1", "AS-2", "AS-5", "KV-3", "KV-10", "SE-1"),
)
