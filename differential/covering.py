"""Which combinations of what an engine can do are run: every two values of two factors together in some row.

Owns the factors and the array, which a pairwise library makes (allpairspy). Never: what a row is run on (`covered.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import NamedTuple

from allpairspy import AllPairs


class Row(NamedTuple):
    """One combination. Values are words, as a report says them."""

    cache: str
    chunks: str
    batch: str
    preemption: str
    depth: str
    fork: str
    speculation: str
    options: str
    grammar: str
    adapter: str
    ranks: str


REMOTE = "one runner before a remote pool"
FACTORS: Mapping[str, tuple[str, ...]] = {
    "cache": ("no cache", "cached"),
    "chunks": ("whole prompts", "chunks"),
    "batch": ("alone", "batch of 8"),
    "preemption": ("undisturbed", "preempted"),
    "depth": ("depth 0", "depth 1", "depth 2"),
    "fork": ("one choice", "three choices"),
    "speculation": ("no drafts", "prompt lookup", "scripted drafts", "drawn drafts"),
    "options": ("greedy", "sampled", "filtered", "penalised"),
    "grammar": ("free", "choices", "a repetition"),
    "adapter": ("no adapter", "one adapter", "two adapters"),
    "ranks": ("one runner", REMOTE, "1 rank", "2 ranks", "4 ranks"),
}
MOST_RANKS = 4


def array(most_ranks: int = MOST_RANKS) -> list[Row]:
    """Rows that hold every pair; of groups of ranks those that are no larger. The library chooses the same ones each time."""
    return [Row(*row) for row in AllPairs([list(values) for values in _factors(most_ranks).values()])]


def pairs(most_ranks: int = MOST_RANKS) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """Every two values of two factors, each with its factor's name."""
    for (one, its), (other, others) in combinations(_factors(most_ranks).items(), 2):
        for value, other_value in product(its, others):
            yield (one, value), (other, other_value)


def uncovered(rows: list[Row], most_ranks: int = MOST_RANKS) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """The pairs that no row holds."""
    held = {pair for row in rows for pair in combinations(row._asdict().items(), 2)}
    return [pair for pair in pairs(most_ranks) if pair not in held]


def ranks_of(value: str) -> int:
    """How many ranks a value of that factor means; 0 for a runner in the engine's own process."""
    return 0 if value.startswith("one runner") else int(value[0])


def _factors(most_ranks: int) -> Mapping[str, tuple[str, ...]]:
    return {**FACTORS, "ranks": tuple(value for value in FACTORS["ranks"] if ranks_of(value) <= most_ranks)}
