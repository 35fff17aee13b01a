"""The arithmetic of the fingerprint model: docs/fingerprint.md from "Mixing" to "Next token".

Owns: what a cell is worth and which logits follow from a digest. Never: a store, a table, or a choice of token.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np
import numpy.typing as npt

from engine_under_test.types import Adapter, Media

Words = npt.NDArray[np.uint64]

POISON = np.uint64(0x7FF8DEADDEADDEAD)
_MASK = 2**64 - 1

# Zero-dimensional arrays, not scalars: a ufunc on few elements takes half the time with them.
_GAMMA, _FIRST, _SECOND, _30, _27, _31, _32, _11 = (
    np.array(word, dtype=np.uint64) for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 30, 27, 31, 32, 11)
)


def mix(words: Words) -> Words:
    """One SplitMix64 step (Steele, Lea, Flood, OOPSLA 2014): a bijection of 64 bits."""
    mixed = words + _GAMMA
    shifted = mixed >> _30
    mixed ^= shifted
    mixed *= _FIRST
    np.right_shift(mixed, _27, out=shifted)
    mixed ^= shifted
    mixed *= _SECOND
    np.right_shift(mixed, _31, out=shifted)
    mixed ^= shifted
    return mixed


def _h64(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


def _field(text: str) -> bytes:
    encoded = text.encode("utf-8", "surrogatepass")
    return len(encoded).to_bytes(4, "little") + encoded


@lru_cache(maxsize=1024)
def adapter_word(adapter: Adapter | None) -> int:
    """0 without an adapter; else a word of its name and version."""
    if adapter is None:
        return 0
    return _h64(b"assay/adapter/1" + _field(adapter.name) + adapter.version.to_bytes(8, "little", signed=True))


@lru_cache(maxsize=1024)
def _media_base(digest: str) -> int:
    return _h64(b"assay/media/1" + _field(digest))


def media_words(media: Sequence[Media], start: int, num_tokens: int) -> Words:
    """The media word at each of the positions start .. start + num_tokens - 1: digest and offset inside each item there."""
    words = np.zeros(num_tokens, dtype=np.uint64)
    for item in media:
        first, end = max(item.start, start), min(item.start + item.length, start + num_tokens)
        if first < end:
            offsets = np.arange(first - item.start, end - item.start, dtype=np.uint64)
            words[first - start : end - start] += mix(np.uint64(_media_base(item.digest)) + offsets)
    return words


def _mix_word(word: int) -> int:
    """`mix` of one word."""
    z = (word + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


@lru_cache(maxsize=65536)
def layer_one(position: int, token: int, adapter: int, media: int = 0) -> int:
    """`a` of one position, from its token and the words of its adapter and media."""
    return _mix_word((_mix_word(position << 32 | token) + adapter & _MASK) ^ media)


def layer_two(layer_one_word: int, running_sum: int) -> int:
    """`b` of one position, from its own `a` and the sum of `a` up to and including it, as read."""
    return _mix_word(layer_one_word ^ _mix_word(running_sum))


def digest_weights(num_positions: int) -> Words:
    """The odd multipliers (u, v) of the digest, [num_positions, 2]."""
    return mix(np.arange(2 * num_positions, dtype=np.uint64)).reshape(num_positions, 2) | np.uint64(1)


def logits(digests: Words, token_words: Words) -> npt.NDArray[np.float64]:
    """[rows, vocabulary], each in [0, 8), from digests [rows] and `mix` of each token [vocabulary]."""
    bits: npt.NDArray[np.float64] = (mix(digests[:, None] ^ token_words) >> _11).astype(np.float64)
    bits *= 2.0**-50
    return bits
