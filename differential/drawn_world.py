"""Requests of many kinds served by an engine whose drafts are drawn from a law: by a language model, and by a model whose
logits are known, on the host.

Owns the ways, the requests, and the recording between engine, runner and proposer: each plan with what its launch said, and
each proposal. Never: a judgement (`drawn_drafts.py`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import torch

from differential.adjusted_cases import PROCESSORS
from differential.preempting import PreemptingScheduler
from differential.running import LaunchWithLogits
from differential.structured_world import Floats, KnownRunner, laws_of, logits_behind
from differential.well_formed import answered, drafts_with_laws
from engine_under_test.config import EngineConfig
from engine_under_test.drafting import Drafting
from engine_under_test.engine import Engine
from engine_under_test.errors import RunnerError
from engine_under_test.events import Event, EventKind
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random
from engine_under_test.sampling.draft_model import DraftModel
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.sampling.speculation import Ask, Declaration, Proposal, Proposer, Repair
from engine_under_test.seams import Noise
from engine_under_test.types import LogprobsMode, Plan, Request, Reservation, RowId, SamplingParams, StepResult
from models.proposers import Drawing
from properties.grammar_cases import CASES, STOPS, VOCAB_SIZE

WIDTH = 4
MAX_TOKENS = 12
_BLOCKS, _BLOCK, _MOST_STEPS = 300, 4, 1500
_SHAPE = LlamaConfig(VOCAB_SIZE, 32, 2, 4, 2, 8, 48)
_OFF = 0.35  # of the draft model's head, as a share of the model's


@dataclass(frozen=True, slots=True)
class Way:
    """``proposer``: "drawing", or "draft model", or "draft model without grammars". ``is_on_host``: the model of known logits.
    ``is_ample``: nobody waits and there is room for every draft, so that all that is proposed is judged.
    ``floors``: what must happen in it."""

    name: str
    proposer: str
    config: Mapping[str, Any] = field(default_factory=dict)
    preempts_at: tuple[int, ...] = ()
    is_on_host: bool = False
    is_ample: bool = True
    floors: Mapping[str, int] = field(default_factory=dict)


WAYS = (
    Way("drafts of another law", "drawing"),
    Way("a draft model, overlapped", "draft model", {"max_plans_in_flight": 2}, floors={"tokens in flight": 1}),
    Way(
        "a draft model without grammars, chunked, preempted",
        "draft model without grammars",
        {"max_plans_in_flight": 2, "max_tokens_per_step": 22, "max_num_seqs": 10},
        preempts_at=(3, 7),
        is_ample=False,
        floors={"chunks": 2, "preempted": 8},
    ),
    Way(
        "on the host, overlapped",
        "drawing",
        {"max_plans_in_flight": 2},
        preempts_at=(5,),
        is_on_host=True,
        is_ample=False,
        floors={"preempted": 8},
    ),
)


def requests(seed: int) -> tuple[Request, ...]:
    """Each with options of its own, several choices among them."""
    chance = random.Random(f"drawn drafts {seed}")
    warm = SamplingParams(max_tokens=MAX_TOKENS, temperature=2.0)
    letters = range(VOCAB_SIZE - len(STOPS))

    def bias() -> tuple[tuple[int, float], ...]:
        return tuple((token, chance.uniform(0.5, 2.5)) for token in chance.sample(letters, 9))

    counted = {"frequency_penalty": 0.9, "presence_penalty": 0.6, "repetition_penalty": 1.2}
    told, processed = {"logprobs": 3}, {"logprobs": 4, "logprobs_mode": LogprobsMode.PROCESSED}
    stops = {"stop_token_ids": STOPS}
    kinds: tuple[Mapping[str, Any], ...] = (
        {},
        {"temperature": 2.5, **told},
        {"temperature": 1.3, **counted, **processed},
        {"top_k": 12, "temperature": 2.3, **processed},
        {"top_p": 0.8, **told, "n": 2},
        {"min_p": 0.1, "temperature": 2.4, **processed},
        {"logit_bias": bias(), "n": 2},
        {"repetition_penalty": 1.6, "temperature": 1.8, **told},
        {"presence_penalty": 1.8, "logit_bias": bias(), **processed},
        {"min_tokens": 9, "stop_token_ids": tuple(chance.sample(letters, 6)), "temperature": 2.1, **told},
        *(
            {"min_tokens": least, "stop_token_ids": tuple(chance.sample(letters, 34)), "temperature": 3.0, "n": 2}
            for least in (3, 5, 8)
        ),
        {"processors": ("last is dropped",), "temperature": 1.6},
        {"processors": ("length is raised", "last is dropped"), **processed},
        {"frequency_penalty": -1.5, "top_k": 20, "n": 2},
        {"temperature": 0.0, **counted, **told},
        {"temperature": 0.0},
        {"grammar": CASES["array"].spec, **stops, **processed},
        {"grammar": CASES["string"].spec, **stops, "temperature": 1.5},
        {"grammar": CASES["a repetition"].spec, **stops, "top_p": 0.9, **told},
        {"grammar": CASES["nested"].spec, **stops, "frequency_penalty": 0.7},
    )
    order = chance.sample(kinds, len(kinds))
    return tuple(
        Request(
            f"r{number}",
            tuple(chance.choices(letters, k=chance.randint(3, 12))),
            replace(warm, **{**kind, "seed": chance.getrandbits(64)}),
        )
        for number, kind in enumerate(order)
    )


class Recording:
    """A proposer of which each row asks for 0 to `WIDTH` drafts, as its text says; what it proposed is kept. Malformed if that
    can not be read."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer
        self.proposed: dict[tuple[RowId, int], tuple[tuple[int, ...], list[Floats]]] = {}

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return self._proposer.declaration

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        wanted = [ask._replace(width=_width(ask)) for ask in asks]
        proposal = answered("a proposer", partial(self._proposer.propose, wanted, noise), but=(RunnerError,))
        for ask, told in zip(asks, drafts_with_laws(len(asks), proposal, VOCAB_SIZE), strict=True):
            self.proposed[ask.row, len(ask.tokens)] = told
        return proposal

    def repair(self, repairs: Sequence[Repair]) -> None:
        """See `speculation.Proposer`."""
        self._proposer.repair(repairs)


def _width(ask: Ask) -> int:
    wanted = (sum(ask.tokens) * 31 + len(ask.tokens) * 7 + ask.row.choice * 3) % (WIDTH + 1)
    return min(ask.width, wanted if wanted else (ask.row.choice + len(ask.tokens)) % 2)


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """A plan that was computed. ``logits`` [rows that sample and their drafts, vocabulary], where the runner shows them."""

    plan: Plan
    result: StepResult
    logits: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """``texts``: prompt and output of each choice; ``emitted``: which rows of which plans were; ``known``: the laws behind a
    model of known logits, ``weights`` those of the other; ``lost``: why plans came
    to nothing, which none should."""

    way: Way
    steps: tuple[Step, ...]
    texts: Mapping[tuple[str, int], tuple[int, ...]]
    emitted: frozenset[tuple[int, RowId]]
    recording: Recording
    reached: Counter[str]
    known: Floats | None
    weights: LlamaWeights | None
    lost: tuple[str, ...]
    is_done: bool

    def logits_behind(self, text: Sequence[int]) -> Floats:
        """Of the model of known logits."""
        assert self.known is not None
        return logits_behind(self.known, text)


class _Watch:
    """Between engine and runner: keeps plans and launches, and hears what was emitted."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.launches: list[tuple[Plan, Launch]] = []
        self.emitted: set[tuple[int, RowId]] = set()
        self.reached: Counter[str] = Counter()
        self.lost: list[str] = []

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        launch = self._runner.launch(plan, reservation)
        self.launches.append((plan, launch))
        self.reached["chunks"] += len(plan.samples) - sum(plan.samples)
        self.reached["tokens in flight"] += sum(plan.num_pending)
        return launch

    def observe(self, event: Event) -> None:
        """See `seams.Observer`."""
        if event.kind is EventKind.EMITTED and event.plan_id is not None and event.row is not None:
            self.emitted.add((event.plan_id, event.row))
        if event.kind is EventKind.ABANDONED:
            self.lost.append(event.reason)
        self.reached["preempted"] += event.kind is EventKind.PREEMPTED


def serve(way: Way, asked: Sequence[Request], seed: int, grammars: CompiledGrammars) -> Served:
    """All requests, batched, until nothing is left."""
    config = EngineConfig(
        **{"num_blocks": _BLOCKS, "block_size": _BLOCK, "max_tokens_per_step": 256, "max_num_seqs": 32,
           "vocab_size": VOCAB_SIZE, "logits_processors": tuple(PROCESSORS), **way.config}
    )  # fmt: skip
    known = laws_of(seed) if way.is_on_host else None
    weights = None if way.is_on_host else tiny_random(_SHAPE, seed % 2**31)
    runner: Runner
    if weights is None:
        assert known is not None
        runner = KnownRunner(config, known, grammars=grammars, processors=PROCESSORS)
    else:
        runner = TransformerRunner(weights, _BLOCKS, _BLOCK, grammars=grammars, processors=PROCESSORS)
    watch, recording = _Watch(runner), Recording(_proposer(way, seed, grammars))
    scheduler = PreemptingScheduler(asked, way.preempts_at) if way.preempts_at else None
    engine = Engine(config, watch, observer=watch.observe, scheduler=scheduler, grammars=grammars, drafting=Drafting(recording))
    texts = {(each.request_id, choice): list(each.prompt) for each in asked for choice in range(each.sampling.n)}
    for request in asked:
        admission = engine.submit(request)
        assert admission.is_accepted, admission.message
    steps = 0
    while engine.has_work and steps < _MOST_STEPS:
        engine.step()
        steps += 1
        for output in engine.take_outputs():
            texts[output.request_id, output.choice].extend(output.token_ids)
    steps_done = () if watch.lost else tuple(_step(*each) for each in watch.launches)
    return Served(
        way, steps_done, {key: tuple(text) for key, text in texts.items()},
        frozenset(watch.emitted), recording, watch.reached, known, weights, tuple(watch.lost),
        not engine.has_work,
    )  # fmt: skip


def _step(plan: Plan, launch: Launch) -> Step:
    result = launch.result()
    assert result is not None
    if not hasattr(launch, "logits"):
        return Step(plan, result, None)
    return Step(plan, result, cast("LaunchWithLogits", launch).logits.double().cpu().numpy())


def _proposer(way: Way, seed: int, grammars: CompiledGrammars) -> Proposer:
    if way.proposer == "drawing":
        return Drawing(VOCAB_SIZE, WIDTH)
    draft = TransformerRunner(_nearly(tiny_random(_SHAPE, seed % 2**31), seed), _BLOCKS, _BLOCK)
    of_grammars = grammars if way.proposer == "draft model" else None
    return DraftModel(draft, _BLOCKS, _BLOCK, WIDTH, processors=PROCESSORS, grammars=of_grammars)


def _nearly(weights: LlamaWeights, seed: int) -> LlamaWeights:
    """A model whose logits are somewhat off, so that some of its drafts stand and some fall."""
    generator = torch.Generator().manual_seed(seed % 2**31 + 1)
    off = torch.randn(weights.head.shape, generator=generator) * weights.head.std() * _OFF
    return replace(weights, head=weights.head + off)
