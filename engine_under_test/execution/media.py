"""Media at their placeholder positions: an item's embeddings stand there in place of those of the placeholder tokens.

Owns: which rows of an item a step needs, and the items encoded last. Never: how an item is encoded (a `MediaEncoder` is handed
in), or whether two items are the same (a digest says so, and stands in every key of the prefix cache, with the offset; KV-8).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, Protocol

import torch

from engine_under_test.errors import RunnerError
from engine_under_test.types import Media

_ITEMS_KEPT = 64


class MediaEncoder(Protocol):
    """Whatever makes embeddings of an item: a vision tower, or a table of what one has made."""

    def encode(self, digest: str, length: int) -> torch.Tensor:
        """[length, hidden]: one embedding for each placeholder, the same each time."""


class MediaPart(NamedTuple):
    """Rows ``offset .. offset + num - 1`` of an item of ``length`` stand at ``place`` and on of the tokens of a batch, which
    are those of its row ``row``."""

    row: int
    place: int
    num: int
    digest: str
    offset: int
    length: int


def parts_of(media: Iterable[Media], row: int, begin: int, start: int, num_tokens: int) -> Iterator[MediaPart]:
    """What of these items stands at positions ``start .. start + num_tokens - 1`` of a row whose tokens begin at ``begin``."""
    for item in media:
        first, end = max(item.start, start), min(item.start + item.length, start + num_tokens)
        if first < end:
            yield MediaPart(row, begin + first - start, end - first, item.digest, first - item.start, item.length)


class MediaEmbeddings:
    """Lays embeddings of items over those of tokens. Keeps the items encoded last, since chunks and hits cut them."""

    def __init__(self, encoder: MediaEncoder, hidden_size: int, dtype: torch.dtype, device: torch.device) -> None:
        self._encoder = encoder
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._known: dict[tuple[str, int], torch.Tensor] = {}  # oldest first

    def lay_over(self, hidden: torch.Tensor, parts: Iterable[MediaPart]) -> torch.Tensor:
        """``hidden`` [n, hidden], changed in place. RunnerError, with the row to blame, if an item can not be encoded."""
        for part in parts:
            rows = self._encoded(part)
            hidden[part.place : part.place + part.num] = rows[part.offset : part.offset + part.num]
        return hidden

    def _encoded(self, part: MediaPart) -> torch.Tensor:
        key = part.digest, part.length
        found = self._known.pop(key, None)
        if found is None:
            found = self._encode(part)
        self._known[key] = found
        if len(self._known) > _ITEMS_KEPT:
            del self._known[next(iter(self._known))]
        return found

    def _encode(self, part: MediaPart) -> torch.Tensor:
        due = (part.length, self._hidden_size)
        try:
            found = self._encoder.encode(part.digest, part.length)
        except Exception as error:
            raise RunnerError(f"media {part.digest!r} can not be encoded: {error}; send another item", (part.row,)) from error
        if tuple(found.shape) != due:
            raise RunnerError(
                f"media {part.digest!r} has one embedding of {due[1]} numbers for each of its {due[0]} placeholders, found "
                f"{tuple(found.shape)}; correct the encoder",
                (part.row,),
            )
        return found.to(device=self._device, dtype=self._dtype)
