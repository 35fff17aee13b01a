"""Does an engine in bfloat16 round where it may, and nowhere else? Judged against independent passes in bfloat16.

Owns which pass is the one for which attention, and how far from it a run may be. The bounds of `compare.py` say how far
rounding may lead from exact numbers; a softmax or a norm that is computed in bfloat16 stays within them. Never runs an engine
(`running.py`) or computes a logit (`reference.py`, `hf_oracle.py`).

The figure of a run is the root mean square over all its logits, each as a share of the spread of its row, of engine minus
pass, over that of pass minus exact: 0 if the engine rounds as the pass does, about 1 if they share no rounding. Measured on
three shapes (one and two layers, head size 16), runs of 24 to 52 rows, contexts up to 41 and up to 284 tokens:

    attention        pass         figures of 72 runs     a fault, 9 to 12 runs each                             bound
    eager            eager        0 .. 0.21              exponentials in bfloat16 0.57, a norm 1.08             0.4
    eager            transformers 0 .. 0.17              exponentials in bfloat16 0.57, a norm 1.08             0.4
    paged-torch      fused        0.25 .. 0.58           softmax 0.73, softmax and sums 0.76, a norm 1.15       0.65
    fixed-tiles      tiled, short 0 .. 0.19 (18 runs)    exponentials 0.53, their sums 0.63, a norm 1.18        0.4
    fixed-tiles      tiled, long  0.49 .. 0.79 (18)      a norm 1.23                                            0.95

(of a fault the smallest figure). Queries eight times as large bring the figures of a sound engine down to 0.47 at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from differential.compare import LEAST_ROWS, CachedOracle, Divergence, Emitted, Oracle, Seen
from differential.hf_oracle import HfOracle
from differential.reference import Rounding, reference_logits
from differential.setting import ModelSpec, Setting, encoder_of, weights_of

# What a run may come to, by where its attention rounds.
BOUNDS = {Rounding.EAGER: 0.4, Rounding.TILED: 0.4, Rounding.FUSED: 0.65}
BOUNDS_OF_LONG = {Rounding.TILED: 0.95}  # a context of several tiles is rounded once more in each
LONG = 64  # tokens: more do not fit one tile


def rounding_of(setting: Setting) -> Rounding:
    """Where the attention of a setting rounds on a CPU: the fallback as the published models, kernels as kernels do."""
    if setting.is_batch_invariant:
        return Rounding.TILED
    return Rounding.EAGER if setting.attention == "eager" else Rounding.FUSED


def bound_of(rounding: Rounding, runs: Sequence[Emitted]) -> float:
    """What the figure of these runs may come to."""
    is_long = any(len(run.forced) > LONG for run in runs)
    return BOUNDS_OF_LONG.get(rounding, BOUNDS[rounding]) if is_long else BOUNDS[rounding]


@dataclass(slots=True)
class Passes:
    """The passes in bfloat16 of one model, each made when it is asked first."""

    model: ModelSpec
    _known: dict[str, CachedOracle] = field(default_factory=dict)

    def of(self, rounding: Rounding, *, asks_second_oracle: bool) -> Iterator[CachedOracle]:
        """Ours; and that of `transformers`, which computes as the published models do."""
        yield self._pass(f"{rounding} bfloat16", rounding)
        if asks_second_oracle and rounding is Rounding.EAGER:
            yield self._pass("transformers in bfloat16", None)

    def _pass(self, name: str, rounding: Rounding | None) -> CachedOracle:
        if name not in self._known:
            weights = weights_of(self.model)
            spelled = encoder_of(self.model).spelled
            others = HfOracle(weights, torch.bfloat16, spelled) if rounding is None else None

            def ask(tokens: tuple[int, ...], begin: int) -> torch.Tensor:
                if others is not None:
                    return others.logits(tokens, begin=begin)
                assert rounding is not None
                return reference_logits(weights, tokens, torch.bfloat16, begin=begin, rounding=rounding, given=spelled)

            self._known[name] = CachedOracle(name, ask)
        return self._known[name]


def figure_of(runs: Sequence[Emitted], exact: Oracle, rounded: Oracle) -> float:
    """The figure of the docstring, over all rows of a run."""
    rows = [row for run in runs for row in _shares(run, exact, rounded)]
    apart, due = (sum(float(share.square().sum()) for share in shares) for shares in zip(*rows, strict=True))
    return math.sqrt(apart / due)


def rounds_otherwise(
    runs: Sequence[Emitted], exact: Oracle, rounded: Oracle, allowed: float
) -> tuple[Divergence, Emitted] | None:
    """SE-3: over all rows of a run, the engine is nearer to the pass than rounding at other places would leave it. Names the
    row that is off the most."""
    runs = [run for run in runs if run.tokens]
    if sum(len(run.tokens) for run in runs) < LEAST_ROWS or (figure := figure_of(runs, exact, rounded)) <= allowed:
        return None
    off = {
        (number, index): ours.abs()
        for number, run in enumerate(runs)
        for index, (ours, _) in enumerate(_shares(run, exact, rounded))
    }
    number, index = max(off, key=lambda place: float(off[place].max()))
    run, other = runs[number], int(off[number, index].argmax())
    token, begin = run.tokens[index], len(run.request.prompt) - 1
    rows = {"engine": run.logits[index], rounded.name: rounded.logits(run.forced, begin)[index]}
    seen = tuple(Seen(by, float(row[token]), float(row[other])) for by, row in rows.items())
    what = f"logits are rounded otherwise than {rounded.name} (root mean square of the difference over that of rounding itself)"
    position = begin + 1 + index
    request = run.request.request_id
    return Divergence("SE-3", what, request, run.choice, index, position, token, other, figure, allowed, seen), run


def _shares(run: Emitted, exact: Oracle, rounded: Oracle) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """For each row: engine minus pass, and pass minus exact, over the spread."""
    if not run.tokens:
        return
    begin = len(run.request.prompt) - 1
    truth, passed = exact.logits(run.forced, begin), rounded.logits(run.forced, begin)
    spread = truth.std(dim=1, keepdim=True)
    yield from zip((run.logits.double() - passed) / spread, (passed - truth) / spread, strict=True)
