"""Words of 64 bits as docs/fingerprint.md makes them: the finalizer, hashes of adapters and media, noise by its address.

Owns the checker's arithmetic on words. Knows neither cells nor choices, and never looks at an engine's runner or sampler.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import pack

import numpy as np
import numpy.typing as npt

from engine_under_test.types import Adapter, Request
from models.prefix_key import field

Words = npt.NDArray[np.uint64]

SAMPLE = 0

# Zero-dimensional arrays, not scalars: an operation on few elements takes half the time with them.
_GOLDEN, _FIRST, _SECOND, U11, _U27, _U30, _U31, U32, ONE, _LOW = (
    np.array(word, np.uint64)
    for word in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 11, 27, 30, 31, 32, 1, 0xFFFFFFFF)
)
_KEY_STEPS = np.array([[[n * 0x9E3779B9], [n * 0xBB67AE85]] for n in range(10)], np.uint64)  # of each round
_PHILOX_FACTORS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
MASK = 2**64 - 1


def mix(x: Words) -> Words:
    """The finalizer that every word goes through. A new array; ``x`` is left alone."""
    z = x + _GOLDEN
    shifted = z >> _U30
    z ^= shifted
    z *= _FIRST
    np.right_shift(z, _U27, out=shifted)
    z ^= shifted
    z *= _SECOND
    np.right_shift(z, _U31, out=shifted)
    z ^= shifted
    return z


def mix_int(x: int) -> int:
    """`mix` of one word."""
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def h64(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


@lru_cache(maxsize=1024)
def adapter_word(adapter: Adapter | None) -> int:
    if adapter is None:
        return 0
    return h64(b"assay/adapter/1" + field(adapter.name) + pack("<q", adapter.version))


def media_words(request: Request) -> list[int]:
    """The media word of each prompt position."""
    words = [0] * len(request.prompt)
    for item in request.media:
        base = h64(b"assay/media/1" + field(item.digest)) - item.start
        for position in range(max(item.start, 0), min(item.start + item.length, len(words))):
            words[position] = (words[position] + mix_int(base + position)) & MASK
    return words


def philox(counters: Words, seed: int) -> Words:
    """Philox 4x32-10 under one key. ``counters``: [..., 4] words below 2^32 (held in 64 bits); the same shape comes back."""
    return _philox(counters, _round_keys(seed))


def _philox(counters: Words, round_keys: Words) -> Words:
    words = counters.reshape(-1, 4).T
    even, odd = np.ascontiguousarray(words[0::2]), words[1::2]  # what is multiplied, and what is mixed in
    for keys in round_keys:
        product = (even * _PHILOX_FACTORS)[::-1]
        even = product >> U32
        even ^= odd
        even ^= keys
        odd = product & _LOW
    out = np.empty((even.shape[1], 4), np.uint64)
    out[:, 0::2] = even.T
    out[:, 1::2] = odd.T
    return out.reshape(counters.shape)


def _round_keys(seed: int) -> Words:
    """The key of each of the ten rounds, [10, 2, 1]."""
    low, high = seed & 0xFFFFFFFF, seed >> 32
    keys = [((low + n * 0x9E3779B9) & 0xFFFFFFFF, (high + n * 0xBB67AE85) & 0xFFFFFFFF) for n in range(10)]
    return np.array(keys, np.uint64)[..., None]


def uniforms(seed: int, choice: int, positions: npt.NDArray[np.int64], purpose: int, lanes: int) -> npt.NDArray[np.float64]:
    """Noise in (0, 1) at the addresses of one choice, shape [positions, lanes]."""
    groups = -(-lanes // 4)
    counters = np.empty((len(positions), groups, 4), np.uint64)
    counters[..., 0] = choice
    counters[..., 1] = positions[:, None]
    counters[..., 2] = purpose
    counters[..., 3] = np.arange(groups, dtype=np.uint64)
    words = philox(counters, seed).reshape(len(positions), groups * 4)[:, :lanes]
    uniform: npt.NDArray[np.float64] = (words.astype(np.float64) + 0.5) * 2.0**-32
    return uniform


def gumbel(seeds: Sequence[int], choices: Sequence[int], positions: Sequence[int], lanes: int) -> npt.NDArray[np.float64]:
    """Gumbel noise for the token at each of these addresses, shape [addresses, lanes]."""
    groups = -(-lanes // 4)
    counters = np.empty((len(seeds), groups, 4), np.uint64)
    counters[..., 0] = words_of(choices)[:, None]
    counters[..., 1] = words_of(positions)[:, None]
    counters[..., 2] = SAMPLE
    counters[..., 3] = np.arange(groups, dtype=np.uint64)
    words = words_of(seeds)
    halves = np.stack((words & _LOW, words >> U32)).repeat(groups, axis=1)
    keys = (halves + _KEY_STEPS) & _LOW
    uniform = (_philox(counters, keys).reshape(len(seeds), groups * 4)[:, :lanes].astype(np.float64) + 0.5) * 2.0**-32
    return -np.log(-np.log(uniform))


def words_of(numbers: Iterable[int]) -> Words:
    """As an array, in a quarter of the time that numpy takes for plain integers."""
    return np.frombuffer(array("Q", numbers), np.uint64)
