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
_ONE = np.uint64(1)
_LOW = np.uint64(0xFFFFFFFF)
_NOISE_POSITIONS = 32  # positions of one choice whose noise is drawn at once: a vector costs hardly more than one


def mix(x: Words) -> Words:
    """The finalizer that every word goes through. A new array; ``x`` is left alone."""
    z = x + _GOLDEN
    z ^= z >> _U30
    z *= _FIRST
    z ^= z >> _U27
    z *= _SECOND
    z ^= z >> _U31
    return z


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
        "_gumbel", "_gumbel_first", "accs", "adapter", "cells", "choice", "length", "media", "request", "tokens", "total",
    )  # fmt: skip

    def __init__(self, request: Request, choice: int) -> None:
        self.request = request
        self.choice = choice
        self.tokens = list(request.prompt)
        capacity = len(request.prompt) + min(request.sampling.max_tokens, 32)
        self.cells: Words = np.empty((capacity, 2), np.uint64)
        self.accs: Words = np.empty(capacity, np.uint64)  # the digest's sum over the cells up to and with this one
        self.length = 0
        self.total = np.uint64(0)
        self.adapter = adapter_word(request.adapter)
        self.media = media_words(request) if request.media else None
        self._gumbel: npt.NDArray[np.float64] = np.empty((0, 0))
        self._gumbel_first = 0

    def grow(self, length: int) -> None:
        if length > len(self.accs):
            capacity = max(length, 2 * len(self.accs))
            self.cells = np.concatenate((self.cells, np.empty((capacity - len(self.cells), 2), np.uint64)))
            self.accs = np.concatenate((self.accs, np.empty(capacity - len(self.accs), np.uint64)))

    def gumbel(self, position: int, vocab_size: int) -> npt.NDArray[np.float64]:
        """The Gumbel noise of each token at one position; a run of positions is drawn at once."""
        place = position - self._gumbel_first
        if not 0 <= place < len(self._gumbel):
            positions = np.arange(position, position + _NOISE_POSITIONS)
            uniform = uniforms(self.request.sampling.seed, self.choice, positions, SAMPLE, vocab_size)
            self._gumbel = -np.log(-np.log(uniform))
            self._gumbel_first, place = position, 0
        row: npt.NDArray[np.float64] = self._gumbel[place]
        return row


class Law:
    """The law for one vocabulary. Keeps tables only; everything about a choice is in its `Track`."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._token_words = mix(np.arange(vocab_size, dtype=np.uint64))
        self._multipliers = _multipliers(256)

    def extend(self, tracks: Sequence[Track], lengths: Sequence[int]) -> None:
        """Makes the cells of each track known up to its length. The tokens below it must be known. No track twice."""
        todo = [(track, track.length, end) for track, end in zip(tracks, lengths, strict=True) if end > track.length]
        if not todo:
            return
        longest = max(end for _, _, end in todo)
        if longest > self._multipliers.shape[1]:
            self._multipliers = _multipliers(2 * longest)
        counts = [end - start for _, start, end in todo]
        positions = np.array([p for _, start, end in todo for p in range(start, end)], np.int64)
        tokens = np.array([t for track, start, end in todo for t in track.tokens[start:end]], np.uint64)
        a, sums, accs, b = self._cells(todo, counts, positions, tokens)
        block = np.stack((a, b), axis=1)
        offset = 0
        for (track, start, end), count in zip(todo, counts, strict=True):
            track.grow(end)
            stop = offset + count
            track.cells[start:end] = block[offset:stop]
            track.accs[start:end] = accs[offset:stop]
            track.total = sums[stop - 1]
            track.length = end
            offset = stop

    def _cells(
        self, todo: list[tuple[Track, int, int]], counts: list[int], positions: npt.NDArray[np.int64], tokens: Words
    ) -> tuple[Words, Words, Words, Words]:
        """Both layers, and the running sums (of layer one, of the digest), of all new positions at once."""
        words = np.array([track.adapter for track, _, _ in todo], np.uint64)
        is_single = len(positions) == len(todo)
        if not is_single:
            words = np.repeat(words, counts)
        a = mix((positions.astype(np.uint64) << _U32) + tokens) + words
        if any(track.media is not None for track, _, _ in todo):
            a ^= np.concatenate([_media_slice(track, start, end) for track, start, end in todo])
        a = mix(a)
        totals = np.array([track.total for track, _, _ in todo], np.uint64)
        sums = a + totals if is_single else _running(a, totals, counts)
        b = mix(a ^ mix(sums))
        u, v = self._multipliers[0][positions], self._multipliers[1][positions]
        terms = u * a + v * b
        before = np.array([track.accs[start - 1] if start else 0 for track, start, _ in todo], np.uint64)
        return a, sums, (terms + before if is_single else _running(terms, before, counts)), b

    def next_tokens(self, tracks: Sequence[Track], lengths: Sequence[int]) -> list[int]:
        """The token that follows the first ``length`` cells of each track."""
        if not tracks:
            return []
        accs = np.array([track.accs[length - 1] for track, length in zip(tracks, lengths, strict=True)], np.uint64)
        digests = mix(accs + np.array(lengths, np.uint64))
        logits = (mix(digests[:, None] ^ self._token_words) >> _U11).astype(np.float64) * 2.0**-50
        for row, (track, length) in enumerate(zip(tracks, lengths, strict=True)):
            sampling = track.request.sampling
            if sampling.stop_token_ids and length - len(track.request.prompt) < sampling.min_tokens:
                logits[row, [token for token in sampling.stop_token_ids if token < self.vocab_size]] = -np.inf
            if sampling.temperature > 0:
                top = logits[row].max()
                if top == -np.inf:
                    continue  # everything is masked: token 0
                logits[row] = (logits[row] - top) / sampling.temperature + track.gumbel(length, self.vocab_size)
        chosen: list[int] = logits.argmax(axis=1).tolist()
        return chosen


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
