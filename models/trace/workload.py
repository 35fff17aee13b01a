"""The trace as operations, and one run of them: what was offered, and what came of it.

Owns the pace and the setting (how large the pool, how large a step). Judges nothing: World and its predicates do.

Pace: requests are offered by work, not by time. After each ADD come as many STEPs as keep their number at
⌊tokens offered so far / pace⌋, where a request's tokens are its prompt and ``max_tokens``. The last op is a DRAIN.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from engine_under_test.types import Request
from models.build import hasher_of, target_from
from models.trace.requests import Scale, TraceRequest
from models.trace.tally import Tally, bounds_of
from models.world import World
from properties.invariants import ALL
from properties.op import Op, OpKind


@dataclass(frozen=True, slots=True)
class Setting:
    """The target and its size, the trace's scale and its pace.

    ``block_size`` is the trace's scale; a target with pages of another size (radix: 1) keeps its own. ``output_divisor``:
    see `Scale`. ``pace``: tokens offered for each step.
    """

    num_blocks: int
    max_num_seqs: int
    output_divisor: int
    pace: int
    target: str = "assay"
    block_size: int = 16
    max_tokens_per_step: int = 512
    vocab_size: int = 256

    @property
    def scale(self) -> Scale:
        return Scale(self.block_size, self.vocab_size, self.output_divisor)

    @property
    def spec(self) -> dict[str, Any]:
        names = ("block_size", "num_blocks", "max_tokens_per_step", "max_num_seqs", "vocab_size")
        return {"target": self.target, "config": {name: getattr(self, name) for name in names}}


# Three quarters of the slice's distinct blocks fit and requests hardly queue: what the cache could find, it should find.
ROOMY = Setting(num_blocks=4096, max_num_seqs=48, output_divisor=32, pace=400)
# Some prompts of usual length fit beside the longest one and outputs are long: requests queue, cached blocks are evicted
# before they are asked for again, running requests are preempted.
TIGHT = Setting(num_blocks=768, max_num_seqs=96, output_divisor=6, pace=600)


def ops_of(requests: Iterable[Request], pace: int) -> Iterator[Op]:
    """The requests in order, as operations."""
    num_offered = num_steps = 0
    for request in requests:
        yield Op(OpKind.ADD, request=request)
        num_offered += len(request.prompt) + request.sampling.max_tokens
        for _ in range(num_offered // pace - num_steps):
            yield Op(OpKind.STEP)
        num_steps = num_offered // pace
    yield Op(OpKind.DRAIN)


@dataclass(frozen=True, slots=True, eq=False)
class TraceRun:
    """A run of a setting over a trace, not begun. `world` and `tally` say what happened, also half-way."""

    requests: tuple[Request, ...]
    world: World
    tally: Tally

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(request.prompt) for request in self.requests)

    @property
    def hit_rate(self) -> float:
        """Observed: tokens found in the cache at first admission, over all prompt tokens."""
        return sum(self.tally.found.values()) / self.num_prompt_tokens

    @property
    def hit_rate_bound(self) -> float:
        """Derived: what an infinite cache would have found, over all prompt tokens."""
        return sum(self.tally.bounds.values()) / self.num_prompt_tokens


def begin(trace: tuple[TraceRequest, ...], setting: Setting) -> TraceRun:
    target = target_from(setting.spec)
    tally = Tally(bounds_of(trace, setting.block_size, target.caps.block_size))
    world = World(target, hasher=hasher_of(setting.spec), predicates=(*ALL, tally.predicate()))
    return TraceRun(setting.scale.requests(trace), world, tally)
