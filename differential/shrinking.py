"""The shortest workload found that still diverges: requests, then their tokens, then the setting.

Owns the candidates that only a language model's workload has. Requests, payloads and pool are shrunk by `models.shrink`
(delta debugging after Zeller and Hildebrandt, TSE 2002); a candidate counts if it breaks the same sentence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from differential.judging import Judge, shrunk_judge
from differential.setting import Setting, World, world_of, world_to
from engine_under_test.errors import BadInput
from engine_under_test.types import Request
from models.shrink import shrink_world
from properties.fewest import fewest
from properties.op import Op, OpKind
from properties.suite import Failure
from properties.verdict import Violation

Run = Callable[[Mapping[str, Any], Sequence[Op]], Violation | None]
_PLAIN = Setting("")


def ops_of(requests: Sequence[Request]) -> tuple[Op, ...]:
    """A workload as operations: each request is added, the setting says when."""
    return tuple(Op(OpKind.ADD, request=request) for request in requests)


def requests_of(ops: Sequence[Op]) -> tuple[Request, ...]:
    """The inverse of `ops_of`; other operations say nothing here."""
    return tuple(op.request for op in ops if op.request is not None)


def judge_again(judge: Judge) -> Run:
    """What a workload ends with, run afresh; nothing where it can not be run at all."""

    def run(spec: Mapping[str, Any], ops: Sequence[Op]) -> Violation | None:
        if not ops:
            return None
        try:
            return judge.judge(world_of(spec), requests_of(ops)).violation
        except BadInput:
            return None

    return run


def failure_of(
    judge: Judge,
    world: World,
    requests: Sequence[Request],
    violation: Violation,
    seed: str,
    *,
    max_seconds: float = 20.0,
    now: Callable[[], float] = time.monotonic,
) -> Failure:
    """The violation as a counterexample, shrunk as far as the time allows, and told by both oracles."""
    search = Search(
        world_to(world), ops_of(requests), violation, judge_again(shrunk_judge(judge, violation)), now() + max_seconds, now
    )
    search.shrink(may_change_world=judge.model.shape is not None)
    if search.spec != world_to(world):
        search.rename(f"shrunk from {world.setting.name}")
    told = judge_again(replace(judge, asks_second_oracle=True))(search.spec, search.ops)
    if told is not None and told.invariant == violation.invariant:
        search.violation = told
    return Failure(search.violation, seed, search.spec, search.ops, len(requests))


@dataclass(slots=True)
class Search:
    """The smallest diverging workload so far."""

    spec: Mapping[str, Any]
    ops: tuple[Op, ...]
    violation: Violation
    run: Run
    ends_at: float
    now: Callable[[], float]

    def shrink(self, *, may_change_world: bool) -> None:
        """Until nothing gets smaller, or the time is over."""
        is_better = True
        while is_better and self.now() < self.ends_at:
            before = self.spec, self.ops
            self.simplify_setting()
            shrunk = shrink_world(
                self.spec,
                self.ops,
                self.violation,
                run=self.run,
                now=self.now,
                may_change_world=may_change_world,
                max_seconds=self.ends_at - self.now(),
            )
            self.spec, self.ops, self.violation = shrunk.spec, shrunk.ops, shrunk.violation
            self.drop_tokens()
            is_better = (self.spec, self.ops) != before

    def accept(self, spec: Mapping[str, Any], ops: tuple[Op, ...]) -> bool:
        if self.now() >= self.ends_at:
            return False
        found = self.run(spec, ops)
        if found is None or found.invariant != self.violation.invariant:
            return False
        self.spec, self.ops, self.violation = spec, ops, found
        return True

    def drop_tokens(self) -> None:
        """Takes runs of tokens out of each prompt, long ones first, from the end to the beginning."""
        for place in range(len(self.ops)):
            fewest(self._prompt(place), partial(self._accept_prompt, place), lambda: self.now() < self.ends_at)

    def _accept_prompt(self, place: int, prompt: tuple[int, ...]) -> bool:
        return bool(prompt) and self.accept(self.spec, self._with_prompt(place, prompt))

    def simplify_setting(self) -> None:
        """Takes away what of the setting is not needed."""
        for change in _simpler(world_of(self.spec).setting):
            world = world_of(self.spec)
            self.accept(world_to(replace(world, setting=replace(world.setting, **change))), self.ops)

    def rename(self, name: str) -> None:
        """The setting is no longer the one that bears the name."""
        world = world_of(self.spec)
        self.spec = world_to(replace(world, setting=replace(world.setting, name=name)))

    def _prompt(self, place: int) -> tuple[int, ...]:
        return requests_of(self.ops)[place].prompt

    def _with_prompt(self, place: int, prompt: tuple[int, ...]) -> tuple[Op, ...]:
        requests = list(requests_of(self.ops))
        requests[place] = replace(requests[place], prompt=prompt)
        return ops_of(requests)


def _simpler(setting: Setting) -> Iterator[dict[str, Any]]:
    """Changes that leave one thing out."""
    for each in fields(Setting):
        if each.name != "name" and getattr(setting, each.name) != getattr(_PLAIN, each.name):
            yield {each.name: getattr(_PLAIN, each.name)}
    for last, k in enumerate(setting.refuses[:-1], start=1):
        if k:
            yield {"refuses": setting.refuses[:last]}
    if len(setting.preempts_at) > 1:
        yield from ({"preempts_at": (count,)} for count in setting.preempts_at)
