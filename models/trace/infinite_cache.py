"""The second oracle of the trace: what a prefix cache that never forgets would have found.

Counts from the trace's own identifiers; knows no tokens, no target and no model. The count is an upper bound of what any
prefix cache can find when requests are first admitted in the order of their arrival: it assumes that the prompt of each
earlier request has been computed and kept. A hit ends at the first block that no earlier prompt filled, and leaves at least
the last token to compute (KV-13: at most ⌊(len - 1) / block⌋ blocks).

Generated tokens add nothing to it: they would have to fill up a partly filled block of the trace to exactly the content of
another block, but blocks with different identifiers differ from their first tokens on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from models.trace.requests import TRACE_BLOCK, TraceRequest


@dataclass(frozen=True, slots=True)
class InfiniteCacheCount:
    """For each request in order of arrival, how many blocks of its prompt a cache without end would have found."""

    hit_blocks: tuple[int, ...]

    def hit_tokens(self, block_size: int) -> int:
        return block_size * sum(self.hit_blocks)


def count(trace: Iterable[TraceRequest]) -> InfiniteCacheCount:
    filled: set[int] = set()
    hits = []
    for request in trace:
        hits.append(_num_found(request.hash_ids[: (request.input_len - 1) // TRACE_BLOCK], filled))
        filled.update(request.hash_ids[: request.input_len // TRACE_BLOCK])
    return InfiniteCacheCount(tuple(hits))


def _num_found(hash_ids: tuple[int, ...], filled: set[int]) -> int:
    return next((index for index, each in enumerate(hash_ids) if each not in filled), len(hash_ids))
