"""The portable machine in the worlds of two unlike targets: a radix tree, and our engine without overlap.

Adds worlds to the portable machine's rules and nothing else.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from models.machines.portable import PortableMachine
from models.strategies import radix_specs, world_specs


class RadixMachine(PortableMachine):
    """Single-token pages, path locks, eviction on demand, no preemption."""

    @staticmethod
    def world_specs() -> st.SearchStrategy[dict[str, Any]]:
        return radix_specs()


class PortableAssayMachine(PortableMachine):
    """Our engine behind the same verbs, at depth 0."""

    @staticmethod
    def world_specs() -> st.SearchStrategy[dict[str, Any]]:
        return world_specs(max_plans_in_flight=1)
