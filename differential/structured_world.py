"""Requests with grammars served by an engine whose logits are known: the ways to serve them, and what came of each.

The logits behind a text depend on its last two tokens, read through the cells, so that whoever has the text has the logits.
Owns the model, the requests and the ways (`Way`), each with what it must have reached. Never: a judgement (`structured.py`).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from differential.preempting import PreemptingScheduler
from differential.reached import count_event, count_plan
from differential.said import Said, Users, continuing
from engine_under_test.config import EngineConfig
from engine_under_test.drafting import Drafting
from engine_under_test.engine import Engine
from engine_under_test.errors import RunnerError
from engine_under_test.events import Event
from engine_under_test.execution import cells
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.runner import Launch, Runner
from engine_under_test.execution.schedule import Chance
from engine_under_test.execution.simulated_device import SimulatedDevice
from engine_under_test.execution.verifying import Places
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.sampling.proposers import Scripted
from engine_under_test.types import Plan, Request, Reservation, SamplingParams
from models.words import mix
from properties.grammar_cases import CASES, STOPS, TEXTS, VOCAB_SIZE

MAX_TOKENS = 18
_ENDLESS = 4  # who never stop; at their ends they hold more blocks than the smallest pool of `WAYS` has
_NUM_LAWS = 61
_MOST_STEPS = 3000
_32 = np.uint64(32)
Floats = npt.NDArray[np.float64]


def laws_of(seed: int) -> Floats:
    """[laws, vocabulary]: logits, of which stop tokens are likely enough."""
    rng = np.random.default_rng(seed)
    found = rng.normal(0.0, 2.0, (_NUM_LAWS, VOCAB_SIZE)).round(3)
    found[:, list(STOPS)] += rng.normal(0.5, 2.0, (_NUM_LAWS, len(STOPS))).round(3)
    return found


def logits_behind(laws: Floats, text: Sequence[int]) -> Floats:
    """The logits behind a text of two tokens or more."""
    end = len(text)
    words = mix(mix((np.arange(end - 2, end, dtype=np.uint64) << _32) + np.array(text[-2:], dtype=np.uint64)))
    found: Floats = laws[int(mix(words[1:] + mix(words[:1]))[0]) % _NUM_LAWS]
    return found


class KnownRunner(FingerprintRunner):
    """The engine's runner with these logits."""

    def __init__(self, config: EngineConfig, laws: Floats, **options: Any) -> None:
        super().__init__(config.num_blocks, config.block_size, config.vocab_size, **options)
        self._laws = laws

    def _digests(self, read: Sequence[cells.Words], places: Places) -> cells.Words:
        """The last two cells in front of each place, less its position, which is added to what weighs cells."""
        both = zip(places.rows, places.positions, strict=True)
        last = np.array([[read[row][2 * end - 4], read[row][2 * end - 2]] for row, end in both], dtype=np.uint64)
        return cells.mix(last[:, 1] + cells.mix(last[:, 0])) - np.array(places.positions, np.uint64)

    def _logits(self, digests: cells.Words) -> Floats:
        found: Floats = self._laws[(digests % np.uint64(_NUM_LAWS)).astype(np.int64)]
        return found


@dataclass(frozen=True, slots=True)
class Way:
    """How requests are served. ``config``: of the engine, over what all have; ``gap``: steps between two of them;
    ``preempts_at``: see `PreemptingScheduler`; ``fails``: of so many launches one is refused by the runner, 0: none;
    ``restarts``: after so many steps the engine begins a new generation, 0: never; ``aborts``: some requests are given up;
    ``drafts``: as many as stand of those that are proposed, in turn; ``is_late``: plans run late. ``floors``: what must happen
    at least so often, in one round of requests."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    gap: int = 0
    preempts_at: tuple[int, ...] = ()
    fails: int = 0
    restarts: int = 0
    aborts: bool = False
    drafts: tuple[int, ...] = ()
    is_late: bool = False
    floors: Mapping[str, int] = field(default_factory=dict)


WAYS = (
    Way("batched", gap=1, floors={"rows beside others": 80, "forked": 2}),
    Way("chunked", {"max_tokens_per_step": 6, "max_num_seqs": 6}, floors={"chunks": 5}),
    Way("preempted, cached", preempts_at=(2, 5, 9), floors={"preempted": 12, "tokens from the cache": 30}),
    Way("short of blocks", {"num_blocks": 24, "prefix_cache": False}, floors={"preempted": 1}),
    Way("overlapped", {"max_plans_in_flight": 2}, gap=1, aborts=True, floors={"tokens in flight": 60, "aborted": 1}),
    Way(
        "twice overlapped, plans that fail",
        {"max_plans_in_flight": 3},
        fails=7,
        floors={"tokens in flight": 60, "refused launches": 2},
    ),
    Way(
        "begun again, late",
        {"max_plans_in_flight": 3},
        restarts=9,
        is_late=True,
        floors={"tokens in flight": 60, "restarts": 2},
    ),
    Way("drafts", gap=1, drafts=(1, 4, 0, 2), floors={"drafts": 30, "drafts that stand": 12, "drafts that fall": 2}),
    Way(
        "drafts, preempted, overlapped",
        {"max_plans_in_flight": 2, "max_tokens_per_step": 24, "max_num_seqs": 8},
        preempts_at=(3, 8),
        drafts=(3, 0, 2),
        floors={"drafts": 20, "drafts that stand": 10, "drafts that fall": 2, "preempted": 8},
    ),
)
_CONFIG: Mapping[str, Any] = {
    "num_blocks": 400, "block_size": 4, "max_tokens_per_step": 64, "max_num_seqs": 48, "vocab_size": VOCAB_SIZE,
}  # fmt: skip


def requests(seed: int) -> tuple[Request, ...]:
    """Of every kind of grammar, alone and with every other step of the sampler, several choices; others without a grammar
    beside them; one to which the other steps leave no token that its grammar allows; one that is cut before it can end.

    Before all of them some that never stop, of two whole blocks each: in the first step of every way they are there together,
    so that whatever the seed nobody can be spared who runs behind them when blocks are short, launches are many enough to be
    refused, and somebody lives long enough to be given up."""
    chance = random.Random(f"structured {seed}")
    beginnings = [tuple(chance.randrange(VOCAB_SIZE) for _ in range(9)) for _ in range(3)]
    warm = SamplingParams(max_tokens=MAX_TOKENS, stop_token_ids=STOPS, temperature=1.0)
    asked = [replace(_varied(chance, warm), grammar=case.spec) for case in CASES.values()]
    stuck = tuple((TEXTS.index(piece),) for piece in (b"e", b"es", b"o", b"s"))
    asked += [replace(warm, grammar=CASES["an ending"].spec, bad_words=stuck)]
    asked += [replace(warm, grammar=CASES["nested"].spec, max_tokens=4)]
    asked[2:2] = [_varied(chance, warm), _varied(chance, warm), replace(warm, temperature=0.0)]
    asked[9:9] = [_varied(chance, warm), replace(warm, logprobs=3)]
    found = [
        (
            chance.choice(beginnings)[: chance.choice((4, 8, 9))]
            + tuple(chance.choices(range(VOCAB_SIZE), k=chance.randint(2, 9))),
            replace(sampling, seed=chance.getrandbits(64)),
        )
        for sampling in asked
    ]
    length = 2 * _CONFIG["block_size"]
    endless = [
        (tuple(chance.choices(range(VOCAB_SIZE), k=length)), replace(warm, stop_token_ids=(), seed=chance.getrandbits(64)))
        for _ in range(_ENDLESS)
    ]
    return tuple(Request(f"r{number}", *each) for number, each in enumerate((*endless, *found)))


def _varied(chance: random.Random, warm: SamplingParams) -> SamplingParams:
    """One of the other steps, or none, or two."""
    letters = range(len(TEXTS) - len(STOPS))
    changes: tuple[Mapping[str, Any], ...] = (
        {},
        {"temperature": 0.0},
        {"top_p": 0.5},
        {"top_k": 2},
        {"min_p": 0.3, "n": 2},
        {"frequency_penalty": 1.5, "repetition_penalty": 1.3},
        {"logit_bias": tuple((token, 3.0) for token in chance.sample(letters, 6)), "n": 3},
        {"presence_penalty": 1.0, "top_p": 0.7},
        {"temperature": 3.0, "logprobs": 2, "n": 2},
    )
    return replace(warm, **{**chance.choice(changes), **chance.choice(changes)})


class _Watch:
    """Between engine and runner: refuses some launches, counts what plans hold, and hears what becomes of them."""

    def __init__(self, runner: Runner, fails: int) -> None:
        self._runner = runner
        self._fails = fails
        self._launches = 0
        self.reached: Counter[str] = Counter()

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        self._launches += 1
        if self._fails and self._launches % self._fails == 0:
            self.reached["refused launches"] += 1
            raise RunnerError("the device took no work")
        count_plan(self.reached, plan)
        self.reached["drafts"] += sum(plan.num_drafts)
        return self._runner.launch(plan, reservation)

    def observe(self, event: Event) -> None:
        """See `seams.Observer`."""
        count_event(self.reached, event)


def serve(
    way: Way,
    asked: Sequence[Request],
    laws: Floats,
    grammars: CompiledGrammars,
    truth: Mapping[tuple[int, ...], tuple[int, ...]],
) -> tuple[list[Said], Counter[str]]:
    """Every choice, and what was reached. ``truth``: what stands behind prompts, for whoever proposes drafts."""
    config = EngineConfig(**{**_CONFIG, **way.config})
    device = SimulatedDevice(Chance(len(asked))) if way.is_late else None
    watch = _Watch(KnownRunner(config, laws, device=device, grammars=grammars), way.fails)
    scheduler = PreemptingScheduler(asked, way.preempts_at) if way.preempts_at else None
    drafting = _drafting(truth, way)
    engine = Engine(config, watch, observer=watch.observe, scheduler=scheduler, grammars=grammars, drafting=drafting)
    users = Users(engine)
    given_up = [request.request_id for number, request in enumerate(asked) if way.aborts and number % 3 == 1]

    def step() -> None:
        if device is not None:
            device.turn()
        engine.step()
        watch.reached["steps"] += 1
        if way.restarts and watch.reached["steps"] % way.restarts == 0 and watch.reached["restarts"] < 4:
            watch.reached["restarts"] += 1
            engine.restart()
        users.hear()
        for request_id in given_up:
            if (request_id, 0) in users.choices and users.choices[request_id, 0].tokens[2:]:
                watch.reached["aborted"] += engine.abort(request_id)

    for request in asked:
        users.ask(request, gives_up=request.request_id in given_up)
        for _ in range(way.gap):
            step()
    while engine.has_work and watch.reached["steps"] < _MOST_STEPS:
        step()
    if drafting is not None:
        watch.reached["drafts that stand"] = drafting.num_accepted
        watch.reached["drafts that fall"] = drafting.num_proposed - drafting.num_accepted
    return list(users.choices.values()), watch.reached


def _drafting(truth: Mapping[tuple[int, ...], tuple[int, ...]], way: Way) -> Drafting | None:
    if not way.drafts:
        return None
    texts = ((*prompt, *output) for prompt, output in truth.items())
    return Drafting(Scripted(continuing(texts), way.drafts, VOCAB_SIZE))
