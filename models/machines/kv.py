"""The KV transaction alone under every operation that it has a part in: `models.targets.kv_alone`.

Adds worlds to the engine machine's rules and nothing else.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from models.machines.engine import EngineMachine
from models.strategies import world_specs


class KvMachine(EngineMachine):
    """Erratic plans over real KV memory, also under hashes that collide."""

    @staticmethod
    def world_specs() -> st.SearchStrategy[dict[str, Any]]:
        return world_specs(target="kv", hashers=("blake2b", "blake2b", "two_bit", "constant"), switches=False)
