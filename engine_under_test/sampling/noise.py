"""Noise by address: Philox 4x32-10, a counter-based generator, so that a draw depends on nothing but its address.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. The layout of key and counter is
that of docs/fingerprint.md. Owns: the generator. Never: a state, or what a draw is used for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]  # 32-bit words, in 64 bits

_ROUNDS = 10
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.array(0xFFFFFFFF, dtype=np.uint64)
_32 = np.array(32, dtype=np.uint64)
_MULTIPLIERS = np.array([_M0, _M1, _M0], dtype=np.uint64)
# What is added to the two key words in front of each round, in the order in which `philox4x32` wants them: [rounds, 2, 1].
_KEY_OFFSETS = np.array([[r * _W0, r * _W1] if r % 2 else [r * _W1, r * _W0] for r in range(_ROUNDS)], dtype=np.uint64)[
    ..., None
]

_PAGE_LANES = 256  # numbers in a page, where a page is worth while
_PAGES_KEPT = 1024
_ROWS_BY_PAGE = 64


def _round_keys(keys: Words) -> Words:
    """[rounds, 2 n]: (k1, k0) for rounds 0, 2, ... and (k0, k1) for the others."""
    found = np.empty((_ROUNDS, 2, keys.shape[1]), dtype=np.uint64)
    found[0::2] = keys[::-1]
    found[1::2] = keys
    found += _KEY_OFFSETS
    found &= _LOW
    return found.reshape(_ROUNDS, -1)


def philox4x32(counters: Words, keys: Words) -> Words:
    """Ten rounds: counters [4, n] and keys [2, n] give output words [n, 4].

    Two counter words lie in one contiguous row, which numpy handles far faster than two: ``mul`` holds (c0, c2) before an even
    round and (c2, c0) before an odd one, ``mixed`` their partners (c3, c1) and (c1, c3). So the high halves of the products
    meet their partners where they stand, and only the low halves change sides.
    """
    n = counters.shape[1]
    mul, mixed = np.concatenate((counters[0], counters[2])), np.concatenate((counters[3], counters[1]))
    multipliers = _MULTIPLIERS.repeat(n)
    both = multipliers[: 2 * n], multipliers[n:]
    product = np.empty(2 * n, dtype=np.uint64)
    left, right = product[:n], product[n:]
    for turn, key in enumerate(_round_keys(keys)):
        np.multiply(mul, both[turn & 1], out=product)
        np.right_shift(product, _32, out=mul)
        np.bitwise_xor(mul, mixed, out=mul)
        np.bitwise_xor(mul, key, out=mul)
        np.bitwise_and(right, _LOW, out=mixed[:n])
        np.bitwise_and(left, _LOW, out=mixed[n:])
    words = np.empty((n, 4), dtype=np.uint64)
    words[:, 0::2] = mul.reshape(2, n).T
    words[:, 3::-2] = mixed.reshape(2, n).T
    return words


class PhiloxNoise:
    """The default of the `Noise` seam."""

    __slots__ = ("_pages",)

    def __init__(self) -> None:
        self._pages: dict[tuple[int, int, int, int, int], npt.NDArray[np.float64]] = {}

    def uniform(
        self,
        seeds: npt.NDArray[np.uint64],
        choices: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.uint32],
        purpose: int,
        num_lanes: int,
    ) -> npt.NDArray[np.float64]:
        """See `seams.Noise`.

        A vector costs hardly more than one number, and a choice draws at one position after the other: where lanes are few
        (and rows not so many that they make a vector themselves), a page of positions is drawn at once and kept.
        """
        length = _PAGE_LANES // num_lanes
        if length < 2 or len(seeds) > _ROWS_BY_PAGE:
            return _draw(seeds, choices, positions, purpose, num_lanes)
        found = np.empty((len(seeds), num_lanes))
        addresses = zip(seeds.tolist(), choices.tolist(), positions.tolist(), strict=True)
        for row, (seed, choice, position) in enumerate(addresses):
            number, place = divmod(position, length)
            page = self._pages.get((seed, choice, number, purpose, num_lanes))
            found[row] = (self._page(seed, choice, number, purpose, num_lanes) if page is None else page)[place]
        return found

    def _page(self, *address: int) -> npt.NDArray[np.float64]:
        seed, choice, number, purpose, num_lanes = address
        length = _PAGE_LANES // num_lanes
        positions = np.arange(number * length, (number + 1) * length, dtype=np.uint64).astype(np.uint32)
        seeds, choices = np.full(length, seed, dtype=np.uint64), np.full(length, choice, dtype=np.uint32)
        if len(self._pages) >= _PAGES_KEPT:
            self._pages.clear()
        page = _draw(seeds, choices, positions, purpose, num_lanes)
        self._pages[seed, choice, number, purpose, num_lanes] = page
        return page

    def uniform_at(
        self, seed: int, choice: int, position: int, purpose: int, lanes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        """See `seams.Noise`. One generator call for each four lanes of which one is wanted."""
        quads, place = np.unique(lanes // 4, return_inverse=True)
        counters = np.empty((4, len(quads)), dtype=np.uint64)
        counters[:3] = np.array([[choice], [position], [purpose]], dtype=np.uint64)
        counters[3] = quads
        keys = np.empty((2, len(quads)), dtype=np.uint64)
        keys[:] = np.array([[seed & 0xFFFFFFFF], [seed >> 32]], dtype=np.uint64)
        return _to_uniforms(philox4x32(counters, keys)[place, lanes % 4])


def _draw(
    seeds: npt.NDArray[np.uint64],
    choices: npt.NDArray[np.uint32],
    positions: npt.NDArray[np.uint32],
    purpose: int,
    num_lanes: int,
) -> npt.NDArray[np.float64]:
    """See `seams.Noise`. One generator call for four lanes."""
    rows, quads = len(seeds), -(-num_lanes // 4)
    counters = np.empty((4, rows, quads), dtype=np.uint64)
    counters[0] = choices[:, None]
    counters[1] = positions[:, None]
    counters[2] = purpose
    counters[3] = np.arange(quads)
    keys = np.empty((2, rows, quads), dtype=np.uint64)
    keys[0] = (seeds & _LOW)[:, None]
    keys[1] = (seeds >> _32)[:, None]
    words = philox4x32(counters.reshape(4, -1), keys.reshape(2, -1))
    return _to_uniforms(words).reshape(rows, quads * 4)[:, :num_lanes]


def _to_uniforms(words: Words) -> npt.NDArray[np.float64]:
    """The middle of each of the 2^32 parts of the unit interval."""
    uniforms = words.astype(np.float64)
    uniforms += 0.5
    uniforms *= 2.0**-32
    return uniforms
