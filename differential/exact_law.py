"""The law of whatever draws its noise through the seam, computed by integrating over its noise addresses. No sampling.

Owns: a noise in which every address is one variable, and the integral over all of them. Never: what law is right
(`enumerated_law.py`).

A function of uniforms that only compares them with thresholds is constant on boxes. The variables are those addresses that are
asked for; their thresholds are found by bisection, between values at which the outcome differs; then every box is visited
once, near two corners and within, and its volume is added to its outcome's. If the three points differ, a threshold was missed,
and nothing is claimed. A draw whose address is used twice is one variable used twice: the law comes out as it is, and not as
it would be with two draws.

The seed of a row is its place in the batch, so that the noise knows which row asks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from engine_under_test.seams import Noise

Floats = npt.NDArray[np.float64]
Outcomes = npt.NDArray[np.int64]  # [rows, columns], each below `BASE`, -1 for nothing
System = Callable[[Noise, int], Outcomes]  # what comes of so many rows, whose seeds are 0, 1, ...
Address = tuple[int, int, int, int]  # choice, position, purpose, lane
Law = dict[tuple[int, ...], float]

MOST_BOXES = 3_000_000
_ROWS_AT_ONCE = 1 << 16
_ROWS_LOOKED_AT = 4096
_CONTEXTS = (64, 512)  # rows in which thresholds of a variable are looked for; the second number if the first was too small
_STEPS = 64  # places at which each looks
_BISECTIONS = 50
_SAME = 1e-12  # thresholds nearer than this are one
_MOST_APART = 4096
_EDGE = 1e-6  # how near to the corners, of a box's widths


class NotIntegrable(Exception):
    """Not all thresholds were found, or there are too many boxes: nothing is known."""


class ForeignNoise(Exception):
    """What comes of a row depends on something else than the noise at its own addresses."""


@dataclass(slots=True)
class Variables:
    """A `Noise` whose numbers are set by hand: column j of ``values`` [rows, variables] stands for ``addresses[j]``. An address
    that was never asked for becomes a variable; it is ``fresh`` where it has no column yet."""

    addresses: dict[Address, int] = field(default_factory=dict)
    values: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    fresh: float = 0.5

    def uniform(
        self, seeds: npt.NDArray[np.uint64], choices: npt.NDArray[np.uint32], positions: npt.NDArray[np.uint32], purpose: int,
        num_lanes: int,
    ) -> Floats:  # fmt: skip
        """See `seams.Noise`."""
        found = np.empty((len(seeds), num_lanes))
        rows = seeds.astype(np.int64)
        if len(rows) and rows.max() >= len(self.values):
            raise ForeignNoise(f"noise of seed {rows.max()} was asked for, which is no row's")
        places, of = _numbered(choices.astype(np.uint64) << np.uint64(32) | positions)
        for lane in range(num_lanes):
            numbers = [self._number((place >> 32, place & 0xFFFFFFFF, purpose, lane)) for place in places.tolist()]
            columns = np.array(numbers, np.int64)
            found[:, lane] = self._values(columns if of is None else columns[of], rows)
        return found

    def uniform_at(self, seed: int, choice: int, position: int, purpose: int, lanes: npt.NDArray[np.int64]) -> Floats:
        """See `seams.Noise`."""
        columns = [self._number((choice, position, purpose, int(lane))) for lane in lanes]
        return self._values(np.array(columns, np.int64), np.full(len(columns), seed))

    def _number(self, address: Address) -> int:
        return self.addresses.setdefault(address, len(self.addresses))

    def _values(self, columns: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Floats:
        """The number in each of some rows, in a column of its own or, if there is only one, in that."""
        known = self.values.shape[1]
        if not len(columns) or columns.max() < known:
            found: Floats = self.values[rows, columns]
            return found
        found = np.full(len(rows), self.fresh)
        is_known = np.broadcast_to(columns < known, rows.shape)
        found[is_known] = self.values[rows[is_known], np.broadcast_to(columns, rows.shape)[is_known]]
        return found


def _numbered(places: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64] | None]:
    """Distinct places in rising order, and which of them each is; None if there is only one (or none), which is often so."""
    if not len(places):
        return places, None
    low, high = places.min(), places.max()
    if low == high:
        return places[:1], None
    if high - low >= _MOST_APART:
        distinct, of = np.unique(places, return_inverse=True)
        return distinct, of.reshape(-1)
    offsets = (places - low).astype(np.int64)  # few: counted, not sorted
    present = np.flatnonzero(np.bincount(offsets))
    number = np.zeros(int(high - low) + 1, np.int64)
    number[present] = np.arange(len(present))
    return present.astype(np.uint64) + low, number[offsets]


@dataclass(slots=True)
class Integral:
    """The law of a system. ``thresholds``: of each variable, rising; ``boxes``: how many were visited."""

    law: Law
    addresses: tuple[Address, ...]
    thresholds: tuple[Floats, ...]
    boxes: int


def integrate(system: System, seed: int = 0) -> Integral:
    """The law of the outcome of one row. ForeignNoise if it has none of its own, NotIntegrable if it can not be said."""
    chance = np.random.default_rng(seed)
    noise = Variables()

    def run(values: Floats) -> Outcomes:
        found = []
        for begin in range(0, len(values), _ROWS_AT_ONCE):
            noise.values = values[begin : begin + _ROWS_AT_ONCE]
            found.append(system(noise, len(noise.values)))
        return np.concatenate(found)

    _discover(run, noise, chance)
    why = NotIntegrable("nothing was tried")
    for num_contexts in _CONTEXTS:
        thresholds = _thresholds(run, len(noise.addresses), num_contexts, chance)
        try:
            law, boxes = _sum(run, thresholds, chance)
        except NotIntegrable as reason:
            why = reason
        else:
            return Integral(law, tuple(noise.addresses), tuple(thresholds), boxes)
    raise why


def _discover(run: Callable[[Floats], Outcomes], noise: Variables, chance: np.random.Generator) -> None:
    """Runs until no new address is asked for; and sees that a row depends on nothing of the others."""
    known, values, found = -1, np.empty((0, 0)), np.empty((0, 0), np.int64)
    while known < len(noise.addresses):
        known = len(noise.addresses)
        values = chance.uniform(size=(_ROWS_LOOKED_AT, known))
        found = run(values)
    order = chance.permutation(len(values))
    if (moved := (run(values[order]) != found[order]).any(axis=1)).any():
        row = int(np.flatnonzero(moved)[0])
        raise ForeignNoise(
            f"{int(moved.sum())} of {len(values)} rows come to something else when the rows stand in another order, as "
            f"{found[order][row].tolist()}"
        )


def _thresholds(run: Callable[[Floats], Outcomes], num: int, num_contexts: int, chance: np.random.Generator) -> list[Floats]:
    """Of each variable: where the outcome changes as it rises, all others being held, in any of some contexts."""
    strata = chance.permuted(np.tile(np.arange(num_contexts), (num, 1)), axis=1).T
    contexts = (strata + chance.uniform(size=strata.shape)) / num_contexts
    steps = (np.arange(_STEPS) + 0.5) / _STEPS
    grid = np.tile(np.repeat(contexts, _STEPS, axis=0), (num, 1, 1))
    for variable in range(num):
        grid[variable, :, variable] = np.tile(steps, num_contexts)
    found = run(grid.reshape(num * num_contexts * _STEPS, num)).reshape(num, num_contexts, _STEPS, -1)
    place, context, step = np.nonzero((found[:, :, 1:] != found[:, :, :-1]).any(axis=3))
    before, behind, values = found[place, context, step], found[place, context, step + 1], contexts[context]
    low, end = steps[step], steps[step + 1]
    changes: list[list[float]] = [[] for _ in range(num)]
    while len(place):  # the first change between low and end; then, if that is not all, the next
        high, rows = end.copy(), np.arange(len(place))
        for _turn in range(_BISECTIONS):
            middle = values[rows, place] = (low + high) / 2
            is_before = (run(values) == before).all(axis=1)
            low, high = np.where(is_before, middle, low), np.where(is_before, high, middle)
        for one, threshold in zip(place.tolist(), high.tolist(), strict=True):
            changes[one].append(threshold)
        values[rows, place] = high
        before = run(values)
        more = (before != behind).any(axis=1)
        low, end, before, behind, values, place = high[more], end[more], before[more], behind[more], values[more], place[more]
    return [_apart(np.unique(each)) for each in changes]


def _apart(rising: Floats) -> Floats:
    """Without those that differ from the one before by no more than rounding: no number lies between them."""
    return rising[np.diff(rising, prepend=-1.0) > _SAME]


def _sum(run: Callable[[Floats], Outcomes], thresholds: Sequence[Floats], chance: np.random.Generator) -> tuple[Law, int]:
    """The volume of every box, added to its outcome's; and how many there are."""
    boxes = math.prod(len(each) + 1 for each in thresholds)
    if boxes > MOST_BOXES:
        raise NotIntegrable(f"{boxes:,} boxes are more than {MOST_BOXES:,}")
    edges = [np.concatenate([[0.0], each, [1.0]]) for each in thresholds]
    law: Law = {}
    for begin in range(0, boxes, _ROWS_AT_ONCE):
        places = np.unravel_index(np.arange(begin, min(begin + _ROWS_AT_ONCE, boxes)), [len(each) - 1 for each in edges])
        low = np.stack([each[place] for each, place in zip(edges, places, strict=True)], axis=1)
        width = np.stack([each[place + 1] for each, place in zip(edges, places, strict=True)], axis=1) - low
        one, other = run(low + _EDGE * width), run(low + (1 - _EDGE) * width)
        between = run(low + width * chance.uniform(size=low.shape))
        if (differs := ((one != other) | (one != between)).any(axis=1)).any():
            worst = int(np.flatnonzero(differs)[0])
            raise NotIntegrable(
                f"{int(differs.sum())} of {len(one)} rows come to two outcomes within one box of their own noise, "
                f"as {one[worst].tolist()} and {other[worst].tolist()}"
            )
        outcomes, of = np.unique(one, axis=0, return_inverse=True)
        volumes = np.bincount(of.reshape(-1), weights=width.prod(axis=1), minlength=len(outcomes))
        for outcome, volume in zip(map(tuple, outcomes.tolist()), volumes.tolist(), strict=True):
            law[outcome] = law.get(outcome, 0.0) + volume
    return law, boxes


def total_variation(one: Law, other: Law) -> float:
    """Half the sum of differences; over all outcomes of either."""
    return math.fsum(abs(one.get(each, 0.0) - other.get(each, 0.0)) for each in sorted({*one, *other})) / 2


def largest_difference(one: Law, other: Law) -> float:
    return max(abs(one.get(each, 0.0) - other.get(each, 0.0)) for each in {*one, *other})
