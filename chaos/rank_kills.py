"""Real deaths of real ranks under an engine that serves: what it does, a history of it, and the verdicts.

Owns the workload, the order of strikes and the record. A run on real processes is not bit-for-bit repeatable: which of two
ranks is seen to fail first depends on the machine. So its history is the account, and its title says how to run the like again.
Never: what must hold (`properties/rank_checkers.py`, `properties/checkers.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from random import Random
from typing import Final

from chaos.rank_strikes import IN_CONTAINERS, STRIKE, Blow, Strike, to_argument
from chaos.real_runs import hang_in
from engine_under_test.config import EngineConfig
from engine_under_test.distributed.rank_config import FingerprintModel, Patience, RandomLlama, RankConfig, RankModel
from engine_under_test.distributed.rank_messages import RankPhase
from engine_under_test.distributed.rank_processes import Launcher, LocalProcess
from engine_under_test.distributed.rank_supervisor import Policy, RankSupervisor
from engine_under_test.distributed.ranks import Ranks
from engine_under_test.engine import Engine
from engine_under_test.events import Event, RankEvent, RankEventKind
from engine_under_test.execution.fingerprint import FingerprintRunner
from engine_under_test.execution.runner import Runner
from engine_under_test.types import FinishReason, LogprobsMode, Output, Request, SamplingParams
from properties.checkers import CHECKERS, CheckerVerdict, run_checkers
from properties.history import History
from properties.invariants.predicate import violation
from properties.op import Op, OpKind
from properties.rank_checkers import RANK_CHECKERS, TOLD
from properties.verdict import Violation

OF_THE_ENGINE = tuple(each for each in CHECKERS if each.identifier in ("SC-5", "SC-11", "SC-14", "SK-3", "SE-2"))
JUDGES = (*OF_THE_ENGINE, *RANK_CHECKERS, TOLD)
PATIENCE = Patience(beat_s=0.1, silence_s=2.0, step_s=4.0)
STEP_PHASES = (RankPhase.BEFORE_PLAN, RankPhase.IN_COLLECTIVE, RankPhase.BEFORE_REPLY)
_BLOWS = tuple(blow for blow in Blow if blow not in IN_CONTAINERS)
_NUM_REQUESTS = 6
_VOCAB = 64
LLAMA: Final = RandomLlama(
    {"vocab_size": _VOCAB, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "head_size": 8,
     "intermediate_size": 32}, seed=5,
)  # fmt: skip
LONGEST_S = 60.0  # of a storm: many times what it takes; whoever is not through by then hangs
_LLAMA_SHARE = 1 / 3
_FALSE_ALARMS = 1  # a machine may be so busy that a healthy rank is silent for too long

Struck = Callable[[Strike, Ranks], None]


@dataclass(frozen=True, slots=True)
class RankStorm:
    """A group, a policy, and the blows that it is dealt. The workload is a pure function of the seed."""

    seed: int
    world_size: int
    policy: Policy
    strikes: tuple[Strike, ...]
    depth: int = 1
    outside: str = ""  # what befalls the rank that holds
    is_llama: bool = False  # what they compute: a Llama with fewer KV heads than four ranks, or fingerprints

    @property
    def title(self) -> str:
        """What this storm is, in a line."""
        blows = "; ".join(f"rank {each.rank}, generation {each.generation}: {each.words}" for each in self.strikes)
        what = f"{blows or 'no blow'}{self.outside and f': {self.outside}'}"
        ranks = f"{self.world_size} ranks{' of a Llama' if self.is_llama else ''}"
        return f"{ranks}, seed {self.seed:#x}, depth {self.depth}, {self.policy}: {what}"

    @property
    def model(self) -> RankModel:
        return LLAMA if self.is_llama else FingerprintModel(_VOCAB)


@dataclass(slots=True)
class RankRun:
    """What a storm came to. ``facts``: the life of the group in a person's words."""

    storm: RankStorm
    history: History
    verdicts: tuple[CheckerVerdict, ...] = ()
    num_restarts: int = 0
    num_steps: int = 0
    took_s: float = 0.0
    ends: dict[FinishReason, int] = field(default_factory=dict)
    violation: Violation | None = None
    outside: tuple[str, ...] = ()  # what befell a rank from outside, in words
    missed: str = ""  # what the storm was to show and did not

    @property
    def losses(self) -> tuple[RankEvent, ...]:
        return tuple(event for event in self.history.of(RankEvent) if event.kind is RankEventKind.LOST)

    @property
    def facts(self) -> tuple[str, ...]:
        told = [each for each in self.history.of(RankEvent) if each.kind not in (RankEventKind.SENT, RankEventKind.EXECUTED)]
        begin = told[0].at_s if told else 0.0
        group = tuple(
            f"{each.at_s - begin:8.3f} s  generation {each.generation}: {each.kind}"
            f"{'' if each.rank is None else f' rank {each.rank}'}{f' ({each.reason})' if each.reason else ''}"
            for each in told
        )
        return (*group, *(f"from outside: {each}" for each in self.outside))

    @property
    def noticed_s(self) -> tuple[float, ...]:
        """From each blow's step being sent to its loss being noticed."""
        blows: dict[int, float] = {}
        found = []
        for event in self.history.of(RankEvent):
            if event.kind is RankEventKind.STRUCK:
                blows[event.generation] = event.at_s
            elif event.kind is RankEventKind.LOST and event.generation in blows:
                found.append(event.at_s - blows.pop(event.generation))
        return tuple(found)


def every_storm(seed: int, world_sizes: Sequence[int] = (2, 4)) -> Iterator[RankStorm]:
    """Each blow at each phase under each policy, at a rank and a step drawn from the seed; under one policy also on a Llama."""
    for number, (world_size, blow, phase, policy) in enumerate(product(world_sizes, _BLOWS, STEP_PHASES, Policy)):
        random = Random(f"ranks/{seed}/{number}")
        strike = Strike(blow, phase, random.randrange(world_size), random.randint(2, 8))
        storm = RankStorm(seed * 1000 + number, world_size, policy, (strike,), random.randint(0, 2))
        yield storm
        if policy is Policy.CONTINUE:
            yield replace(storm, is_llama=True)


def draw_rank_storm(seed: int, world_size: int) -> RankStorm:
    """The storm of a seed: one blow, sometimes a second one after the recovery."""
    random = Random(f"ranks/storm/{seed}")
    blows = _BLOWS if world_size > 1 else tuple(blow for blow in _BLOWS if blow is not Blow.PART)  # from whom?
    strikes = tuple(
        Strike(random.choice(blows), random.choice(STEP_PHASES), random.randrange(world_size), random.randint(1, 8), generation)
        for generation in range(1, random.choice((2, 2, 3)))
    )
    policy, depth = random.choice(tuple(Policy)), random.randint(0, 2)
    return RankStorm(seed, world_size, policy, strikes, depth, is_llama=random.random() < _LLAMA_SHARE)


def run_rank_storm(
    storm: RankStorm,
    launcher: Launcher,
    patience: Patience = PATIENCE,
    *,
    interface: str = "lo",
    struck: Struck | None = None,
) -> RankRun:
    """Serves the workload through the storm; then everything is judged. Ends within `LONGEST_S` and the patience for each
    strike, whatever the ranks do.

    ``struck`` is told when the step of a strike was sent, for blows from outside.
    """
    run = RankRun(storm, History({"storm": storm.title, "is_repeatable": False}))
    seconds = LONGEST_S + 2 * (patience.notice_s + patience.step_s) * len(storm.strikes)
    hung = hang_in(storm.title, lambda: _run_storm(run, launcher, patience, interface, struck), seconds, "DI-2")
    run.violation = run.violation or hung
    return run


def _run_storm(run: RankRun, launcher: Launcher, patience: Patience, interface: str, struck: Struck | None) -> None:
    began, storm = time.monotonic(), run.storm
    config = EngineConfig(
        num_blocks=24,
        block_size=4,
        vocab_size=_VOCAB,
        max_tokens_per_step=16,
        max_num_seqs=4,
        max_plans_in_flight=storm.depth + 1,
    )
    requests = tuple(_requests(storm.seed, config.vocab_size))
    serve_twins(run.history, config, requests, storm.model)
    recorder = _Recorder(run.history, storm.strikes, patience)
    ranks = RankConfig(
        storm.world_size, storm.model, config.num_blocks, config.block_size, patience=patience,
        interface=interface, phases=STRIKE, phases_argument=to_argument(storm.strikes),
    )  # fmt: skip
    with Ranks(ranks, launcher, tell=recorder.rank) as group:
        recorder.struck = None if struck is None else partial(_tell_struck, struck, group)
        engine = Engine(config, group, observer=recorder.event)
        supervisor = RankSupervisor(engine, group, storm.policy)
        run.violation = _serve(run, engine, supervisor, group, recorder, requests)
        run.num_restarts = supervisor.num_restarts
        recorder.flush(engine)
    run.violation = run.violation or recorder.left_over() or _given_up(run)
    run.verdicts = run_checkers(run.history, JUDGES)
    run.violation = run.violation or next((each.violation for each in run.verdicts if each.violation is not None), None)
    run.took_s = time.monotonic() - began


def _tell_struck(struck: Struck, group: Ranks, strike: Strike) -> None:
    struck(strike, group)


def _given_up(run: RankRun) -> Violation | None:
    """One loss is no reason to end anybody, where the policy is to continue."""
    errors = run.ends.get(FinishReason.ERROR, 0)
    if run.storm.policy is Policy.CONTINUE and len(run.storm.strikes) == 1 and errors:
        return violation("DI-2", f"{errors} requests", "ended with an error after a single loss", "go on, as the policy says")
    return None


class _Recorder:
    """What engine and group tell, in the order in which it may stand in a history."""

    def __init__(self, history: History, strikes: Sequence[Strike], patience: Patience) -> None:
        self._history = history
        self._due = {(each.generation, each.sequence): each for each in strikes}
        # A stall shows only when a step is late; a kernel that is short of memory first takes back what it can, for seconds.
        is_slow = any(each.blow in (Blow.STALL, Blow.EXHAUST) for each in strikes)
        self._bound_s = patience.notice_s + (patience.step_s if is_slow else 0.0)
        self._generation = 0
        self.num_losses = 0
        self._parted: tuple[Strike, RankEvent] | None = None  # and the step of it
        self.struck: Callable[[Strike], None] | None = None
        self.outputs: list[Output] = []
        self.pids: list[int] = []

    def event(self, event: Event) -> None:
        self._history.add(event)

    def rank(self, event: RankEvent) -> None:
        """Takes note. When a step that a blow waits for is sent, the blow must be noticed from now on; one that only parts
        ranks, from the next step on, whose sums they can not do."""
        self.num_losses += event.kind is RankEventKind.LOST
        if event.kind in (RankEventKind.SENT, RankEventKind.LOST) and self._parted is not None:
            strike, sent = self._parted
            self._parted = None
            self._note_blow(strike, event if event.kind is RankEventKind.SENT else sent)
        self._history.add(event)
        due = self._due.pop((event.generation, event.sequence), None) if event.kind is RankEventKind.SENT else None
        if due is None:
            return
        if self.struck is not None:
            self.struck(due)
        if due.blow is Blow.PART:
            self._parted = due, event
        else:
            self._note_blow(due, event)

    def _note_blow(self, strike: Strike, sent: RankEvent) -> None:
        bound_s = 0.0 if strike.blow is Blow.REST else self._bound_s  # that may pass unnoticed, and its requests suffer nothing
        named = None if strike.blow is Blow.PART else strike.rank  # of ranks that miss each other, nobody can tell who is away
        self._history.add(
            RankEvent(
                RankEventKind.STRUCK, sent.generation, sent.at_s, named, strike.sequence, bound_s=bound_s, reason=strike.words
            )
        )  # fmt: skip

    def note_restart(self, engine: Engine) -> None:
        """If the engine has begun anew, that stands in the history as the operation that it is."""
        generation = engine.snapshot().generation
        if generation != self._generation:
            self._generation = generation
            self._history.add_op(Op(OpKind.RESTART))

    def note_processes(self, group: Ranks) -> None:
        """Whoever computes now."""
        self.pids += [each.pid for each in group.processes if isinstance(each, LocalProcess) and each.pid not in self.pids]

    def flush(self, engine: Engine) -> None:
        """What the engine has told its users since."""
        outputs = engine.take_outputs()
        self.outputs += outputs
        self._history.extend(outputs)

    def left_over(self) -> Violation | None:
        """No process outlives its group."""
        left = [pid for pid in self.pids if os.path.exists(f"/proc/{pid}")]
        if left:
            return violation("DI-2", f"processes {left}", "there behind the end of their group", "gone")
        return None


def _serve(
    run: RankRun,
    engine: Engine,
    supervisor: RankSupervisor,
    group: Ranks,
    recorder: _Recorder,
    requests: Sequence[Request],
) -> Violation | None:
    waiting = list(requests)
    bound = 200 * (1 + len(run.storm.strikes))
    while (waiting or engine.has_work) and run.num_steps < bound:
        if waiting and run.num_steps % 3 == 0:
            request = waiting.pop(0)
            run.history.add_op(Op(OpKind.ADD, request=request), admission=engine.submit(request))
        recorder.note_processes(group)
        supervisor.step()
        run.num_steps += 1
        recorder.note_restart(engine)
        recorder.flush(engine)
        if recorder.num_losses > len(run.storm.strikes) + _FALSE_ALARMS:
            blows = f"at most {len(run.storm.strikes)}, as many as there were blows"
            return violation("DI-2", "ranks", f"lost {recorder.num_losses} times", blows)
    run.history.add_op(Op(OpKind.DRAIN))
    while (engine.poll() or engine.snapshot().unsettled) and run.num_steps < bound:
        supervisor.step()
        run.num_steps += 1
    run.history.add(deepcopy(engine.counters))
    for output in recorder.outputs:
        if output.finish_reason is not None:
            run.ends[output.finish_reason] = run.ends.get(output.finish_reason, 0) + 1
    if engine.has_work:
        return violation("DI-2", f"the engine after {run.num_steps} steps", "requests without an end", "an end of each")
    return None


def _requests(seed: int, vocab_size: int) -> Iterator[Request]:
    random = Random(f"ranks/requests/{seed}")
    for number in range(_NUM_REQUESTS):
        prompt = tuple(random.randrange(vocab_size) for _ in range(random.randint(3, 24)))
        temperature = random.choice((0.0, 0.0, 1.0))
        sampling = SamplingParams(
            max_tokens=random.randint(4, 12), temperature=temperature, seed=random.randrange(2**32), n=random.choice((1, 1, 2)),
            logprobs=random.choice((None, 2)), prompt_logprobs=1 if number == 0 else random.choice((None, 1)),
            logprobs_mode=random.choice(tuple(LogprobsMode)),
        )  # fmt: skip
        yield Request(f"r{number}", prompt, sampling)


def serve_twins(history: History, config: EngineConfig, requests: Sequence[Request], model: RankModel) -> None:
    """The same requests under other names through an engine of one rank that nothing befalls."""
    engine = Engine(config, _alone(config, model))
    for request in requests:
        twin = replace(request, request_id=f"twin of {request.request_id}")
        history.add_op(Op(OpKind.ADD, request=twin), admission=engine.submit(twin))
    while engine.has_work:
        engine.step()
    history.extend(engine.take_outputs())


def _alone(config: EngineConfig, model: RankModel) -> Runner:
    """What the ranks compute together, computed by one."""
    if not isinstance(model, RandomLlama):
        return FingerprintRunner(config.num_blocks, config.block_size, config.vocab_size)
    from engine_under_test.execution.transformer import TransformerRunner  # fingerprints need no torch
    from engine_under_test.model.weights import LlamaConfig, tiny_random

    return TransformerRunner(tiny_random(LlamaConfig(**model.shape), model.seed), config.num_blocks, config.block_size)
