"""The seeded walk: an endless story of operations, a pure function of its seed and its shape.

Owns what a walk may do and how often. It never looks at a target: it guesses how far requests are, so that most of what it
asks for applies. Its choices come from one `random.Random(seed)` and never from the order of a set or a hash.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf, nan
from random import Random
from typing import Any

from engine_under_test.config import EngineConfig, Order
from engine_under_test.types import Adapter, Media, Request, SamplingParams
from models.adapter_tale import adapter_tale
from models.build import config_to
from properties.op import Op, OpKind
from properties.small_grammars import GRAMMARS, STOPS

_MOST_ADDS = 3  # in one iteration
_ADAPTER_NAMES = ("lora", "other", "third", "fourth")
_SLOWNESS = 0.8  # how much longer a request takes than it should alone: stop tokens end some early
_DROPPING: tuple[dict[str, Any], ...] = (
    {"top_k": 1},
    {"top_k": 3},
    {"top_p": 0.4},
    {"top_p": 0.9},
    {"min_p": 0.1},
    {"min_p": 0.05, "top_k": 6, "top_p": 0.8},
)
_STEP, _DELIVER, _POLL, _PLAN = Op(OpKind.STEP), Op(OpKind.DELIVER), Op(OpKind.POLL), Op(OpKind.PLAN)


@dataclass(frozen=True, slots=True)
class WalkShape:
    """A world and the life in it. Rates are per iteration of the walk, shares are of the requests.

    ``begins``: what is told before chance begins; nothing is live behind it. ``num_live``: choices aimed at. ``fault_rate``:
    refused blocks, held fences, lost plans, resets, restarts, late results, together. ``drain_every``: iterations between
    drains. ``num_families``: prompts that share prefixes.
    """

    config: EngineConfig
    target: str = "assay"
    hasher: str = "blake2b"
    num_live: int = 4
    abort_rate: float = 0.05
    fault_rate: float = 0.04
    restart_rate: float = 0.002
    drain_every: int = 120
    num_families: int = 4
    sampled_share: float = 0.5
    dropping_share: float = 0.1  # of those that are sampled: with min-p, top-k or top-p
    choices_share: float = 0.1
    namespace_share: float = 0.25
    media_share: float = 0.1
    deadline_share: float = 0.05
    refused_share: float = 0.03
    reset_rate: float = 0.0  # of the cache, faults apart: what was cached is in the remote pool only
    remote_blocks: int = 0  # of the pool in which the prefix cache goes on; 0: there is none
    grammar_share: float = 0.0
    keeps_rows: bool = False  # of the runner: what it knows of a row is what it has kept of it
    adapter_rate: float = 0.0  # of loads, reloads and unloads of adapters
    speculation: Mapping[str, Any] | None = None  # as `models.build` has it
    begins: tuple[Op, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of a target written by others

    def spec(self) -> dict[str, Any]:
        """How `models.build.world_from` builds this world."""
        found: dict[str, Any] = {"target": self.target, "config": config_to(self.config), "hasher": self.hasher}
        if self.remote_blocks:
            found["remote"] = {"capacity_blocks": self.remote_blocks}
        if self.speculation is not None:
            found["speculation"] = dict(self.speculation)
        found |= {"grammars": True} if self.grammar_share else {}
        found |= {"keeps_rows": True} if self.keeps_rows else {}
        return found | {"options": dict(self.options)} if self.options else found


def small_shape(depth: int = 0, **changes: Any) -> WalkShape:
    """Three to four live choices on a pool of 12 blocks of 4: everything is scarce."""
    config = EngineConfig(
        num_blocks=12,
        block_size=4,
        max_tokens_per_step=8,
        max_num_seqs=4,
        max_active_adapters=2,
        vocab_size=16,
        adapters=(Adapter("lora", 1), Adapter("lora", 2), Adapter("other", 1)),
        max_plans_in_flight=1 + depth,
    )
    return replace(WalkShape(config, num_live=4), **changes)


def large_shape(depth: int = 0, **changes: Any) -> WalkShape:
    """Sixteen live choices on a pool of 96 blocks of 4."""
    small = small_shape(depth)
    config = replace(small.config, num_blocks=96, max_tokens_per_step=32, max_num_seqs=16)
    return replace(small, config=config, num_live=16, num_families=8, **changes)


def priority_shape(**changes: Any) -> WalkShape:
    """The small world under the priority policy."""
    small = small_shape(1)
    return replace(small, config=replace(small.config, order=Order.PRIORITY, max_overtakes=3), **changes)


def adapter_shape(depth: int = 0, num_slots: int = 2, **changes: Any) -> WalkShape:
    """Small worlds in which nearly every request names one of several adapters, for which there are few slots."""
    rates = {"namespace_share": 0.9, "adapter_rate": 0.15, "restart_rate": 0.01, "num_live": 5}
    small = small_shape(depth, **{**rates, **changes})
    config = replace(small.config, num_blocks=16, max_active_adapters=num_slots, max_adapter_overtakes=2)
    return replace(small, config=config)


def remote_shape(depth: int = 0, **changes: Any) -> WalkShape:
    """Four live choices whose long prompts share prefixes, on a pool that is too small for these, before one that is not."""
    small = small_shape(depth, num_families=2, namespace_share=0.1, reset_rate=0.08, **changes)
    return replace(small, config=replace(small.config, num_blocks=16, max_tokens_per_step=16), remote_blocks=48)


def speculating_shape(depth: int = 0, proposer: str = "knowing", width: int = 3, **changes: Any) -> WalkShape:
    """Three live choices with drafts on a pool of 16 blocks of 3, so that drafts often reach into another block."""
    small = small_shape(depth, num_live=3, speculation={"proposer": proposer, "width": width}, **changes)
    config = replace(small.config, num_blocks=16, block_size=3, max_tokens_per_step=9)
    return replace(small, config=config)


def one_by_one(shape: WalkShape) -> WalkShape:
    """The same with one row a plan: with overlap, each plan is of another choice than the one before it."""
    return replace(shape, config=replace(shape.config, batching=False))


def radix_shape(**changes: Any) -> WalkShape:
    """A world for the radix target: single-token pages and no faults that it does not know."""
    config = EngineConfig(num_blocks=64, block_size=1, max_tokens_per_step=8, max_num_seqs=4, vocab_size=16)
    shape = WalkShape(config, target="radix", num_live=4, fault_rate=0.0, restart_rate=0.0, choices_share=0.0)
    return replace(shape, namespace_share=0.0, media_share=0.0, deadline_share=0.0, **changes)


def walk_ops(seed: int, shape: WalkShape) -> Iterator[Op]:
    """The ops of one walk, without end."""
    walk = _Walk(Random(seed), shape)
    yield from shape.begins
    if shape.adapter_rate:
        yield from adapter_tale(shape.config.adapters, walk.depth)
    iteration = 0
    while True:
        iteration += 1
        if iteration % shape.drain_every == 0:
            walk.forget_all()
            yield Op(OpKind.DRAIN)
        else:
            yield from walk.iteration()


class _Walk:
    """The walk's guess of where things stand."""

    def __init__(self, rng: Random, shape: WalkShape) -> None:
        self.rng = rng
        self.shape = shape
        config = shape.config
        self.slots = config.num_blocks * config.block_size
        self.depth = config.max_plans_in_flight - 1
        self.families = [tuple(rng.randrange(config.vocab_size) for _ in range(self.slots)) for _ in range(shape.num_families)]
        self.guesses: dict[str, float] = {}  # identifier -> iterations until it is done
        self.choices: dict[str, int] = {}
        self.recent: list[Request] = []
        self.adapters = list(config.adapters)  # that should be loaded
        self.versions = {adapter.name: adapter.version for adapter in config.adapters}  # the highest so far
        self.number = 0
        self.now = 0.0
        self.held_for = 0

    def forget_all(self) -> None:
        self.guesses.clear()
        self.held_for = 0

    # -- one iteration -----------------------------------------------------------------------------------------

    def iteration(self) -> Iterator[Op]:
        rng, shape = self.rng, self.shape
        for _ in range(_MOST_ADDS):
            if self.num_guessed() >= shape.num_live or rng.random() > 0.8:
                break
            yield self._add()
        chance = rng.random()
        if chance < shape.abort_rate and self.guesses:
            yield self._abort()
        elif chance < shape.abort_rate + shape.fault_rate:
            yield from self._fault()
        elif chance < shape.abort_rate + shape.fault_rate + shape.restart_rate:
            yield Op(OpKind.RESTART)
        if shape.adapter_rate and rng.random() < shape.adapter_rate:
            yield from self._change_adapter()
        if shape.reset_rate and rng.random() < shape.reset_rate:
            yield Op(OpKind.RESET_CACHE)
        if self.held_for:
            self.held_for -= 1
            if not self.held_for:
                yield Op(OpKind.HOLD_FENCES, on=False)
        if shape.deadline_share and rng.random() < 0.1:
            self.now += 0.5
            yield Op(OpKind.ADVANCE, seconds=0.5)
        yield from self._advance()

    def num_guessed(self) -> int:
        """Choices that should be live."""
        return sum(self.choices[name] for name in self.guesses)

    def _advance(self) -> Iterator[Op]:
        """One or more engine steps, in one of the orders that the depth allows."""
        chance = self.rng.random()
        if self.depth == 0 or chance < 0.5:
            steps = 1
            yield _STEP
        else:
            steps = self.rng.randint(1, self.depth + 1)
            yield from [_PLAN] * steps
            for left in range(steps, 0, -1):
                yield Op(OpKind.LAND, k=self.rng.randrange(left) if chance < 0.75 else 0)
            yield _DELIVER
            if chance < 0.9:
                yield _POLL
        for name in [name for name, left in self.guesses.items() if left <= steps]:
            del self.guesses[name]
        for name in self.guesses:
            self.guesses[name] -= steps

    def _abort(self) -> Op:
        name = self.rng.choice(list(self.guesses))
        del self.guesses[name]
        return Op(OpKind.ABORT, request_id=name)

    def _change_adapter(self) -> Iterator[Op]:
        """Mostly a new version of one that is there; sometimes a new name, an unload, or what must be refused. At times
        something goes wrong with it."""
        rng, listed = self.rng, self.adapters
        chance = rng.random()
        if chance < 0.2 and len(listed) > 1:
            gone = listed.pop(rng.randrange(len(listed)))
            yield Op(OpKind.UNLOAD_ADAPTER, request_id=gone.name, k=gone.version)
            yield Op(OpKind.LOAD_ADAPTER, request_id=gone.name, k=gone.version)  # never the same again, be it unloaded
        elif chance < 0.3:
            name, kind = rng.choice(list(self.versions)), rng.choice((OpKind.LOAD_ADAPTER, OpKind.UNLOAD_ADAPTER))
            is_newest = kind is OpKind.LOAD_ADAPTER and rng.random() < 0.5  # it is no new one, loaded or not
            yield Op(kind, request_id=name, k=self.versions[name] if is_newest else 0)
        else:
            name = rng.choice(_ADAPTER_NAMES)
            version = self.versions[name] = self.versions.get(name, 0) + 1
            newest = Adapter(name, version)
            self.adapters = [*[each for each in listed if each.name != name], newest]
            yield Op(OpKind.LOAD_ADAPTER, request_id=name, k=version)
            if chance > 0.55:
                yield from self._trouble_with(newest)

    def _trouble_with(self, adapter: Adapter) -> Iterator[Op]:
        """The plan that should load it is lost or undone, or a slot is wanted whose last reader may still be on its way."""
        kind = self.rng.choice(("lost", "undone", "late", "held"))
        add = Op(OpKind.ADD, request=replace(self._request(), adapter=adapter))
        abort = [self._abort()] if len(self.guesses) > 1 else []
        match kind:
            case "lost":
                yield from (add, *[_PLAN] * (1 + self.depth), Op(OpKind.ABANDON, k=0, on=self.number % 2 == 1))
            case "undone":
                yield from (add, Op(OpKind.ROLLBACK))
            case "late":
                yield from (_PLAN, *abort, add, _PLAN)
            case _:
                yield from (Op(OpKind.HOLD_FENCES, on=True), _STEP, *abort, add, _STEP, Op(OpKind.HOLD_FENCES, on=False))
                self.held_for = 0

    def _fault(self) -> Iterator[Op]:
        rng = self.rng
        match rng.choice(("refuse", "refuse", "hold", "abandon", "abandon", "rollback", "reset", "again", "late")):
            case "refuse":
                yield Op(OpKind.REFUSE_BLOCK, k=rng.randint(1, 6))
            case "hold":
                if not self.held_for:
                    self.held_for = rng.randint(1, 6)
                    yield Op(OpKind.HOLD_FENCES, on=True)
            case "abandon":
                plans = rng.randint(1, self.depth + 1)
                yield from [_PLAN] * plans
                yield Op(OpKind.ABANDON, k=rng.randrange(plans), on=self.number % 2 == 1)
            case "rollback" if self.number % 2 or self.held_for:
                yield Op(OpKind.ROLLBACK)
            case "rollback":  # what was held passes while the plan is reserved
                yield from (Op(OpKind.HOLD_FENCES, on=True), _STEP, Op(OpKind.ROLLBACK, on=True))
            case "reset":
                if rng.random() < 0.5:
                    yield _PLAN
                yield Op(OpKind.RESET_CACHE)
            case "again":
                yield Op(OpKind.LAND_AGAIN, k=rng.randint(0, 3))
            case _:  # aborted or preempted while its plan is on its way
                yield _PLAN
                if self.guesses:
                    yield self._abort()

    # -- requests ----------------------------------------------------------------------------------------------

    def _add(self) -> Op:
        request = self._refused() if self.rng.random() < self.shape.refused_share else self._request()
        return Op(OpKind.ADD, request=request)

    def _name(self) -> str:
        """Mostly a new identifier, sometimes one that should have ended."""
        self.number += 1
        back = self.rng.randint(1, 12)
        if self.rng.random() < 0.25 and self.number > back:
            name = f"r{self.number - back}"
            if name not in self.guesses:
                return name
        return f"r{self.number}"

    def _request(self) -> Request:
        rng, shape = self.rng, self.shape
        sampling = self._sampling()
        prompt = rng.choice(self.recent).prompt if self.recent and rng.random() < 0.2 else self._prompt(sampling.max_tokens)
        sampling = replace(sampling, max_tokens=max(1, min(sampling.max_tokens, self.slots - len(prompt) + 1)))
        sampling = replace(sampling, min_tokens=min(sampling.min_tokens, sampling.max_tokens))
        request = Request(self._name(), prompt, sampling, priority=rng.randint(0, 3))
        if rng.random() < shape.namespace_share:
            adapters = (None, *self.adapters)
            names = ("", "a")
            request = replace(request, tenant=rng.choice(names), cache_salt=rng.choice(names), adapter=rng.choice(adapters))
        if rng.random() < shape.media_share:
            start = rng.randrange(len(prompt))
            length = rng.randint(1, len(prompt) - start)
            media = [Media(rng.choice(("cat", "dog")), start, length)]
            if (end := start + length) < len(prompt):
                media.append(Media(rng.choice(("cat", "dog")), end, rng.randint(1, len(prompt) - end)))
            request = replace(request, media=tuple(media))
        if rng.random() < shape.deadline_share:
            request = replace(request, deadline_s=self.now + rng.randint(1, 6) / 4)
        budget = shape.config.max_tokens_per_step
        self.guesses[request.request_id] = _SLOWNESS * (sampling.max_tokens + 1 + len(prompt) / budget)
        self.choices[request.request_id] = sampling.n
        self.recent = [*self.recent[-5:], request]
        return request

    def _sampling(self) -> SamplingParams:
        rng, shape = self.rng, self.shape
        typical = max(2, self.slots // shape.num_live)
        max_tokens = rng.randint(1, typical)
        sampling = SamplingParams(max_tokens=max_tokens)
        if rng.random() < shape.sampled_share:
            sampling = replace(sampling, temperature=rng.choice((0.5, 1.0, 2.0)), seed=rng.choice((0, 1, 7, 2**64 - 1)))
            if rng.random() < shape.dropping_share:
                sampling = replace(sampling, **rng.choice(_DROPPING))
        if shape.grammar_share and rng.random() < shape.grammar_share:
            ends = STOPS[: rng.randint(1, len(STOPS))]
            sampling = replace(sampling, grammar=rng.choice(GRAMMARS), stop_token_ids=ends)
        elif rng.random() < 0.25:
            stops = tuple(sorted(rng.sample(range(shape.config.vocab_size), 2)))
            sampling = replace(sampling, stop_token_ids=stops, min_tokens=rng.randint(0, max_tokens))
        if rng.random() < shape.choices_share:
            sampling = replace(sampling, n=rng.randint(2, 3))
        return sampling

    def _prompt(self, max_tokens: int) -> tuple[int, ...]:
        """The beginning of a family's text, then tokens of its own; lengths at the edges of blocks and budget."""
        rng, config = self.rng, self.shape.config
        block, budget = config.block_size, config.max_tokens_per_step
        typical = max(1, self.slots // self.shape.num_live)
        blocks = block * rng.randint(1, max(1, typical // block))
        length = rng.choice((1, block - 1, block, block + 1, blocks, blocks, blocks + 1, budget - 1, budget, budget + 1))
        if rng.random() < 0.4:
            length = rng.randint(1, typical)
        length = max(1, min(length, self.slots - max_tokens + 1))
        family = rng.choice(self.families)
        shared = length if rng.random() < 0.5 else rng.randint(0, length)
        return family[:shared] + tuple(rng.randrange(config.vocab_size) for _ in range(length - shared))

    def _refused(self) -> Request:
        """A request that the door must refuse."""
        rng, config = self.rng, self.shape.config
        good = Request(f"x{self.number}", (0, 1), SamplingParams(max_tokens=1))
        self.number += 1
        return rng.choice(
            (
                replace(good, prompt=()),
                replace(good, prompt=(0,) * (self.slots + 1)),
                replace(good, prompt=(config.vocab_size,)),
                replace(good, sampling=SamplingParams(max_tokens=0)),
                replace(good, sampling=SamplingParams(max_tokens=self.slots)),
                replace(good, sampling=SamplingParams(temperature=nan)),
                replace(good, sampling=SamplingParams(n=0)),
                replace(good, sampling=SamplingParams(top_k=-1)),
                replace(good, sampling=SamplingParams(top_p=0.0)),
                replace(good, sampling=SamplingParams(min_p=1.5)),
                replace(good, sampling=SamplingParams(max_tokens=1, min_tokens=2)),
                replace(good, adapter=Adapter("nobody", 1)),
                replace(good, deadline_s=inf),
                replace(good, arrival_s=nan),
                replace(good, priority=-(2**31) - 1),
                replace(good, prompt=(0, True)),
                replace(good, sampling=SamplingParams(max_tokens=True)),
                replace(good, media=(Media("cat", 0, 2), Media("dog", 1, 1))),
            )
        )
