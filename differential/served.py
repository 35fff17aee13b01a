"""Requests to an engine on the Markov model, and what came of each: tokens by request, choice and place, who stood beside whom.

Owns the ways in which an engine is made to serve (`Way`), each with what it must have reached. Never: a test (`served_law.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from differential.markov import VOCABULARY, MarkovRunner, Tokens, likeliest
from differential.markov_drafts import MarkovDrafts
from differential.preempting import PreemptingScheduler
from differential.reached import count_event, count_plan
from engine_under_test.config import EngineConfig
from engine_under_test.drafting import Drafting
from engine_under_test.engine import Engine
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.sampling.proposers import PromptLookup, Scripted
from engine_under_test.sampling.speculation import Proposer
from engine_under_test.seams import Noise
from engine_under_test.types import FinishReason, Plan, Request, Reservation, SamplingParams

LENGTH = 32  # tokens of each choice
Place = tuple[int, int, int]  # request, choice, index of a token in the output


def _likely() -> Proposer:
    """Drafts that are the likeliest tokens; every third time the second of three is not."""
    return Scripted(likeliest, (3, 3, 1) * LENGTH, VOCABULARY, 3)


_OVERLAPPED = {"max_plans_in_flight": 3}
# Drafts get no blocks of their own while somebody waits, so here few do.
_ROOMY = {"num_blocks": 8192, "max_num_seqs": 512, "max_tokens_per_step": 2048}


@dataclass(frozen=True, slots=True)
class Way:
    """How requests are served. ``config``: of the engine, over what all have; ``prompt_len`` of each prompt, of which
    ``shared_len`` is one of eight beginnings; ``preempts_at``: see `PreemptingScheduler`. ``proposer``: of drafts, if any.
    ``floors``: what must happen, as so many times for each choice."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    prompt_len: int = 6
    shared_len: int = 0
    choices: int = 2
    preempts_at: tuple[int, ...] = ()
    proposer: Callable[[], Proposer] | None = None
    floors: Mapping[str, float] = field(default_factory=dict)


_PREEMPTED, _OFTEN = tuple(range(4, LENGTH, 5)), tuple(range(2, LENGTH, 3))
_HITS = {"drafts that stood": 2, "drafts that fell": 8}
WAYS = (
    Way("batched", floors={"rows beside others": LENGTH / 2, "forked": 0.5}),
    Way("chunked", {"max_num_seqs": 32, "max_tokens_per_step": 40}, prompt_len=23, floors={"chunks": 0.3}),
    Way("cached", prompt_len=20, shared_len=16, floors={"tokens from the cache": 6}),
    Way("preempted", {"prefix_cache": False}, preempts_at=_PREEMPTED, floors={"preempted": 4}),
    Way("drafted", _ROOMY, proposer=MarkovDrafts, floors={"drafts that stood": 6, "drafts that fell": 8}),
    Way("looked up", _OVERLAPPED, proposer=PromptLookup, floors={"drafts that stood": 0.3, "drafts that fell": 8}),
    Way(
        "all of it",
        {**_OVERLAPPED, "max_num_seqs": 48, "max_tokens_per_step": 96},
        prompt_len=21,
        shared_len=12,
        preempts_at=_OFTEN,
        proposer=_likely,
        floors={"preempted": 5, "tokens from the cache": 20, "chunks": 0.1, **_HITS},
    ),
)
_POOL: Mapping[str, Any] = {
    "num_blocks": 2048, "block_size": 4, "max_tokens_per_step": 256, "max_num_seqs": 128, "vocab_size": VOCABULARY,
}  # fmt: skip


@dataclass(slots=True)
class Served:
    """``texts`` [requests, choices, prompt + LENGTH]. ``beside``: the tokens of each step, in the order of its rows, as far as
    they are the first of their row; ``resumed``: tokens that are the first behind a preemption. ``broken``: choices that did
    not end with their last token; ``lost``: why plans came to nothing, which none should."""

    way: Way
    texts: Tokens
    beside: list[list[Place]]
    resumed: list[Place]
    reached: Mapping[str, int]
    broken: list[str]
    lost: list[str]

    @property
    def missed(self) -> list[str]:
        """Floors that were not reached."""
        choices = self.texts.shape[0] * self.texts.shape[1]
        asked = ((name, int(each * choices)) for name, each in self.way.floors.items())
        return [f"{self.way.name}: {name} {self.reached.get(name, 0)} of {least}" for name, least in asked
                if self.reached.get(name, 0) < least]  # fmt: skip


class _Watch:
    """Between engine and runner: counts what plans hold, and hears what becomes of them."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.reached: Counter[str] = Counter()
        self.beside: dict[int, list[Place]] = {}
        self.resumed: list[Place] = []
        self._done: Counter[tuple[int, int]] = Counter()
        self._gone: set[tuple[int, int]] = set()
        self.lost: list[str] = []

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        count_plan(self.reached, plan)
        return self._runner.launch(plan, reservation)

    def observe(self, event: Event) -> None:
        """See `seams.Observer`."""
        kind = event.kind
        count_event(self.reached, event)
        if kind is EventKind.EMITTED and event.row is not None and event.plan_id is not None:
            choice = int(event.row.request_id), event.row.choice
            place = (*choice, self._done[choice])
            self._done[choice] += event.tokens
            self.beside.setdefault(event.plan_id, []).append(place)
            if choice in self._gone:
                self._gone.remove(choice)
                if place[2]:
                    self.resumed.append(place)
        elif kind is EventKind.ABANDONED:
            self.lost.append(event.reason)
        elif kind is EventKind.PREEMPTED and event.row is not None:
            self._gone.add((int(event.row.request_id), event.row.choice))


def serve(
    way: Way,
    num_requests: int,
    first_seed: int,
    chance: np.random.Generator,
    progress: Callable[[], None] = lambda: None,
    noise: Noise | None = None,
) -> Served:
    """Serves so many requests, whose seeds follow each other."""
    config = EngineConfig(**{**_POOL, **way.config})
    prompts = _prompts(way, num_requests, chance)
    requests = [
        Request(
            str(number),
            tuple(prompt),
            SamplingParams(max_tokens=LENGTH, temperature=1.0, seed=(first_seed + number) % 2**64, n=way.choices),
        )
        for number, prompt in enumerate(prompts.tolist())
    ]
    watch = _Watch(MarkovRunner(config.num_blocks, config.block_size, noise=noise))
    scheduler = PreemptingScheduler(requests, way.preempts_at) if way.preempts_at else None
    drafting = Drafting(way.proposer()) if way.proposer is not None else None
    engine = Engine(config, watch, observer=watch.observe, scheduler=scheduler, drafting=drafting)
    for request in requests:
        engine.submit(request)
    turns = 0
    most = 50 + 4 * num_requests * way.choices * (way.prompt_len + LENGTH)
    while engine.has_work and turns < most:
        engine.step()
        turns += 1
        if turns % 64 == 0:
            progress()
    if drafting is not None:
        watch.reached["drafts that stood"] = drafting.num_accepted
        watch.reached["drafts that fell"] = drafting.num_proposed - drafting.num_accepted
    texts, broken = _gather(way, prompts, engine)
    return Served(way, texts, list(watch.beside.values()), watch.resumed, watch.reached, broken, watch.lost)


def _prompts(way: Way, num: int, chance: np.random.Generator) -> Tokens:
    prompts = chance.integers(VOCABULARY, size=(num, way.prompt_len))
    if way.shared_len:
        beginnings = chance.integers(VOCABULARY, size=(8, way.shared_len))
        prompts[:, : way.shared_len] = beginnings[chance.integers(8, size=num)]
    return prompts


def _gather(way: Way, prompts: Tokens, engine: Engine) -> tuple[Tokens, list[str]]:
    outputs: dict[tuple[int, int], list[int]] = {}
    ends: dict[tuple[int, int], str] = {}
    for output in engine.take_outputs():
        choice = int(output.request_id), output.choice
        outputs.setdefault(choice, []).extend(output.token_ids)
        if output.finish_reason is not None:
            ends[choice] = f"{output.finish_reason.value} {output.message}".strip()
    texts = np.repeat(np.pad(prompts, ((0, 0), (0, LENGTH)))[:, None], way.choices, axis=1)
    broken = []
    for number in range(len(prompts)):
        for number_of_choice in range(way.choices):
            key = number, number_of_choice
            tokens, end = outputs.get(key, []), ends.get(key, "nothing")
            if len(tokens) == LENGTH and end == FinishReason.LENGTH.value:
                texts[number, number_of_choice, way.prompt_len :] = tokens
            else:
                broken.append(
                    f"request {number}, choice {number_of_choice}: ended by {end} after {len(tokens)} tokens of {LENGTH}"
                )
    return texts, broken
