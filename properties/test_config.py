"""A configuration that can not work is refused before anything is built, in one sentence."""

from typing import Any

import pytest

from engine_under_test import Adapter, ConfigError, EngineConfig, Order

BAD: dict[str, dict[str, Any]] = {
    "no blocks": {"num_blocks": 0},
    "a word for a number": {"num_blocks": "x"},
    "half a block": {"num_blocks": 1.5},
    "a bool for a number": {"vocab_size": True},
    "fewer tokens than sequences": {"max_tokens_per_step": 3, "max_num_seqs": 4},
    "four plans in flight": {"max_plans_in_flight": 4},
    "no plan in flight": {"max_plans_in_flight": 0},
    "fewer than no overtakes": {"max_overtakes": -1},
    "an order by its name": {"order": "priority"},
    "an adapter without version": {"adapters": ("fr",)},
    "a version in words": {"adapters": (Adapter("fr", "one"),)},  # type: ignore[arg-type]  # wrong types are the point
    "a switch in words": {"prefix_cache": "no"},
    "a revision in numbers": {"model_revision": 1},
}


@pytest.mark.parametrize("fields", BAD.values(), ids=BAD.keys())
def test_it_is_refused_with_what_was_found(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="found"):
        EngineConfig(**fields)


def test_the_defaults_and_every_order_are_good() -> None:
    for order in Order:
        assert EngineConfig(order=order).num_blocks > 0
