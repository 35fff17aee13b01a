"""The law of the fingerprint model, written from docs/fingerprint.md: what each cell must hold and which token follows.

Owns the checker's arithmetic: cells per choice, extended as its tokens become known, and the next token. It is vectorised
over the rows of a plan and never looks at an engine's runner or sampler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from struct import pack
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_under_test.types import Adapter, Request
from models.prefix_key import field

Words = npt.NDArray[np.uint64]

POISON = 0x7FF8DEADDEADDEAD
SAMPLE = 0

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_U11, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (11, 27, 30, 31, 32))
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_LOW = np.uint64(0xFFFFFFFF)
_MASK = 2**64 - 1
_FEW = 8  # positions up to which plain integers are quicker than arrays
_NOISE_PAGE = 32  # positions of one choice whose noise is drawn at once: a vector costs hardly more than one
_NOISE_PAGES = 512


def mix(x: Words) -> Words:
    """The finalizer that every word goes through. A new array; ``x`` is left alone."""
    z = x + _GOLDEN
    z ^= z >> _U30
    z *= _FIRST
    z ^= z >> _U27
    z *= _SECOND
    z ^= z >> _U31
    return z


def _mix_int(x: int) -> int:
    """`mix` of one word."""
    z = (x + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def h64(data: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little")


def adapter_word(adapter: Adapter | None) -> int:
    if adapter is None:
        return 0
    return h64(b"assay/adapter/1" + field(adapter.name) + pack("<q", adapter.version))


def media_words(request: Request) -> Words:
    """The media word of each prompt position (0 behind the prompt)."""
    words = np.zeros(len(request.prompt), np.uint64)
    for item in request.media:
        start, end = max(item.start, 0), min(item.start + item.length, len(words))
        if start < end:
            offsets = np.arange(start - item.start, end - item.start, dtype=np.uint64)
            words[start:end] += mix(offsets + np.uint64(h64(b"assay/media/1" + field(item.digest))))
    return words


def philox(counters: Words, seed: int) -> Words:
    """Philox 4x32-10 under one key. ``counters``: [..., 4] words below 2^32 (held in 64 bits); the same shape comes back."""
    k0, k1 = seed & 0xFFFFFFFF, seed >> 32
    c0, c1, c2, c3 = (counters[..., i] for i in range(4))
    for _ in range(10):
        p0 = c0 * np.uint64(0xD2511F53)
        p1 = c2 * np.uint64(0xCD9E8D57)
        c0 = (p1 >> _U32) ^ c1 ^ np.uint64(k0)
        c1 = p1 & _LOW
        c2 = (p0 >> _U32) ^ c3 ^ np.uint64(k1)
        c3 = p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack((c0, c1, c2, c3), axis=-1)


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


class Track:
    """What the law says of one choice, as far as its tokens are known: ``tokens`` is prompt plus output."""

    __slots__ = (
        "accs", "adapter", "cells", "choice", "length", "masks_below", "media", "request",
        "temperature", "tokens", "total",
    )  # fmt: skip

    def __init__(self, request: Request, choice: int) -> None:
        self.request = request
        self.choice = choice
        sampling = request.sampling
        self.temperature = sampling.temperature
        self.masks_below = len(request.prompt) + sampling.min_tokens if sampling.stop_token_ids else 0
        self.tokens = list(request.prompt)
        capacity = len(request.prompt) + min(request.sampling.max_tokens, 32)
        self.cells: Words = np.empty((capacity, 2), np.uint64)
        self.accs: Words = np.empty(capacity, np.uint64)  # the digest's sum over the cells up to and with this one
        self.length = 0
        self.total = np.uint64(0)
        self.adapter = adapter_word(request.adapter)
        self.media = media_words(request) if request.media else None

    def grow(self, length: int) -> None:
        if length > len(self.accs):
            capacity = max(length, 2 * len(self.accs))
            self.cells = np.concatenate((self.cells, np.empty((capacity - len(self.cells), 2), np.uint64)))
            self.accs = np.concatenate((self.accs, np.empty(capacity - len(self.accs), np.uint64)))


class Law:
    """The law for one vocabulary. Keeps tables only; everything about a choice is in its `Track`."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._token_words = mix(np.arange(vocab_size, dtype=np.uint64))
        self._set_multipliers(256)
        self._noise: dict[tuple[int, int, int], npt.NDArray[np.float64]] = {}

    def _set_multipliers(self, length: int) -> None:
        self._multipliers = _multipliers(length)
        self._pairs: list[tuple[int, int]] = list(zip(*self._multipliers.tolist(), strict=True))

    def extend(self, tracks: Sequence[Track], lengths: Sequence[int]) -> None:
        """Makes the cells of each track known up to its length. The tokens below it must be known. No track twice."""
        todo = [(track, track.length, end) for track, end in zip(tracks, lengths, strict=True) if end > track.length]
        if not todo:
            return
        longest = max(lengths)
        if longest > self._multipliers.shape[1]:
            self._set_multipliers(2 * longest)
        counts = [end - start for _, start, end in todo]
        if sum(counts) <= _FEW:
            for track, start, end in todo:
                self._extend_one_by_one(track, start, end)
            return
        if len(todo) == sum(counts):
            positions = [start for _, start, _ in todo]
            tokens = [track.tokens[start] for track, start, _ in todo]
        else:
            positions = [p for _, start, end in todo for p in range(start, end)]
            tokens = [t for track, start, end in todo for t in track.tokens[start:end]]
        cells, sums, accs = self._cells(todo, counts, np.array((positions, tokens), np.uint64))
        offset = 0
        for (track, start, end), count in zip(todo, counts, strict=True):
            if end > len(track.accs):
                track.grow(end)
            stop = offset + count
            track.cells[start:end] = cells[offset:stop]
            track.accs[start:end] = accs[offset:stop]
            track.total = sums[stop - 1]
            track.length = end
            offset = stop

    def _extend_one_by_one(self, track: Track, start: int, end: int) -> None:
        """The same in plain integers: for a few positions that is quicker than two dozen array operations."""
        track.grow(end)
        total, acc = int(track.total), int(track.accs[start - 1]) if start else 0
        for position in range(start, end):
            x = (_mix_int(position << 32 | track.tokens[position]) + track.adapter) & _MASK
            if track.media is not None and position < len(track.media):
                x ^= int(track.media[position])
            a = _mix_int(x)
            total = (total + a) & _MASK
            b = _mix_int(a ^ _mix_int(total))
            u, v = self._pairs[position]
            acc = (acc + u * a + v * b) & _MASK
            cell = track.cells[position]
            cell[0], cell[1] = a, b
            track.accs[position] = acc
        track.total = np.uint64(total)
        track.length = end

    def _cells(self, todo: list[tuple[Track, int, int]], counts: list[int], places: Words) -> tuple[Words, Words, Words]:
        """Cells [n, 2] of all new positions at once, and the running sums (of layer one, of the digest). ``places``: their
        positions and tokens."""
        positions, tokens = places
        columns = [(track.adapter, track.total, track.accs[start - 1] if start else _ZERO) for track, start, _ in todo]
        words, totals, before = np.array(columns, np.uint64).T
        is_single = len(positions) == len(todo)
        if not is_single:
            words = np.repeat(words, counts)
        x = positions << _U32
        x += tokens
        x = mix(x)
        x += words
        if any(track.media is not None for track, _, _ in todo):
            x ^= np.concatenate([_media_slice(track, start, end) for track, start, end in todo])
        cells = np.empty((2, len(positions)), np.uint64)
        a = cells[0] = mix(x)
        sums = a + totals if is_single else _running(a, totals, counts)
        cells[1] = mix(a ^ mix(sums))
        weighed = self._multipliers.take(positions.astype(np.int64), axis=1)
        weighed *= cells
        terms = weighed[0] + weighed[1]
        return cells.T, sums, (terms + before if is_single else _running(terms, before, counts))

    def next_tokens(self, tracks: Sequence[Track], lengths: Sequence[int]) -> list[int]:
        """The token that follows the first ``length`` cells of each track."""
        if not tracks:
            return []
        accs = np.array([track.accs[length - 1] for track, length in zip(tracks, lengths, strict=True)], np.uint64)
        digests = mix(accs + np.array(lengths, np.uint64))
        scores = (mix(digests[:, None] ^ self._token_words) >> _U11).astype(np.float64)
        scores *= 2.0**-50
        self._mask(scores, tracks, lengths)
        self._perturb(scores, tracks, lengths)
        chosen: list[int] = scores.argmax(axis=1).tolist()
        return chosen

    def _mask(self, logits: npt.NDArray[np.float64], tracks: Sequence[Track], lengths: Sequence[int]) -> None:
        """Stop tokens before `min_tokens` are out can not be chosen."""
        for row, track in enumerate(tracks):
            if track.masks_below > lengths[row]:
                stops = track.request.sampling.stop_token_ids
                logits[row, [token for token in stops if token < self.vocab_size]] = -np.inf

    def _perturb(self, logits: npt.NDArray[np.float64], tracks: Sequence[Track], lengths: Sequence[int]) -> None:
        """Logits become scores where a temperature is given. Rows with everything masked stay: token 0."""
        rows = [row for row, track in enumerate(tracks) if track.temperature > 0]
        if not rows:
            return
        part = logits[rows]
        top = part.max(axis=1)
        if top.min() == -np.inf:
            rows = [row for row, highest in zip(rows, top.tolist(), strict=True) if highest != -np.inf]
            part = logits[rows]
            top = part.max(axis=1, initial=-np.inf)
        part -= top[:, None]
        part /= np.array([tracks[row].temperature for row in rows])[:, None]
        for place, row in enumerate(rows):
            part[place] += self._gumbel(tracks[row], lengths[row])
        logits[rows] = part

    def _gumbel(self, track: Track, position: int) -> npt.NDArray[np.float64]:
        """The Gumbel noise of each token at one position. It depends on the address alone, so it is kept for others."""
        page, place = divmod(position, _NOISE_PAGE)
        key = (track.request.sampling.seed, track.choice, page)
        noise = self._noise.get(key)
        if noise is None:
            if len(self._noise) >= _NOISE_PAGES:
                self._noise.clear()
            positions = np.arange(page * _NOISE_PAGE, (page + 1) * _NOISE_PAGE)
            uniform = uniforms(key[0], track.choice, positions, SAMPLE, self.vocab_size)
            noise = self._noise[key] = -np.log(-np.log(uniform))
        row: npt.NDArray[np.float64] = noise[place]
        return row


def _multipliers(length: int) -> Words:
    """u in row 0, v in row 1, for positions below ``length``."""
    doubled = np.arange(length, dtype=np.uint64) * np.uint64(2)
    return np.stack((mix(doubled) | _ONE, mix(doubled + _ONE) | _ONE))


def _running(values: Words, bases: Words, counts: list[int]) -> Words:
    """Running sums that begin anew, from its base, with each run of ``counts`` values."""
    sums: Words = np.cumsum(values, dtype=np.uint64)
    ends = np.cumsum(counts)
    before = np.concatenate((np.zeros(1, np.uint64), sums[ends[:-1] - 1]))
    sums += np.repeat(bases - before, counts)
    return sums


def _media_slice(track: Track, start: int, end: int) -> npt.NDArray[Any]:
    words = np.zeros(end - start, np.uint64)
    if track.media is not None and start < len(track.media):
        known = track.media[start:end]
        words[: len(known)] = known
    return words
