"""The scheduler alone: real decisions, each asked for twice, over plain memory (`models.targets.scheduler_alone`).

Adds worlds to the portable machine's rules and nothing else.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from models.machines.portable import PortableMachine
from models.strategies import world_specs


class SchedulerMachine(PortableMachine):
    """Orders, budgets, switches and depths of every kind."""

    @staticmethod
    def world_specs() -> st.SearchStrategy[dict[str, Any]]:
        return world_specs(target="scheduler")
