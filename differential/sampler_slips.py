"""What a sampler would draw that gets one thing wrong: how it is known that a row decides about that thing.

Owns the list of such slips, and the count of rows that decide about them. A row *decides* about a slip if it leads to a token
that the law does not allow: only these rows count as reached. Where a token is wrong, the slips that lead to it are named
beside it. Never a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from differential.sampler_cases import Case
from engine_under_test.types import SamplingParams
from models.law_of_filters import Address, Drawn, Floats, Kept, Tokens, UniformsAt, drawn, kept, masked

Slip = Callable[[], int]
SlipsOf = Callable[[Case, Kept, UniformsAt], Iterator[tuple[str, Slip]]]

# After so many a noise may begin again that counts lanes in too few bits, or draws them in pages.
_LANES = (4_096, 32_768, 65_536)


def slips(case: Case, row: Kept, noise: UniformsAt) -> Iterator[tuple[str, Slip]]:
    """Each slip that is possible in this row, and how to learn which token it leads to. ``row``: what the law keeps of it."""
    sampling, address = case.sampling, case.address
    logits = case.logits.astype(np.float64)
    if sampling.min_tokens > address.index and sampling.stop_token_ids:
        yield "min_tokens unheeded", lambda: drawn(kept(logits, sampling), address, noise).token
    left = masked(logits, sampling, address.index)
    if row.temperature == 0:
        best = np.flatnonzero(left == left.max())
        if len(best) > 1 and left[best[0]] > -np.inf:
            yield "ties at the maximum to the highest", lambda: int(best[-1])
        return
    for name, slipped in _addresses(address):
        yield name, partial(_token, row, slipped, noise)
    for name, worse in _noises(row, noise):
        yield name, partial(_token, row, address, worse)
    for name, other in _parameters(sampling):
        yield name, partial(_filtered, left, other, address, noise)
    if _cuts_equals(left, row):
        place = "the k-th place" if len(row.tokens) == sampling.top_k else "the place where p is reached"
        yield f"ties at {place} to the highest", lambda: _backwards(left, sampling, address, noise).token


def _token(row: Kept, address: Address, noise: UniformsAt) -> int:
    return drawn(row, address, noise).token


def _filtered(left: Floats, sampling: SamplingParams, address: Address, noise: UniformsAt) -> int:
    return _token(kept(left, sampling), address, noise)


def _noises(row: Kept, noise: UniformsAt) -> Iterator[tuple[str, UniformsAt]]:
    for modulus in _LANES:
        if row.tokens[-1] >= modulus:
            yield f"noise again after {modulus:,} lanes", _repeated(noise, modulus)
    yield "noise of fewer digits", _single(noise)


def _addresses(address: Address) -> Iterator[tuple[str, Address]]:
    """Addresses that lack something. Where it makes no difference, there is no slip."""
    changed = {
        "seed cut to 32 bits": replace(address, seed=address.seed % 2**32),
        "seed as a double": replace(address, seed=int(float(address.seed)) % 2**64),
        "seed as a signed number": replace(address, seed=min(address.seed, 2**63 - 1)),
        "position left out": replace(address, position=0),
        "position of the output": replace(address, position=address.index),
        "position cut to 16 bits": replace(address, position=address.position % 2**16),
        "choice left out": replace(address, choice=0),
    }
    return ((name, slipped) for name, slipped in changed.items() if slipped != address)


def _parameters(sampling: SamplingParams) -> Iterator[tuple[str, SamplingParams]]:
    if sampling.top_k:
        yield "top-k left out", replace(sampling, top_k=0)
    if sampling.top_p < 1:
        yield "top-p left out", replace(sampling, top_p=1.0)
    if sampling.min_p:
        yield "min-p left out", replace(sampling, min_p=0.0)


@dataclass(slots=True)
class Reach:
    """How many rows decided about each slip. Past twice its floor a slip is looked at no more: it takes a draw of its own."""

    floors: Mapping[str, int]
    counted: Counter[str] = field(default_factory=Counter)
    slips: SlipsOf = slips

    def take(self, case: Case, row: Kept, draw: Drawn, noise: UniformsAt) -> None:
        """Counts what one row decides about."""
        for name, other in self.slips(case, row, noise):
            if self.counted[name] < 2 * self.floors.get(name, 0):
                self.counted[name] += other() not in draw.allowed

    def count(self, name: str, decides: bool) -> None:
        """The same for a slip that somebody else has looked at."""
        self.counted[name] += decides

    def missed(self) -> Iterator[str]:
        """The floors that were not reached."""
        for name, floor in self.floors.items():
            if self.counted[name] < floor:
                yield f"{name}: decided at least {floor} times, found {self.counted[name]}"


def _cuts_equals(left: Floats, row: Kept) -> bool:
    """Whether the last token that a filter keeps has an equal among those that it drops."""
    last = left[row.tokens].min()
    return bool(np.count_nonzero(left == last) > np.count_nonzero(left[row.tokens] == last)) and last > -np.inf


def _backwards(left: Floats, sampling: SamplingParams, address: Address, noise: UniformsAt) -> Drawn:
    """The draw if the highest of equals came first."""
    last = len(left) - 1
    row = kept(left[::-1], sampling)
    tokens = (last - row.tokens)[::-1]
    return drawn(replace(row, tokens=tokens, values=row.values[::-1], is_sure=row.is_sure[::-1]), address, noise)


def _single(noise: UniformsAt) -> UniformsAt:
    def at(address: Address, lanes: Tokens) -> Floats:
        return noise(address, lanes).astype(np.float32).astype(np.float64).clip(max=1 - 2.0**-53)

    return at


def _repeated(noise: UniformsAt, modulus: int) -> UniformsAt:
    def at(address: Address, lanes: Tokens) -> Floats:
        found: Floats = noise(address, np.arange(min(modulus, int(lanes[-1]) + 1)))[lanes % modulus]
        return found

    return at
