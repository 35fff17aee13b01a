"""How many drafts a row gets in the next plan: the width that costs least for each token committed, as far as is known by now.

Owns: what was seen of acceptance and of the time of stages, and the choice among a few prepared widths. Never: which tokens are
proposed, or a state of any row. It is asked once before a plan and told once behind it, so a width holds for whole plans; the
only thing that a change of width leaves behind is the number of plans since. It draws no noise: equal news, equal choices.

The estimate. Of a row that was given w drafts of which a stood, drafts 1..a stood and draft a + 1 fell, if there was one: what
lies behind it says nothing. So the chance that a draft stands when all before it did is counted for each depth, by bucket of
batch size, with older plans discounted. A depth that was not tried lately is taken to be like the one before it. A step of R
rows at width w commits R (1 + c1 + c1 c2 + ... + c1 ... cw) tokens; it costs what verifying R (w + 1) tokens costs, a line
fitted to the steps seen, and w times what a round of drafting costs. While requests wait, the place in the step that a draft
takes from a prompt has its price too.

The choice is slow on purpose: costs are smoothed, another width must be better by a margin, a width is kept for some plans, and
the next one is a neighbour in the list of widths. Only a lack of blocks acts at once. A width that is kept says little of the
others, and width 0 nothing, so now and then one plan tries a neighbour, the one above and the one below in turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_under_test.errors import ConfigError

_IMPOSSIBLE = 1e-6
_BELIEF = 0.02  # weight of costs that were never seen, in steps


class Conditions(NamedTuple):
    """What the next plan meets. ``free_blocks``: those that could be taken now, cached ones included; ``num_waiting``: requests
    that would enter if there were room."""

    num_rows: int
    free_blocks: int
    block_size: int
    num_waiting: int = 0


class Trial(NamedTuple):
    """What came of one row's drafts in a plan."""

    width: int
    num_accepted: int


class Seconds(NamedTuple):
    """What the stages of one plan took."""

    propose: float
    verify: float


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """``widths``: the prepared ones, rising, 0 the first. ``memory``: trials after which what was seen of acceptance has lost
    two thirds of its weight; ``cost_memory``: plans, of costs. ``smoothing``: share of the newest estimate in a width's cost.
    ``margin``: by which share another width must be cheaper. ``dwell``: plans for which a width is kept at least.
    ``probe_every``: plans between two tries of a neighbour. ``spare_blocks``: kept free of drafts for each row. ``buckets``:
    largest batch of each, rising; the last one has no end. ``first_chance``: of a draft to stand, before anything was seen,
    with the weight of ``first_weight`` rows. ``first_costs``: seconds of a step, of a token in it and of a round of drafting,
    likewise."""

    widths: tuple[int, ...] = (0, 1, 2, 4)
    memory: float = 64.0
    cost_memory: float = 256.0
    smoothing: float = 0.25
    margin: float = 0.05
    dwell: int = 4
    probe_every: int = 32
    spare_blocks: int = 1
    buckets: tuple[int, ...] = (1, 4, 16)
    first_chance: float = 0.7
    first_weight: float = 2.0
    first_costs: tuple[float, float, float] = (10e-3, 0.1e-3, 1e-3)

    def __post_init__(self) -> None:
        rules = (
            (
                self.widths[:1] == (0,) and list(self.widths) == sorted(set(self.widths)) and len(self.widths) > 1,
                "widths rise from 0 and are at least two",
                self.widths,
            ),
            (
                list(self.buckets) == sorted(set(self.buckets)) and min(self.buckets, default=1) >= 1,
                "buckets rise",
                self.buckets,
            ),
            (min(self.memory, self.cost_memory) >= 1, "memories are at least 1", (self.memory, self.cost_memory)),
            (0 < self.smoothing <= 1, "smoothing lies in (0, 1]", self.smoothing),
            (0 <= self.margin < 1, "margin lies in [0, 1)", self.margin),
            (self.dwell >= 1 and self.probe_every >= 1, "dwell and probe_every are at least 1", (self.dwell, self.probe_every)),
            (0 < self.first_chance < 1 and self.first_weight > 0, "the first chance lies in (0, 1)", self.first_chance),
            (min(self.first_costs) >= 0 and self.first_costs[0] > 0, "a step takes time", self.first_costs),
        )
        for holds, rule, found in rules:
            if not holds:
                raise ConfigError(f"a controller's {rule}, found {found}; correct the configuration")


@dataclass(slots=True)
class _Acceptance:
    """Of each depth, discounted: how often the draft was judged, and how often it stood.

    So many falls in a row that they are next to impossible at what was known mean that the world has changed: they are all
    that is known then.
    """

    judged: list[float]
    stood: list[float]
    falls: list[int]  # in a row, up to now

    def count(self, trial: Trial, kept: float) -> None:
        """A depth forgets only as it learns: `kept` of what it knew, for each new trial of it."""
        for depth in range(min(trial.num_accepted + 1, trial.width)):
            self.judged[depth] = self.judged[depth] * kept + 1
            self.stood[depth] = self.stood[depth] * kept + (depth < trial.num_accepted)
            self.falls[depth] = 0 if depth < trial.num_accepted else self.falls[depth] + 1
            known = self.judged[depth] - self.falls[depth]
            if known > 0 and (1 - min(self.stood[depth] / known, 1.0)) ** self.falls[depth] < _IMPOSSIBLE:
                self.judged[depth], self.stood[depth] = float(self.falls[depth]), 0.0

    def tokens(self, width: int, chance: float, weight: float) -> float:
        """Tokens that a row commits in a step with so many drafts; ``chance`` and ``weight`` stand for what was not seen."""
        found, reached = 1.0, 1.0
        for depth in range(width):
            chance = (self.stood[depth] + weight * chance) / (self.judged[depth] + weight)
            reached *= chance
            found += reached
        return found


@dataclass(slots=True)
class _Line:
    """A line through points, older ones discounted; begins with two points that stand for what is believed before."""

    sums: list[float]  # of 1, x, y, xx, xy

    @staticmethod
    def through(offset: float, slope: float) -> _Line:
        line = _Line([0.0] * 5)
        for x in (1.0, 32.0):
            line.add(x, offset + slope * x)
        line.discount(_BELIEF)
        return line

    def discount(self, factor: float) -> None:
        self.sums = [each * factor for each in self.sums]

    def add(self, x: float, y: float) -> None:
        for place, amount in enumerate((1.0, x, y, x * x, x * y)):
            self.sums[place] += amount

    def at(self, x: float) -> float:
        """Never below what a falling line, or one that begins below 0, would say of the mean."""
        weight, xs, ys, squares, products = self.sums
        middle, mean = xs / weight, ys / weight
        spread = squares / weight - middle * middle
        slope = (products / weight - middle * mean) / spread if spread > 1e-9 * squares / weight else 0.0
        slope = min(max(slope, 0.0), mean / middle)
        return mean + slope * (x - middle)


@dataclass(slots=True)
class _Bucket:
    acceptance: _Acceptance
    verify: _Line
    round_s: float
    costs: dict[int, float] = field(default_factory=dict)  # smoothed, of a committed token, by width


class WidthController:
    """Says how many drafts the rows of the next plan get. `choose`, plan and run, `observe`; nothing else."""

    def __init__(self, config: ControllerConfig = ControllerConfig()) -> None:
        self.config = config
        self._buckets = [self._new_bucket() for _ in range(len(config.buckets) + 1)]
        self._place = 0  # of the width in `widths`
        self._kept = config.dwell  # plans since it changed
        self._untried = config.probe_every - config.dwell  # plans since a neighbour was tried: soon, at first
        self._tries = 0
        self.num_switches = 0

    @property
    def width(self) -> int:
        """The width that holds, but for a lack of blocks and for tries."""
        return self.config.widths[self._place]

    def choose(self, conditions: Conditions) -> int:
        """The width of the next plan: at most this many drafts for each row."""
        config = self.config
        most = self._most(conditions)
        allowed = [place for place, width in enumerate(config.widths) if width <= most]
        costs = self._costs(conditions)
        self._kept += 1
        if self._place > allowed[-1]:
            self._switch(allowed[-1])
        elif self._kept >= config.dwell:
            best = min(allowed, key=lambda place: costs[config.widths[place]])
            if costs[config.widths[best]] < (1 - config.margin) * costs[self.width]:
                self._switch(self._place + (1 if best > self._place else -1))
        self._untried += 1
        if self._untried < config.probe_every:
            return self.width
        self._untried = 0
        self._tries += 1
        neighbours = [place for place in (self._place - 1, self._place + 1) if place in allowed]
        return config.widths[neighbours[self._tries % len(neighbours)]] if neighbours else self.width

    def observe(self, num_rows: int, trials: Iterable[Trial], seconds: Seconds) -> None:
        """What came of a plan that was committed: of each row that had drafts, and the time of its stages."""
        bucket = self._buckets[bisect_left(self.config.buckets, num_rows)]
        tried = list(trials)
        bucket.verify.discount(1 - 1 / self.config.cost_memory)
        bucket.verify.add(num_rows + sum(trial.width for trial in tried), seconds.verify)
        rounds = max((trial.width for trial in tried), default=0)
        if rounds:
            bucket.round_s += (seconds.propose / rounds - bucket.round_s) * self.config.smoothing
        for trial in tried:
            bucket.acceptance.count(trial, 1 - 1 / self.config.memory)

    def cost(self, conditions: Conditions, width: int) -> float:
        """Seconds for each token committed, as estimated now."""
        rows = max(conditions.num_rows, 1)
        bucket = self._buckets[bisect_left(self.config.buckets, rows)]
        verify = bucket.verify.at(rows * (width + 1))
        displaced = min(rows * width, conditions.num_waiting) * verify / (rows * (width + 1))
        tokens = rows * bucket.acceptance.tokens(width, self.config.first_chance, self.config.first_weight)
        return (verify + width * bucket.round_s + displaced) / tokens

    def _costs(self, conditions: Conditions) -> dict[int, float]:
        bucket = self._buckets[bisect_left(self.config.buckets, max(conditions.num_rows, 1))]
        for width in self.config.widths:
            now = self.cost(conditions, width)
            last = bucket.costs.get(width, now)
            bucket.costs[width] = last + (now - last) * self.config.smoothing
        return bucket.costs

    def _most(self, conditions: Conditions) -> int:
        """Drafts a row for which there are blocks beside those that are spared."""
        rows = max(conditions.num_rows, 1)
        return max(conditions.free_blocks // rows - self.config.spare_blocks, 0) * conditions.block_size

    def _switch(self, place: int) -> None:
        self._place, self._kept = place, 0
        self.num_switches += 1

    def _new_bucket(self) -> _Bucket:
        deepest = self.config.widths[-1]
        step_s, token_s, round_s = self.config.first_costs
        return _Bucket(_Acceptance([0.0] * deepest, [0.0] * deepest, [0] * deepest), _Line.through(step_s, token_s), round_s)
