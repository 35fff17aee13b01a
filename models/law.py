"""The law of the fingerprint model, written from docs/fingerprint.md: what each cell must hold and which token follows.

Owns the checker's arithmetic: cells per choice, extended as its tokens become known, and the next token. It is vectorised
over the rows of a plan and never looks at an engine's runner or sampler.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from math import exp, log
from struct import pack
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

from engine_under_test.types import Adapter, Request, SamplingParams
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
_PHILOX_FACTORS = np.array([[0xD2511F53], [0xCD9E8D57]], np.uint64)
_MASK = 2**64 - 1
_FEW = 24  # positions up to which plain integers are quicker than arrays
_LONG = 64  # tokens up to which a choice's room is made for its whole life
_NOISE_PAGE = 64  # positions of one choice whose noise is drawn at once: a vector costs hardly more than one
_NOISE_PAGES = 512
_CAPACITY = 8192  # cells for which there is room at first


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
    words = counters.reshape(-1, 4).T
    even, odd = np.ascontiguousarray(words[0::2]), words[1::2]  # what is multiplied, and what is mixed in
    for keys in _round_keys(seed):
        product = (even * _PHILOX_FACTORS)[::-1]
        even = product >> _U32
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


class Track:
    """What the law says of one choice, as far as its tokens are known: ``tokens`` is prompt plus output.

    Its words stand in the law's columns, from ``offset`` on; ``length`` positions of ``capacity`` are known.
    """

    __slots__ = (
        "__weakref__", "adapter", "capacity", "choice", "drops", "length", "masks_below", "media", "offset", "request",
        "temperature", "tokens",
    )  # fmt: skip

    def __init__(self, request: Request, choice: int) -> None:
        self.request = request
        self.choice = choice
        sampling = request.sampling
        self.temperature = sampling.temperature
        self.drops = sampling.min_p > 0 or sampling.top_k > 0 or sampling.top_p < 1
        self.masks_below = len(request.prompt) + sampling.min_tokens if sampling.stop_token_ids else 0
        self.tokens = list(request.prompt)
        self.length = 0
        self.offset = 0
        self.capacity = 0
        self.adapter = adapter_word(request.adapter)
        self.media = media_words(request) if request.media else None


class Law:
    """The law for one vocabulary, and the columns in which it keeps the words of every track that somebody still has.

    Columns: the cells; the running sums of layer one; the digest's sums over the cells up to and with each. In front of each
    track stands a place whose sums are 0.
    """

    def __init__(self, vocab_size: int, capacity: int = _CAPACITY) -> None:
        self.vocab_size = vocab_size
        self._token_words = mix(np.arange(vocab_size, dtype=np.uint64))
        self._set_multipliers(256)
        self._noise: dict[tuple[int, int, int], npt.NDArray[np.float64]] = {}
        self._tracks: WeakSet[Track] = WeakSet()
        self._cells: Words = np.zeros((capacity, 2), np.uint64)
        self._sums: Words = np.zeros(capacity, np.uint64)
        self._accs: Words = np.zeros(capacity, np.uint64)
        self._used = 0

    def _set_multipliers(self, length: int) -> None:
        self._multipliers = _multipliers(length)
        self._pairs: list[tuple[int, int]] = list(zip(*self._multipliers.T.tolist(), strict=True))

    def open(self, request: Request, choice: int) -> Track:
        """The track of a choice of which nothing is known but its prompt."""
        track = Track(request, choice)
        self._place(track, len(request.prompt) + min(request.sampling.max_tokens, _LONG))
        self._tracks.add(track)
        return track

    def _place(self, track: Track, capacity: int) -> None:
        """Room for a track at the end of the columns; what it had moves along."""
        if self._used + capacity + 1 > len(self._sums):
            self._make_room(capacity + 1)
        offset = self._used + 1
        self._used = offset + capacity
        self._sums[offset - 1] = self._accs[offset - 1] = 0
        here, there = slice(track.offset, track.offset + track.length), slice(offset, offset + track.length)
        for column in (self._cells, self._sums, self._accs):
            column[there] = column[here]
        track.offset, track.capacity = offset, capacity

    def _make_room(self, wanted: int) -> None:
        """New columns that hold the tracks that are still somebody's, and at least as much again."""
        tracks = list(self._tracks)
        old = self._cells, self._sums, self._accs
        size = max(len(self._sums), 2 * (sum(track.capacity + 1 for track in tracks) + wanted))
        self._cells, self._sums, self._accs = (np.zeros((size, *column.shape[1:]), np.uint64) for column in old)
        self._used = 0
        for track in tracks:
            offset = self._used + 1
            self._used = offset + track.capacity
            for column, earlier in zip((self._cells, self._sums, self._accs), old, strict=True):
                column[offset : offset + track.length] = earlier[track.offset : track.offset + track.length]
            track.offset = offset

    def cells(self, tracks: Sequence[Track], lengths: Sequence[int]) -> Words:
        """The first cells of each track [n, 2], one track after the other: a copy."""
        if not tracks:
            return np.empty((0, 2), np.uint64)
        cells = self._cells
        return np.concatenate([cells[t.offset : t.offset + length] for t, length in zip(tracks, lengths, strict=True)])

    def extend(self, tracks: Sequence[Track], lengths: Sequence[int]) -> None:
        """Makes the cells of each track known up to its length. The tokens below it must be known. No track twice."""
        todo = [(track, end) for track, end in zip(tracks, lengths, strict=True) if end > track.length]
        if not todo:
            return
        longest = max(lengths)
        if longest > len(self._multipliers):
            self._set_multipliers(2 * longest)
        for track, end in todo:
            if end > track.capacity:
                self._place(track, 2 * end)
        counts = [end - track.length for track, end in todo]
        if sum(counts) <= _FEW:
            for track, end in todo:
                self._extend_one_by_one(track, end)
        else:
            self._extend_at_once(todo, counts)
        for track, end in todo:
            track.length = end

    def _extend_one_by_one(self, track: Track, end: int) -> None:
        """In plain integers: for a few positions that is quicker than two dozen array operations."""
        start, place = track.length, track.offset + track.length
        total, acc = int(self._sums[place - 1]), int(self._accs[place - 1])
        for position in range(start, end):
            x = (_mix_int(position << 32 | track.tokens[position]) + track.adapter) & _MASK
            if track.media is not None and position < len(track.media):
                x ^= int(track.media[position])
            a = _mix_int(x)
            total = (total + a) & _MASK
            b = _mix_int(a ^ _mix_int(total))
            u, v = self._pairs[position]
            acc = (acc + u * a + v * b) & _MASK
            self._cells[place] = a, b
            self._sums[place] = total
            self._accs[place] = acc
            place += 1

    def _extend_at_once(self, todo: list[tuple[Track, int]], counts: list[int]) -> None:
        """All new positions of all tracks in one go."""
        offsets, lengths = np.array(([track.offset for track, _ in todo], [track.length for track, _ in todo]))
        is_single = sum(counts) == len(todo)
        if is_single:
            positions = lengths
            tokens = [track.tokens[track.length] for track, _ in todo]
        else:
            ends = np.cumsum(counts)
            positions = np.arange(ends[-1]) + np.repeat(lengths - ends + counts, counts)
            tokens = [token for track, end in todo for token in track.tokens[track.length : end]]
        places = positions + (offsets if is_single else np.repeat(offsets, counts))
        x = positions.astype(np.uint64) << _U32
        x += np.array(tokens, np.uint64)
        x = mix(x)
        if any(track.adapter for track, _ in todo):
            x += np.repeat(np.array([track.adapter for track, _ in todo], np.uint64), counts)
        if any(track.media is not None for track, _ in todo):
            x ^= np.concatenate([_media_slice(track, track.length, end) for track, end in todo])
        a = mix(x)
        before = offsets + lengths - 1
        sums = a + self._sums.take(before) if is_single else _running(a, self._sums.take(before), counts)
        cells = np.empty((len(a), 2), np.uint64)
        cells[:, 0] = a
        cells[:, 1] = mix(a ^ mix(sums))
        weighed = self._multipliers.take(positions, axis=0)
        weighed *= cells
        terms = weighed[:, 0] + weighed[:, 1]
        self._accs[places] = terms + self._accs.take(before) if is_single else _running(terms, self._accs.take(before), counts)
        self._cells[places] = cells
        self._sums[places] = sums

    def next_tokens(self, tracks: Sequence[Track], lengths: Sequence[int]) -> list[int]:
        """The token that follows the first ``length`` cells of each track."""
        if not tracks:
            return []
        places = [track.offset + length - 1 for track, length in zip(tracks, lengths, strict=True)]
        digests = mix(self._accs.take(places) + np.array(lengths, np.uint64))
        scores = (mix(digests[:, None] ^ self._token_words) >> _U11).astype(np.float64)
        scores *= 2.0**-50
        is_masked = self._mask(scores, tracks, lengths)
        self._perturb(scores, tracks, lengths, is_masked)
        chosen: list[int] = scores.argmax(axis=1).tolist()
        return chosen

    def _mask(self, logits: npt.NDArray[np.float64], tracks: Sequence[Track], lengths: Sequence[int]) -> bool:
        """Stop tokens before `min_tokens` are out can not be chosen. True if there were such."""
        rows = [row for row, track in enumerate(tracks) if track.masks_below > lengths[row]]
        for row in rows:
            stops = tracks[row].request.sampling.stop_token_ids
            logits[row, [token for token in stops if token < self.vocab_size]] = -np.inf
        return bool(rows)

    def _perturb(
        self, logits: npt.NDArray[np.float64], tracks: Sequence[Track], lengths: Sequence[int], is_masked: bool
    ) -> None:
        """Logits become scores where a temperature is given. Rows with everything masked stay: token 0."""
        rows = [row for row, track in enumerate(tracks) if track.temperature > 0]
        if is_masked:
            rows = [row for row in rows if logits[row].max() > -np.inf]
        if not rows:
            return
        part = logits.take(rows, axis=0)
        part -= part.max(axis=1, keepdims=True)
        part /= np.array([[tracks[row].temperature] for row in rows])
        for place, row in enumerate(rows):
            if tracks[row].drops:
                _drop(part[place], tracks[row].request.sampling)
        part += np.array([self._gumbel(tracks[row], lengths[row]) for row in rows])
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


def _drop(scaled: npt.NDArray[np.float64], sampling: SamplingParams) -> None:
    """Gives the tokens that may not be drawn no chance: a walk down the order, one token after the other."""
    values: list[float] = scaled.tolist()
    order = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if sampling.min_p > 0:
        order = [token for token in order if values[token] >= log(sampling.min_p)]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        shares = [exp(values[token]) for token in order]
        before = accumulate(shares, initial=0.0)
        wanted = sampling.top_p * sum(shares)
        order = [token for token, earlier in zip(order, before, strict=False) if earlier < wanted]
    kept = scaled[order]
    scaled[:] = -np.inf
    scaled[order] = kept


def _multipliers(length: int) -> Words:
    """[length, 2]: u and v for each position."""
    doubled = np.arange(length, dtype=np.uint64) * np.uint64(2)
    return np.stack((mix(doubled) | _ONE, mix(doubled + _ONE) | _ONE), axis=-1)


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
