"""The law of the fingerprint model, written from docs/fingerprint.md: what each cell must hold and which token follows.

Owns cells per choice, extended as its tokens become known, and the next token. Nearly always a choice grows by one position,
which is quickest in plain integers; what many prompts have in common is computed once. It never looks at an engine's runner or
sampler.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from math import exp, inf, log
from operator import add
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_under_test.types import Adapter, Request, SamplingParams
from models.words import MASK, ONE, SAMPLE, U11, U32, Words, adapter_word, gumbel, media_words, mix, mix_int, uniforms, words_of
from properties.small_grammars import forbidden

POISON = 0x7FF8DEADDEADDEAD
_MANY = 40  # new positions of one choice from which arrays are quicker than plain integers
_LONG = 256  # tokens from which a prompt is not looked for among earlier ones
_PIECE = 4  # tokens of a prompt that are remembered together
_PIECES = 20_000
_CELLS = 200_000  # words of layer one that are remembered
_NOISE_PAGE = 64  # positions of one choice whose noise is drawn at once: a vector costs hardly more than one
_NOISE = 8192  # pages of one token that are remembered
_EVERYWHERE = 2**62
_FEW_LOGITS = 80  # up to which rows are quicker one by one than as an array


class Track:
    """What the law says of one choice, as far as its tokens are known: ``tokens`` is prompt plus output.

    ``words``: both layers of one cell, then of the next. ``digests``: the digest's sum over the cells up to and with each.
    ``total``: the sum of layer one. ``layer_one``: words of layer one that are known, by position and token.
    """

    __slots__ = (
        "adapter", "choice", "digests", "drops", "layer_one", "masks_below", "media", "request", "stops", "temperature",
        "tokens", "total", "words",
    )  # fmt: skip

    def __init__(self, request: Request, choice: int, layer_one: dict[int, int], vocab_size: int) -> None:
        self.request = request
        self.choice = choice
        sampling = request.sampling
        self.temperature = sampling.temperature
        self.drops = sampling.min_p > 0 or sampling.top_k > 0 or sampling.top_p < 1
        self.masks_below = 0
        if sampling.stop_token_ids:
            self.masks_below = len(request.prompt) + sampling.min_tokens
            self.stops = sorted({token for token in sampling.stop_token_ids if token < vocab_size})
        if sampling.grammar is not None:
            self.masks_below = _EVERYWHERE
        self.tokens = list(request.prompt)
        self.words = array("Q")
        self.digests: list[int] = []
        self.total = 0
        self.layer_one = layer_one
        self.adapter = adapter_word(request.adapter) if request.adapter is not None else 0
        self.media = media_words(request) if request.media else ()

    @property
    def length(self) -> int:
        """Positions whose cells are known."""
        return len(self.digests)

    def masked(self, length: int) -> Sequence[int]:
        """The tokens that may not follow its first ``length`` ones; asked only where there may be some."""
        sampling = self.request.sampling
        if sampling.grammar is None:
            return self.stops
        return forbidden(sampling.grammar, tuple(self.tokens[len(self.request.prompt) : length]), sampling.stop_token_ids)


class _Piece(NamedTuple):
    """Some positions of a prompt: what a track appends for them, and where it stands then."""

    number: int
    words: array[int]
    digests: list[int]
    total: int


class Law:
    """The law for one vocabulary. Remembered beside the tracks: pieces of prompts behind the pieces before them, layer one of
    each adapter, noise."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._token_words = mix(np.arange(vocab_size, dtype=np.uint64))
        self._lanes = _Lanes(min(vocab_size, _FEW_LOGITS))
        self._pairs: list[tuple[int, int]] = self._grow(128)
        self._layer_one: dict[Adapter | None, dict[int, int]] = {}
        self._pieces: dict[tuple[int, tuple[int, ...]], _Piece] = {}
        self._numbers = 0  # of pieces, below 0: an adapter word stands for "no piece yet", and those are not
        self._noise_pages: dict[tuple[int, int, int], int] = {}  # the first row of each in the table
        self._noise = np.zeros((1 + max(_NOISE // vocab_size, 8) * _NOISE_PAGE, vocab_size))

    def _grow(self, length: int) -> list[tuple[int, int]]:
        """The digest's multipliers for twice as many positions."""
        self._positions = np.arange(2 * length, dtype=np.uint64)
        doubled = self._positions * np.uint64(2)
        self._multipliers = mix(doubled) | ONE, mix(doubled + ONE) | ONE
        self._pairs = list(zip(*(column.tolist() for column in self._multipliers), strict=True))
        return self._pairs

    def open(self, request: Request, choice: int) -> Track:
        """The track of a choice of which nothing is known but its prompt."""
        known: dict[int, int] = {}
        if not request.media:
            known = self._layer_one.setdefault(request.adapter, known)
            if len(known) > _CELLS:
                known.clear()
        return Track(request, choice, known, self.vocab_size)

    def _lay(self, track: Track) -> None:
        """The cells of the prompt, piece by piece, as far as it is made of whole ones."""
        prompt, pieces = track.request.prompt, self._pieces
        if len(pieces) > _PIECES:
            pieces.clear()
        words, digests, before = track.words, track.digests, track.adapter
        for start in range(0, len(prompt) - _PIECE + 1, _PIECE):
            key = before, prompt[start : start + _PIECE]
            piece = pieces.get(key)
            if piece is None:
                self._extend_one(track, start + _PIECE)
                self._numbers -= 1
                piece = pieces[key] = _Piece(self._numbers, words[2 * start :], digests[start:], track.total)
            else:
                words += piece.words
                digests += piece.digests
                track.total = piece.total
            before = piece.number

    # -- cells -------------------------------------------------------------------------------------------------

    def cells(self, tracks: Sequence[Track], lengths: Sequence[int]) -> Words:
        """The first cells of each track [n, 2], one track after the other: a copy, not to be written to."""
        found = []
        for track, length in zip(tracks, lengths, strict=True):
            words = track.words
            found.append(words if len(words) == 2 * length else words[: 2 * length])
        return np.frombuffer(b"".join(found), np.uint64).reshape(-1, 2)

    def extend(self, tracks: Sequence[Track], lengths: Sequence[int]) -> None:
        """Makes the cells of each track known at least up to its length. The tokens below it must be known."""
        wanted: dict[int, tuple[Track, int]] = {}
        num_new = 0
        for track, end in zip(tracks, lengths, strict=True):
            new = end - len(track.digests)
            if new > 0:
                known = wanted.get(id(track))
                if known is None or known[1] < end:
                    wanted[id(track)] = track, end
                num_new += new
        if num_new >= _MANY:
            self._extend_at_once(list(wanted.values()))
            return
        for track, end in wanted.values():
            if not track.digests and not track.media and len(track.request.prompt) <= _LONG:
                self._lay(track)
            self._extend_one(track, end)

    def _extend_one(self, track: Track, end: int) -> None:
        pairs, digests = self._pairs, track.digests
        start = len(digests)
        if end > len(pairs):
            pairs = self._grow(end)
        words, known = track.words, track.layer_one
        total, digest = track.total, digests[-1] if start else 0
        for position, token, (u, v) in zip(range(start, end), track.tokens[start:end], pairs[start:end], strict=True):
            a = known.get(position << 32 | token)
            if a is None:
                a = self._layer_one_at(track, position)
            total = (total + a) & MASK
            # b = mix(a ^ mix(total)), written out: two calls would take longer than what they do
            z = (total + 0x9E3779B97F4A7C15) & MASK
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            z = ((a ^ z ^ (z >> 31)) + 0x9E3779B97F4A7C15) & MASK
            z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
            z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
            b = z ^ (z >> 31)
            digest = (digest + u * a + v * b) & MASK
            words.append(a)
            words.append(b)
            digests.append(digest)
        track.total = total

    def cut(self, track: Track, length: int) -> None:
        """Forgets the cells of the track from `length` on, and its tokens."""
        del track.tokens[length:]
        if len(track.digests) > length:
            del track.digests[length:]
            del track.words[2 * length :]
            track.total = sum(track.words[::2]) & MASK

    def _layer_one_at(self, track: Track, position: int) -> int:
        place = position << 32 | track.tokens[position]
        x = (mix_int(place) + track.adapter) & MASK
        if position < len(track.media):
            x ^= track.media[position]
        a = track.layer_one[place] = mix_int(x)
        return a

    def _extend_at_once(self, wanted: Sequence[tuple[Track, int]]) -> None:
        """The new positions of all these tracks one after the other, in arrays."""
        starts = [len(track.digests) for track, _ in wanted]
        ends = [end for _, end in wanted]
        if max(ends) > len(self._pairs):
            self._grow(max(ends))
        positions = np.concatenate([self._positions[start:end] for start, end in zip(starts, ends, strict=True)])
        tokens = [token for (track, end), start in zip(wanted, starts, strict=True) for token in track.tokens[start:end]]
        counts = np.array([end - start for start, end in zip(starts, ends, strict=True)], np.intp)
        x = mix((positions << U32) + words_of(tokens))
        x += words_of([track.adapter for track, _ in wanted]).repeat(counts)
        begin = 0
        for (track, end), start in zip(wanted, starts, strict=True):
            if media := track.media[start:end]:
                x[begin : begin + len(media)] ^= words_of(media)
            begin += end - start
        a = mix(x)
        lasts: npt.NDArray[np.intp] = counts.cumsum() - 1
        sums = _sums_of_each(a, lasts, counts, [track.total for track, _ in wanted])
        words = np.empty((len(a), 2), np.uint64)
        words[:, 0] = a
        words[:, 1] = b = mix(a ^ mix(sums))
        u, v = (column.take(positions) for column in self._multipliers)
        weighed = _sums_of_each(
            u * a + v * b, lasts, counts, [track.digests[-1] if track.digests else 0 for track, _ in wanted]
        )
        found, digests, totals, begin = words.tobytes(), weighed.tolist(), sums[lasts].tolist(), 0
        for (track, _), count, total in zip(wanted, counts.tolist(), totals, strict=True):
            track.words.frombytes(found[16 * begin : 16 * (begin + count)])
            track.digests += digests[begin : begin + count]
            track.total = total
            begin += count

    # -- tokens ------------------------------------------------------------------------------------------------

    def next_tokens(self, tracks: Sequence[Track], lengths: Sequence[int]) -> list[int]:
        """The token that follows the first ``length`` cells of each track."""
        digests = [track.digests[length - 1] for track, length in zip(tracks, lengths, strict=True)]
        if self.vocab_size * len(digests) <= _FEW_LOGITS:
            return list(map(self._next_token, tracks, lengths, map(add, digests, lengths)))
        return self._next_tokens(tracks, lengths, words_of(digests) + words_of(lengths))

    def chances(self, track: Track, length: int) -> list[float]:
        """The probability of each token behind the first ``length`` cells of a track with a temperature."""
        z = np.uint64(mix_int(track.digests[length - 1] + length & MASK))
        scores: list[float] = ((mix(z ^ self._token_words) >> U11).astype(np.float64) * 2.0**-50).tolist()
        if track.masks_below > length:
            for token in track.masked(length):
                scores[token] = -inf
        top = max(scores)
        if top == -inf:
            return [1.0, *[0.0] * (self.vocab_size - 1)]
        scores = [(score - top) / track.temperature for score in scores]
        if track.drops:
            scores = _dropped(scores, track.request.sampling)
        shares = [exp(score) for score in scores]
        whole = sum(shares)
        return [share / whole for share in shares]

    def _next_token(self, track: Track, length: int, digest_sum: int) -> int:
        """The words of all tokens at once, each in 128 bits of one long integer: few lanes are quicker so than as an array."""
        lanes = self._lanes
        mask = lanes.mask
        z = ((mix_int(digest_sum & MASK) * lanes.ones ^ lanes.token_words) + lanes.golden) & mask
        z = ((z ^ ((z >> 30) & mask)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ ((z >> 27) & mask)) * 0x94D049BB133111EB) & mask
        z = ((z ^ (z >> 31)) >> 11) & lanes.mask_53
        values: Sequence[int] = lanes.unpack(z.to_bytes(lanes.num_bytes, "little"))  # logits, times 2^50
        stops: Sequence[int] = ()
        if track.masks_below > length:
            stops = track.masked(length)
            values = [-1 if token in stops else value for token, value in enumerate(values)]
        top = max(values)
        temperature = track.temperature
        if temperature <= 0 or top < 0:
            return values.index(top)
        scores = [(value - top) * 2.0**-50 / temperature for value in values]
        for token in stops:
            scores[token] = -inf
        if track.drops:
            scores = _dropped(scores, track.request.sampling)
        scores = list(map(add, scores, self._noise[self._noise_at(track, length)].tolist()))
        return scores.index(max(scores))

    def _next_tokens(self, tracks: Sequence[Track], lengths: Sequence[int], sums: Words) -> list[int]:
        """The same in arrays over all rows. A row that is greedy, or wholly masked, gets noise of 0."""
        logits = (mix(mix(sums)[:, None] ^ self._token_words) >> U11).astype(np.float64)
        logits *= 2.0**-50
        drawn, dropping = [], []
        for row, (track, length) in enumerate(zip(tracks, lengths, strict=True)):
            is_drawn = track.temperature > 0
            if track.masks_below > length:
                stops = track.masked(length)
                logits[row, list(stops)] = -inf
                if len(stops) == self.vocab_size:
                    logits[row] = 0.0
                    is_drawn = False
            if is_drawn:
                drawn.append(row)
                if track.drops:
                    dropping.append(row)
        if drawn:
            logits -= np.maximum.reduce(logits, axis=1, keepdims=True)
            logits /= np.array([track.temperature or 1.0 for track in tracks])[:, None]
            for row in dropping:
                logits[row] = _dropped(logits[row].tolist(), tracks[row].request.sampling)
            seeds = [tracks[row].request.sampling.seed for row in drawn]
            choices, positions = [tracks[row].choice for row in drawn], [lengths[row] for row in drawn]
            logits[drawn] += gumbel(seeds, choices, positions, self.vocab_size)
        chosen: list[int] = logits.argmax(axis=1).tolist()
        return chosen

    def _noise_at(self, track: Track, position: int) -> int:
        """The row of the table with the Gumbel noise of each token at one position. It depends on the address alone, so it is
        kept for others."""
        page, place = divmod(position, _NOISE_PAGE)
        key = (track.request.sampling.seed, track.choice, page)
        first = self._noise_pages.get(key)
        if first is None:
            self._make_room_for_noise(1)
            first = self._noise_pages[key] = 1 + len(self._noise_pages) * _NOISE_PAGE
            positions = np.arange(page * _NOISE_PAGE, (page + 1) * _NOISE_PAGE)
            uniform = uniforms(key[0], track.choice, positions, SAMPLE, self.vocab_size)
            self._noise[first : first + _NOISE_PAGE] = -np.log(-np.log(uniform))
        return first + place

    def _make_room_for_noise(self, pages: int) -> None:
        """What was kept is forgotten if there is no room for so many more pages."""
        room = (len(self._noise) - 1) // _NOISE_PAGE
        if len(self._noise_pages) + pages > room:
            self._noise_pages.clear()
            if pages > room:
                self._noise = np.zeros((1 + 2 * pages * _NOISE_PAGE, self.vocab_size))


class _Lanes:
    """Numbers that hold something for each token of the vocabulary, in 128 bits: so much is a product of two words."""

    __slots__ = ("golden", "mask", "mask_53", "num_bytes", "ones", "token_words", "unpack")

    def __init__(self, vocab_size: int) -> None:
        self.ones = sum(1 << 128 * token for token in range(vocab_size))
        self.golden, self.mask, self.mask_53 = 0x9E3779B97F4A7C15 * self.ones, MASK * self.ones, (2**53 - 1) * self.ones
        self.token_words = sum(mix_int(token) << 128 * token for token in range(vocab_size))
        self.unpack = Struct("<" + "Q8x" * vocab_size).unpack
        self.num_bytes = 16 * vocab_size


def _sums_of_each(values: Words, lasts: npt.NDArray[np.intp], counts: npt.NDArray[np.intp], firsts: list[int]) -> Words:
    """Running sums of pieces that stand one after the other, each from its own first number on."""
    sums = values.cumsum()
    offsets = words_of(firsts)
    offsets[1:] -= sums[lasts[:-1]]
    sums += offsets.repeat(counts)
    return sums


def _dropped(scaled: list[float], sampling: SamplingParams) -> list[float]:
    """The tokens that may not be drawn get no chance: a walk down the order, one token after the other."""
    order = sorted(range(len(scaled)), key=scaled.__getitem__, reverse=True)  # stable, so lower tokens first among equals
    if sampling.min_p > 0:
        least = log(sampling.min_p)
        order = [token for token in order if scaled[token] >= least]
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        shares = [exp(scaled[token]) for token in order]
        wanted = sampling.top_p * sum(shares)
        order = [token for token, earlier in zip(order, accumulate(shares, initial=0.0), strict=False) if earlier < wanted]
    left = [-inf] * len(scaled)
    for token in order:
        left[token] = scaled[token]
    return left
