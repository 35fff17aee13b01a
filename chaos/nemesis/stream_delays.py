"""Operations of the device start late, each by its own draw, and the host learns late of their end."""

from __future__ import annotations

from typing import Final

from chaos.faults import FaultKind
from chaos.nemesis.base import Nemesis

NEMESIS: Final = Nemesis(
    FaultKind.STREAM_DELAYS,
    seam="Device: when the head of each stream runs",
    heals="with the storm: whoever waits is served",
    observed="nothing: the same tokens",
    watched_by=("AS-1", "AS-2", "AS-5", "KV-3", "KV-10", "SE-1"),
)
