"""Shrinking: the shortest story found that still breaks the same invariant.

Owns delta debugging over ops (`properties.fewest`), then over payloads and the world. Every candidate is run in a World of its
own; what does not end with the same identifier is dropped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_under_test.errors import BadInput
from engine_under_test.execution.schedule import TURN
from engine_under_test.types import Request, SamplingParams
from models.build import world_from
from properties.fewest import fewest
from properties.op import Op, OpKind
from properties.verdict import Violation

Spec = Mapping[str, Any]
Runner = Callable[[Spec, Sequence[Op]], Violation | None]

_FARTHEST_MOVE = 3
_PLAIN_SAMPLING = SamplingParams()
_SMALLER_CONFIG: Mapping[str, tuple[Any, ...]] = {
    "max_plans_in_flight": (1, 2),
    "num_blocks": (2, 3, 4, 6, 8),
    "block_size": (1, 2),
    "max_num_seqs": (1, 2),
    "max_tokens_per_step": (4, 8),
}


@dataclass(frozen=True, slots=True)
class Shrunk:
    """What shrinking came to. ``tries``: worlds that were run for it."""

    spec: Spec
    ops: tuple[Op, ...]
    violation: Violation
    tries: int


def run_once(spec: Spec, ops: Sequence[Op]) -> Violation | None:
    """The violation that these ops end with, if any."""
    try:
        world = world_from(spec)
    except BadInput:
        return None
    world.run(ops)
    return world.violation


def shrink(spec: Spec, ops: Sequence[Op], violation: Violation, **limits: Any) -> tuple[Op, ...]:
    """The shortest ops found that break the same invariant in the same world."""
    return shrink_world(spec, ops, violation, may_change_world=False, **limits).ops


def shrink_world(
    spec: Spec,
    ops: Sequence[Op],
    violation: Violation,
    *,
    may_change_world: bool = True,
    max_tries: int = 3000,
    max_seconds: float = 20.0,
    run: Runner = run_once,
    now: Callable[[], float] = time.monotonic,
) -> Shrunk:
    """Like `shrink`, but a smaller world is taken too where it breaks the same invariant."""
    search = _Search(spec, tuple(ops), violation, max_tries, now() + max_seconds, run, now)
    search.cut_behind_the_end()
    is_better = True
    while is_better and not search.is_over():
        is_better = search.drop_ops()
        is_better |= search.drop_choices()
        is_better |= search.simplify_payloads()
        is_better |= search.move_ops()
        if may_change_world:
            is_better |= search.simplify_world()
    return Shrunk(search.spec, search.ops, search.violation, search.tries)


@dataclass(slots=True)
class _Search:
    """The smallest failing story so far."""

    spec: Spec
    ops: tuple[Op, ...]
    violation: Violation
    max_tries: int
    ends_at: float
    run: Runner
    now: Callable[[], float]
    tries: int = 0

    def is_over(self) -> bool:
        return self.tries >= self.max_tries or self.now() >= self.ends_at

    def accept(self, ops: Sequence[Op], spec: Spec | None = None) -> bool:
        """Takes a candidate if it still breaks the invariant."""
        if self.is_over():
            return False
        self.tries += 1
        spec = self.spec if spec is None else spec
        found = self.run(spec, ops)
        if found is None or found.invariant != self.violation.invariant:
            return False
        self.spec, self.ops, self.violation = spec, tuple(ops), found
        return True

    def cut_behind_the_end(self) -> None:
        """The shortest beginning that fails, by bisection: a failing prefix stays failing when it grows."""
        low, high = 0, len(self.ops)
        while low < high and not self.is_over():
            middle = (low + high) // 2
            if self.accept(self.ops[:middle]):
                high = middle
            else:
                low = middle + 1

    def drop_ops(self) -> bool:
        """Removes runs of ops, long ones first, until no single op can go."""
        before = len(self.ops)
        fewest(self.ops, self.accept, lambda: not self.is_over())
        return len(self.ops) < before

    def simplify_payloads(self) -> bool:
        is_better = False
        for position in range(len(self.ops)):
            while not self.is_over():
                told = self.ops[position]
                candidates = (op for op in _simpler(told) if op != told)  # one that is itself would be taken for ever
                if not any(self.accept((*self.ops[:position], op, *self.ops[position + 1 :])) for op in candidates):
                    break
                is_better = True
        return is_better

    def drop_choices(self) -> bool:
        """Removes what was chosen for the device: all of it, runs of ops, then choice by choice, then less delay."""
        if not any(op.choices for op in self.ops):
            return False
        before = self._num_choices()
        size = len(self.ops)
        while size and not self.is_over():
            for start in range(0, len(self.ops), size):
                piece = self.ops[start : start + size]
                if any(op.choices for op in piece):
                    plain = tuple(replace(op, choices=()) for op in piece)
                    self.accept((*self.ops[:start], *plain, *self.ops[start + size :]))
            size //= 2
        return self._num_choices() < before

    def _num_choices(self) -> int:
        return sum(len(op.choices) for op in self.ops)

    def move_ops(self) -> bool:
        """Moves one op earlier or later over its neighbours and leaves out one of these: what had to stand further apart, or
        had to come for another op's sake, need not any more."""
        is_better = False
        position = 0
        while position < len(self.ops) and not self.is_over():
            rest = (*self.ops[:position], *self.ops[position + 1 :])
            places = [place for step in range(1, _FARTHEST_MOVE + 1) for place in (position - step, position + step)]
            candidates = ((*rest[:place], self.ops[position], *rest[place + 1 :]) for place in places if 0 <= place < len(rest))
            if any(self.accept(candidate) for candidate in candidates):
                is_better = True
            else:
                position += 1
        return is_better

    def simplify_world(self) -> bool:
        is_better = False
        config = dict(self.spec.get("config", {}))
        for name, values in _SMALLER_CONFIG.items():
            for value in values:
                smaller = {**config, name: value}
                if value < config.get(name, 0) and self.accept(self.ops, {**self.spec, "config": smaller}):
                    config, is_better = smaller, True
                    break
        return is_better


def _simpler(op: Op) -> Iterator[Op]:
    """Ops that ask for less, the simplest first."""
    if op.kind is OpKind.STEP:
        yield replace(op, kind=OpKind.PLAN)
        yield replace(op, kind=OpKind.LAND)
    for number, choice in enumerate(op.choices):
        rest = (op.choices[:number], op.choices[number + 1 :])
        yield replace(op, choices=rest[0] + rest[1])
        if choice.late:
            yield replace(op, choices=(*rest[0], choice._replace(late=0), *rest[1]))
        if choice.delay > TURN:
            yield replace(op, choices=(*rest[0], choice._replace(delay=choice.delay // TURN // 2 * TURN), *rest[1]))
    if op.k > 0:
        yield from (replace(op, k=k) for k in (0, op.k // 2, op.k - 1) if k < op.k)
    if op.request is not None:
        yield from (replace(op, request=request) for request in _simpler_requests(op.request))


def _simpler_requests(request: Request) -> Iterator[Request]:
    plain = Request(request.request_id, request.prompt, request.sampling)
    if request != plain:
        yield plain
        for column in ("priority", "tenant", "cache_salt", "adapter", "media", "deadline_s"):
            if getattr(request, column) != getattr(plain, column):
                yield replace(request, **{column: getattr(plain, column)})
    yield from (replace(request, sampling=sampling) for sampling in _simpler_sampling(request.sampling))
    prompt = request.prompt
    lengths = sorted({1, len(prompt) // 2, len(prompt) - 1} - {0, len(prompt)})
    yield from (replace(request, prompt=prompt[:length]) for length in lengths if length < len(prompt))
    if any(prompt) and len(set(prompt)) > 1:
        yield replace(request, prompt=(0,) * len(prompt))
        yield replace(request, prompt=tuple(range(len(prompt))))


def _simpler_sampling(sampling: SamplingParams) -> Iterator[SamplingParams]:
    plain = replace(_PLAIN_SAMPLING, max_tokens=sampling.max_tokens)
    if sampling != plain:
        yield plain
    for column in ("temperature", "top_k", "top_p", "min_p", "seed", "stop_token_ids", "min_tokens", "n"):
        value, default = getattr(sampling, column), getattr(_PLAIN_SAMPLING, column)
        if value != default:
            yield replace(sampling, **{column: default})
    if sampling.n > 2:
        yield replace(sampling, n=2)
    most = sampling.max_tokens
    for fewer in sorted({1, most // 2, most - 1}):
        if 1 <= fewer < most:
            yield replace(sampling, max_tokens=fewer, min_tokens=min(sampling.min_tokens, fewer))
