"""Media for trials: items whose embeddings follow from their digest, and token sequences in which they are spelled out.

Owns the encoder that engine and oracles are handed alike, and how a media position is written into a token sequence for an
oracle: as a negative number that says which item and which of its embeddings, by itself. So an oracle needs to know nothing of
requests, and two sequences are equal only if they are so in their media too. Never which items a request has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from engine_under_test.errors import BadInput
from engine_under_test.types import Request

_OFFSETS = 1 << 16
_SCALE = 0.5


class MadeEncoder:
    """Normal numbers drawn from the digest, a hexadecimal number. Of two lengths of one item the shorter is its beginning."""

    def __init__(self, hidden_size: int, dtype: torch.dtype) -> None:
        self._hidden_size = hidden_size
        self._dtype = dtype

    def encode(self, digest: str, length: int) -> torch.Tensor:
        """See `engine_under_test.execution.media.MediaEncoder`."""
        return torch.stack([self.row(digest, offset) for offset in range(length)])

    def row(self, digest: str, offset: int) -> torch.Tensor:
        """[hidden]: one embedding of an item."""
        return _row(_number(digest), offset, self._hidden_size).to(self._dtype)

    def spelled(self, token: int) -> torch.Tensor:
        """[hidden]: what a negative number of `spell_out` stands for."""
        number, offset = divmod(-token - 1, _OFFSETS)
        return _row(number, offset, self._hidden_size).to(self._dtype)


@lru_cache(maxsize=4096)
def _row(number: int, offset: int, hidden_size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed((number * _OFFSETS + offset) % 2**63)
    return torch.randn(hidden_size, generator=generator) * _SCALE


def _number(digest: str) -> int:
    try:
        return int(digest, 16)
    except ValueError as error:
        raise BadInput(f"a digest of a trial's media is a hexadecimal number, found {digest!r}; name it so") from error


def spell_out(request: Request, tokens: Sequence[int]) -> tuple[int, ...]:
    """The tokens of a sequence that begins with a request's prompt, its media positions as negative numbers."""
    if not request.media:
        return tuple(tokens)
    found = list(tokens)
    for item in request.media:
        for position in range(item.start, min(item.start + item.length, len(found))):
            found[position] = -1 - (_number(item.digest) * _OFFSETS + position - item.start)
    return tuple(found)
