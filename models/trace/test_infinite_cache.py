"""The infinite cache, counted on traces small enough to count by hand, and against a count over tokens."""

from __future__ import annotations

import pytest

from models.trace.infinite_cache import count
from models.trace.requests import MOONCAKE_SLICE, Scale, TraceRequest, load_trace


def _trace(*requests: tuple[int, tuple[int, ...]]) -> tuple[TraceRequest, ...]:
    return tuple(TraceRequest(0, input_len, 1, ids) for input_len, ids in requests)


@pytest.mark.parametrize(
    ("trace", "hit_blocks"),
    [
        (_trace((1024, (0, 1))), (0,)),
        (_trace((1100, (0, 1, 2)), (1100, (0, 1, 2))), (0, 2)),
        (_trace((1024, (0, 1)), (1024, (0, 1))), (0, 1)),
        (_trace((1024, (0, 1)), (1025, (0, 1, 2))), (0, 2)),
        (_trace((1000, (0, 1)), (1600, (0, 1, 2, 3))), (0, 1)),
        (_trace((1600, (0, 1, 2, 3)), (1600, (0, 4, 5, 6))), (0, 1)),
        (_trace((512, (0,)), (512, (1,)), (1536, (1, 2, 3)), (1536, (0, 4, 5))), (0, 0, 1, 1)),
    ],
    ids=[
        "the first request finds nothing",
        "a repeated prompt finds its full blocks",
        "a repeated prompt of whole blocks leaves the last one to compute",
        "one token more and all of them are found",
        "a block that was partly filled is not found",
        "a hit ends where prompts part",
        "blocks of all earlier prompts are kept",
    ],
)
def test_an_infinite_cache(trace: tuple[TraceRequest, ...], hit_blocks: tuple[int, ...]) -> None:
    assert count(trace).hit_blocks == hit_blocks


def test_the_count_over_identifiers_equals_a_count_over_the_scaled_tokens() -> None:
    trace = load_trace(MOONCAKE_SLICE)
    known: set[tuple[int, ...]] = set()
    hits = []
    for request in Scale(4, 256, 8).requests(trace):
        prefixes = [request.prompt[:end] for end in range(4, len(request.prompt) + 1, 4)]
        hittable = [prefix for prefix in prefixes if len(prefix) < len(request.prompt)]
        hits.append(next((i for i, prefix in enumerate(hittable) if prefix not in known), len(hittable)))
        known.update(prefixes)
    assert count(trace).hit_blocks == tuple(hits)
    assert sum(hits) > 4000
