"""The suite `proposals`: proposers by themselves, and how an engine deals with one.

Owns four accounts, what is drawn for them, and their floors. A draft model whose rows are asked, repaired, skipped, preempted
and ended, and whose steps are refused now and then: each law is the reference's behind the same text, each draft is the one of
its own noise, none is left out for what it is, and nothing is kept at the end (ST-1, ST-3, SC-11). Prompt lookup, by its
definition (ST-1). An engine with a controller on a clock that is moved by hand: what the controller is told of queue, pool and
time, and what is counted (SC-7, SC-14). And the promises of the controller itself, in `properties.width_world`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from typing import Any, Final

import numpy as np
import torch

from differential.compare import tolerance_of
from differential.drawn_law import DRAFT, Place, chances_of, first_of, noise
from differential.reference import reference_logits
from differential.threads import one_thread
from differential.well_formed import Floats, Malformed, answered, drafts_with_laws
from engine_under_test.config import EngineConfig
from engine_under_test.drafting import Drafting
from engine_under_test.engine import Engine
from engine_under_test.errors import RunnerError
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.runner import Launch
from engine_under_test.execution.transformer import TransformerLaunch, TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random
from engine_under_test.sampling.controller import Conditions, Seconds, Trial, WidthController
from engine_under_test.sampling.draft_model import DraftModel
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.proposers import PromptLookup
from engine_under_test.sampling.speculation import Ask, Declaration, Proposal, Proposer, Repair
from engine_under_test.seams import Noise
from engine_under_test.types import History, Plan, Request, Reservation, RowId, SamplingParams, StepResult
from models.proposers import Knowing
from properties.invariants.predicate import violation
from properties.kv_world import HandClock
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Verdict, Violation
from properties.width_world import promises

SUITE_ID: Final = "proposals"
_WALKS: Final = {Profile.QUICK: 1, Profile.PR: 4, Profile.NIGHTLY: 200}  # of the draft model
_TEXTS: Final = {Profile.QUICK: 200, Profile.PR: 2000, Profile.NIGHTLY: 100_000}  # for prompt lookup
_RUNS: Final = {Profile.QUICK: 1, Profile.PR: 4, Profile.NIGHTLY: 100}  # of the engine with a controller
_PROMISES: Final = {Profile.QUICK: 9, Profile.PR: 4, Profile.NIGHTLY: 1}  # each n-th of those that take long
_WORLDS: Final = range(1, 9)  # seeds of the worlds in which the controller has promised; it draws nothing itself
_TURNS, _MOST, _BLOCKS, _BLOCK = 30, 3, 60, 4
_ANEW: Final = 7  # in each turn of this number somebody begins anew
_DEPTHS: Final = (1, 2, 0, 1)  # of the runs, in turn
_PLANS: Final = 24  # that a controller must be told of before requests stop coming
_ASKING_S: Final = 0.25
_SHAPE: Final = LlamaConfig(48, 24, 2, 2, 1, 12, 32)
FLOORS: Final = {  # for each walk, thousand texts, or run
    "drafts of a model": (120, _WALKS, 1),
    "rows that skipped a turn": (12, _WALKS, 1),
    "rows begun anew": (3, _WALKS, 1),
    "drafts that fell": (15, _WALKS, 1),
    "askings that came to nothing": (1, _WALKS, 1),
    "drafts looked up": (800, _TEXTS, 1000),
    "texts with an ending at several places": (200, _TEXTS, 1000),
    "plans told to a controller": (20, _RUNS, 1),
    "plans behind others": (8, _RUNS, 1),
    "choices of a width while others wait": (3, _RUNS, 1),
}


@dataclass(slots=True)
class _Row:
    """One that a draft model is asked about."""

    row: RowId
    prompt: tuple[int, ...]
    tokens: list[int]
    params: SamplingParams


@dataclass(slots=True)
class _Judge:
    """What was asked of which sentence, and what was reached."""

    reached: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)

    # A draft model

    def draft_model(self, chance: random.Random) -> Violation | None:
        """One walk."""
        weights = tiny_random(_SHAPE, chance.randrange(2**31))
        runner = _RefusingRunner(TransformerRunner(weights, _BLOCKS, _BLOCK), chance)
        model = DraftModel(runner, _BLOCKS, _BLOCK, max_drafts=_MOST)

        def laws_behind(text: Sequence[int], begin: int) -> torch.Tensor:
            return reference_logits(weights, text, begin=begin)

        rows: list[_Row] = []
        for turn in range(_TURNS):
            while len(rows) < 3 + turn % 3:
                rows.append(_new_row(chance, turn * 10 + len(rows)))
            asked = [row for row in rows if chance.random() < 0.8] or rows[:1]
            if turn % 2 and len(asked) == len(rows):  # in every other turn somebody skips it, whatever the seed
                asked.remove(chance.choice(asked))
            self.reached["rows that skipped a turn"] += len(rows) - len(asked)
            asks = [Ask(row.row, tuple(row.tokens), row.params, chance.randint(0, 4), len(row.prompt)) for row in asked]
            try:
                proposal = answered("the draft model", partial(model.propose, asks, PhiloxNoise()), but=(RunnerError,))
                told = drafts_with_laws(len(asks), proposal, _SHAPE.vocab_size)
            except Malformed as error:
                return violation("ST-1", "a draft model", error, "tokens of the vocabulary, each with its law")
            except RunnerError:  # as for an engine: nobody gets drafts this time
                self.reached["askings that came to nothing"] += 1
                told, asks = [((), []) for _ in asks], [ask._replace(width=0) for ask in asks]
            found = self._proposed(asked, asks, told, laws_behind)
            if found is not None:
                return found
            anew = asked[0] if turn % _ANEW == _ANEW - 1 else None
            for row, (drafts, _laws) in zip(asked, told, strict=True):
                self._go_on(model, row, drafts, chance, is_anew=row is anew)
            for row in [row for row in rows if chance.random() < 0.06 or len(row.tokens) > 26]:
                model.repair((Repair(row.row, 0, 0),))
                rows.remove(row)
        model.repair([Repair(row.row, 0, 0) for row in rows])
        self.asked["SC-11"] += 1
        if model.num_rows or model.num_free_blocks != _BLOCKS:
            left = f"{model.num_rows} rows, {_BLOCKS - model.num_free_blocks} blocks"
            return violation("SC-11", "a draft model whose rows have all ended", f"{left} kept", "nothing")
        return None

    def _go_on(self, model: DraftModel, row: _Row, drafts: Sequence[int], chance: random.Random, *, is_anew: bool) -> None:
        """As behind a landing: some drafts stand, another token follows, and mostly it is told; or it begins anew."""
        if is_anew or chance.random() < 0.06:
            model.repair((Repair(row.row, 0, 0),))
            row.row = row.row._replace(epoch=row.row.epoch + 1)
            self.reached["rows begun anew"] += 1
            return
        kept = chance.randint(0, len(drafts))
        added = chance.randrange(_SHAPE.vocab_size - 1)
        if kept < len(drafts):
            added += added >= drafts[kept]
            self.reached["drafts that fell"] += 1
        row.tokens += [*drafts[:kept], added]
        if chance.random() < 0.85:
            model.repair((Repair(row.row, kept, len(row.tokens)),))

    def _proposed(
        self,
        rows: Sequence[_Row],
        asks: Sequence[Ask],
        proposed: Sequence[tuple[Sequence[int], Sequence[Floats]]],
        laws_behind: Callable[[Sequence[int], int], torch.Tensor],
    ) -> Violation | None:
        for row, ask, (drafts, laws) in zip(rows, asks, proposed, strict=True):
            subject = f"the draft model asked about {row.row.request_id} behind {len(ask.tokens)} tokens"
            due = min(ask.width, _MOST)
            self.asked["ST-1"] += 1
            if len(drafts) != due:
                return violation("ST-1", subject, f"{len(drafts)} drafts", f"{due}: what is drawn is proposed, whatever it is")
            if not drafts:
                continue
            logits = laws_behind((*ask.tokens, *drafts[:-1]), len(ask.tokens) - 1).numpy()
            for number, (draft, told) in enumerate(zip(drafts, laws, strict=True)):
                output = (*ask.tokens[ask.prompt_len :], *drafts[:number])
                p = chances_of(logits[number], row.params, History(row.prompt, output)).p
                assert p is not None  # nothing here filters
                slack = 2 * tolerance_of(torch.float32) * float(logits[number].std()) / row.params.temperature
                self.reached["drafts of a model"] += 1
                if (error := float(np.abs(told - p).max())) > slack:
                    found = f"draft {number}: a law off by {error:.2g}"
                    return violation("ST-1", subject, found, f"at most {slack:.2g} from that of the text, computed anew")
                at = Place(Request(row.row.request_id, row.prompt, row.params), row.row.choice, len(ask.tokens) + number)
                self.asked["ST-3"] += 1
                drawn = first_of(told, noise(at, DRAFT, len(told)), 1e-15)
                if drawn is not None and drawn != draft:
                    return violation("ST-3", subject, f"draft {number} is {draft}", f"{drawn}, by its law and its own noise")
        return None

    # Prompt lookup

    def lookup(self, chance: random.Random) -> Violation | None:
        """One text."""
        proposer = PromptLookup(max_drafts=chance.randint(1, 5), most=chance.randint(1, 4))
        tokens = tuple(chance.choices(range(chance.choice((2, 3, 5))), k=chance.randint(1, 18)))
        width = chance.randint(0, 6)
        ask = Ask(RowId("text", 0, 0, 0), tokens, SamplingParams(), width, 1)
        (found,) = proposer.propose((ask,), PhiloxNoise()).drafts
        places = [
            (size, begin)
            for size in range(proposer.least, proposer.most + 1)
            for begin in range(len(tokens) - size)
            if tokens[begin : begin + size] == tokens[len(tokens) - size :]
        ]
        due: tuple[int, ...] = ()
        if places:
            size, begin = max(places)
            due = tokens[begin + size :][: min(width, proposer.max_drafts)]
            self.reached["texts with an ending at several places"] += sum(size == each for each, _ in places) > 1
        self.asked["ST-1"] += 1
        self.reached["drafts looked up"] += len(due)
        if found != due:
            subject = f"prompt lookup by up to {proposer.most} tokens behind {list(tokens)}"
            return violation("ST-1", subject, f"drafts {list(found)}", f"{list(due)}, what followed the longest ending last")
        return None

    # An engine with a controller

    def paced(self, chance: random.Random, depth: int) -> Violation | None:
        """Requests served; what the controller was told of each plan, against what clock and engine say."""
        clock = HandClock()
        config = EngineConfig(
            num_blocks=chance.choice((16, 40)), block_size=4, vocab_size=16, max_num_seqs=4, max_plans_in_flight=depth + 1
        )
        runner = _TimedRunner(FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size), clock, chance)
        controller = _Heard(runner)
        proposer = _TimedProposer(Knowing(config.vocab_size, 4), clock)
        drafting = Drafting(proposer, controller=controller, clock=clock)
        engine = Engine(config, runner, clock=clock, drafting=drafting)
        controller.engine = engine
        names = iter([f"r{number}" for number in range(45)])
        for _ in range(400):
            if not engine.has_work:
                if len(controller.told) >= _PLANS:
                    break
                for name in islice(names, 9):  # more than have a seat
                    prompt = tuple(chance.choices(range(16), k=chance.randint(2, 8)))
                    engine.submit(Request(name, prompt, SamplingParams(max_tokens=chance.randint(4, 14))))
            engine.step()
        self.reached["plans told to a controller"] += len(controller.told)
        self.reached["plans behind others"] += runner.num_behind
        self.reached["choices of a width while others wait"] += controller.num_with_queue
        self.asked["SC-7"] += len(controller.told)
        self.asked["SC-14"] += 1
        if controller.wrong is not None:
            return controller.wrong
        if engine.has_work:
            return violation("SC-7", "an engine with a controller", "no end of its requests in 400 steps", "an end")
        landed = [step for step in runner.landed if step[0].num_drafts]
        proposed = sum(sum(plan.num_drafts) for plan, _ in landed)
        accepted = sum(max(len(found) - 1, 0) for _, result in landed for found in result.tokens)
        if (drafting.num_proposed, drafting.num_accepted) != (proposed, accepted):
            found = f"{drafting.num_proposed} drafts counted, {drafting.num_accepted} of them as standing"
            return violation("SC-14", "drafts", found, f"{proposed} and {accepted}, counted from the results")
        return None


class _RefusingRunner:
    """Has no memory for a step of the draft model now and then; another time the step is lost when half of it has run."""

    def __init__(self, runner: TransformerRunner, chance: random.Random) -> None:
        self._runner, self._chance = runner, chance

    def launch(self, plan: Plan, reservation: Reservation) -> TransformerLaunch:
        """See `draft_model.LogitsRunner`."""
        luck = self._chance.random()
        if luck < 0.06:
            raise RunnerError("out of memory")
        launch = self._runner.launch(plan, reservation)
        if luck < 0.1:
            raise RunnerError("lost")
        return launch


class _TimedRunner:
    """Plans take turns on a device: each begins when it was launched and the one before it is done, and takes its own time."""

    def __init__(self, runner: FingerprintRunner, clock: HandClock, chance: random.Random) -> None:
        self._runner, self._clock, self._chance = runner, clock, chance
        self._ready_s = self._landed_s = 0.0
        self.landed: list[tuple[Plan, StepResult]] = []
        self.verify_s: dict[int, float] = {}  # of each plan that has landed
        self.num_behind = 0

    def launch(self, plan: Plan, reservation: Reservation) -> Launch:
        """See `runner.Runner`."""
        launch, began_s = self._runner.launch(plan, reservation), self._clock.time
        self.num_behind += self._ready_s > began_s
        self._ready_s = ready_s = max(self._ready_s, began_s) + self._chance.uniform(0.5, 2.0)

        def landed(result: StepResult) -> None:
            self._clock.time = max(self._clock.time, ready_s)
            self.verify_s[plan.plan_id] = self._clock.time - max(began_s, self._landed_s)
            self._landed_s = self._clock.time
            self.landed.append((plan, result))

        return _TimedLaunch(launch, landed)


class _TimedLaunch:
    def __init__(self, launch: Launch, landed: Callable[[StepResult], None]) -> None:
        self._launch, self._landed = launch, landed
        self.plan_id, self.fence = launch.plan_id, launch.fence

    def result(self) -> StepResult:
        """See `runner.Launch`."""
        result = self._launch.result()
        self._landed(result)
        return result


class _TimedProposer:
    """Takes its time for each asking."""

    def __init__(self, proposer: Proposer, clock: HandClock) -> None:
        self._proposer, self._clock = proposer, clock

    @property
    def declaration(self) -> Declaration:
        """See `speculation.Proposer`."""
        return self._proposer.declaration

    def propose(self, asks: Sequence[Ask], noise: Noise) -> Proposal:
        """See `speculation.Proposer`."""
        self._clock.time += _ASKING_S
        return self._proposer.propose(asks, noise)

    def repair(self, repairs: Sequence[Repair]) -> None:
        """See `speculation.Proposer`."""
        self._proposer.repair(repairs)


class _Heard(WidthController):
    """A controller that compares what it is told with what is so."""

    def __init__(self, runner: _TimedRunner) -> None:
        super().__init__()
        self._runner = runner
        self.engine: Engine | None = None
        self.told: list[Seconds] = []
        self.num_with_queue = 0
        self.wrong: Violation | None = None

    def choose(self, conditions: Conditions) -> int:
        """See `WidthController`."""
        assert self.engine is not None  # it is set before the first step
        now = self.engine.snapshot()
        due = Conditions(len(now.running), len(now.free), now.block_size, len(now.waiting))
        self.num_with_queue += due.num_waiting > 0
        if conditions != due:
            self._is_wrong("the conditions of a plan", conditions, due)
        return super().choose(conditions)

    def observe(self, num_rows: int, trials: Iterable[Trial], seconds: Seconds) -> None:
        """See `WidthController`."""
        told = list(trials)
        plan, result = self._runner.landed[-1]
        widths = plan.num_drafts or (0,) * plan.num_rows
        due = [Trial(width, len(found) - 1) for width, found in zip(widths, result.tokens, strict=True) if width]
        verify_s = self._runner.verify_s[plan.plan_id]
        self.told.append(seconds)
        if (num_rows, told) != (plan.num_rows, due):
            self._is_wrong(f"the drafts of plan {plan.plan_id}", told, due)
        if abs(seconds.verify - verify_s) > 1e-9:
            self._is_wrong(f"the time of plan {plan.plan_id}", f"{seconds.verify:.3f} s", f"{verify_s:.3f} s, its own alone")
        if not any(abs(seconds.propose - each) < 1e-9 for each in ((_ASKING_S,) if any(widths) else (0.0, _ASKING_S))):
            self._is_wrong(f"the drafting of plan {plan.plan_id}", f"{seconds.propose:.3f} s", f"{_ASKING_S} s, where any was")
        super().observe(num_rows, told, seconds)

    def _is_wrong(self, subject: str, found: object, expected: object) -> None:
        self.wrong = self.wrong or violation("SC-7", f"the width of drafts, told of {subject}", found, expected)


def _new_row(chance: random.Random, number: int) -> _Row:
    prompt = tuple(chance.choices(range(_SHAPE.vocab_size), k=chance.randint(2, 9)))
    bias = tuple((token, chance.uniform(-2.0, 2.0)) for token in chance.sample(range(_SHAPE.vocab_size), 6))
    kinds: tuple[dict[str, Any], ...] = (
        {},
        {"logit_bias": bias},
        {"frequency_penalty": 0.8, "repetition_penalty": 1.3},
        {"presence_penalty": -0.5},
    )
    params = SamplingParams(temperature=chance.choice((0.6, 1.0, 2.0)), seed=chance.getrandbits(64))
    return _Row(RowId(f"r{number}", chance.randrange(3), 1, 0), prompt, list(prompt), replace(params, **chance.choice(kinds)))


def check_proposals(context: SuiteContext) -> CheckResult:
    """The suite, up to the first violation."""
    judge = _Judge()
    with one_thread():
        failure, done = _run(context, judge)
    floors = {name: least * work[context.profile] // per for name, (least, work, per) in FLOORS.items()}
    missed = [f"{name} {judge.reached[name]} of {least}" for name, least in floors.items() if judge.reached[name] < least]
    return CheckResult(
        SUITE_ID,
        Verdict.INVALID if failure else Verdict.UNKNOWN if missed else Verdict.VALID,
        examples=done,
        ops=sum(judge.asked.values()),
        reached={name: judge.reached[name] for name in FLOORS},
        missed=() if failure else tuple(missed),
        invariants=dict(judge.asked),
        failures=(failure,) if failure else (),
        note=f"{judge.reached['drafts of a model']:,} drafts of a model and {judge.reached['drafts looked up']:,} looked up",
    )


def _run(context: SuiteContext, judge: _Judge) -> tuple[Failure | None, int]:
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
    profile, stride = context.profile, _PROMISES[context.profile]

    def chance(kind: str, number: int) -> random.Random:
        return random.Random(f"{SUITE_ID} {context.seed} {kind} {number}")

    depths = cycle(_DEPTHS)
    tries: list[Callable[[], Violation | None]] = []
    tries += [partial(judge.lookup, chance("text", number)) for number in range(_TEXTS[profile])]
    tries += [partial(judge.draft_model, chance("walk", number)) for number in range(_WALKS[profile])]
    tries += [partial(judge.paced, chance("run", number), next(depths)) for number in range(_RUNS[profile])]
    worlds = _WORLDS if profile is Profile.NIGHTLY else (_WORLDS[context.seed % len(_WORLDS)],)
    made = [promise for world in worlds for promise in promises(world)]
    kept = [each for number, each in enumerate(made) if not each.is_long or number % stride == context.seed % stride]
    tries += [promise.check for promise in kept]
    judge.asked["SC-7"] += len(kept)
    for number, each in enumerate(tries):
        if (found := each()) is not None:
            return Failure(found, f"{SUITE_ID}#{context.seed:#x}", again), number + 1
        if number % 100 == 0 or number > _TEXTS[profile]:
            context.progress(number + 1, len(tries))
    return None, len(tries)
