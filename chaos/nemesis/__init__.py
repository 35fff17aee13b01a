"""Every kind of fault, one file each, with its heal: as operations, and in the words of docs/faults.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.faults import FaultKind
from chaos.nemesis import (
    aborts,
    cache_resets,
    held_fences,
    lost_plans,
    priorities,
    refused_blocks,
    refused_memory,
    restarts,
    rollbacks,
    stale_results,
    stream_delays,
)
from chaos.nemesis.base import Nemesis

__all__ = ["NEMESES", "Nemesis"]

_ALL = (
    stream_delays.NEMESIS,
    priorities.NEMESIS,
    held_fences.NEMESIS,
    refused_blocks.NEMESIS,
    refused_memory.NEMESIS,
    lost_plans.NEMESIS,
    stale_results.NEMESIS,
    cache_resets.NEMESIS,
    restarts.NEMESIS,
    aborts.NEMESIS,
    rollbacks.NEMESIS,
)
NEMESES: Final[Mapping[FaultKind, Nemesis]] = {nemesis.kind: nemesis for nemesis in _ALL}
