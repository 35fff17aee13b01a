"""Every kind of fault, one file each, with its heal: as operations, and in the words of docs/faults.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from chaos.faults import Kind
from chaos.nemesis import (
    aborts,
    bandwidth,
    cache_resets,
    engine_stalled,
    fragmented_memory,
    held_fences,
    latency,
    limit_data,
    link_cuts,
    link_stalls,
    lost_messages,
    lost_plans,
    priorities,
    proxy_down,
    refused_blocks,
    refused_memory,
    repeated_messages,
    reset_peer,
    restarts,
    rollbacks,
    sick_rows,
    slicer,
    slow_close,
    spoiled_slots,
    stale_results,
    store_deaths,
    store_frozen,
    store_killed,
    store_rot,
    stream_delays,
    stuck_rows,
    timeout,
)
from chaos.nemesis.base import Nemesis
from chaos.nemesis.connection_base import ConnectionNemesis

__all__ = ["CONNECTION_NEMESES", "NEMESES", "ConnectionNemesis", "Nemesis"]

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
    fragmented_memory.NEMESIS,
    sick_rows.NEMESIS,
    spoiled_slots.NEMESIS,
    link_stalls.NEMESIS,
    link_cuts.NEMESIS,
    lost_messages.NEMESIS,
    repeated_messages.NEMESIS,
    store_deaths.NEMESIS,
    store_rot.NEMESIS,
    stuck_rows.NEMESIS,
)
NEMESES: Final[Mapping[Kind, Nemesis]] = {nemesis.kind: nemesis for nemesis in _ALL}

_OF_CONNECTIONS = (
    latency.NEMESIS,
    bandwidth.NEMESIS,
    slow_close.NEMESIS,
    timeout.NEMESIS,
    reset_peer.NEMESIS,
    slicer.NEMESIS,
    limit_data.NEMESIS,
    proxy_down.NEMESIS,
    store_killed.NEMESIS,
    store_frozen.NEMESIS,
    engine_stalled.NEMESIS,
)
CONNECTION_NEMESES: Final[Mapping[Kind, ConnectionNemesis]] = {nemesis.kind: nemesis for nemesis in _OF_CONNECTIONS}
