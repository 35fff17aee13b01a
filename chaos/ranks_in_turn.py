"""The suite `ranks-in-turn`: a short service on ranks that are played, with every blow at every moment of a step, to
the virtual second.

Owns the workload, the enumeration, and who must be named within which bounds. The driver, the supervisor and the engine are the
real ones; ranks are those of `chaos.scripted_ranks`. What must hold is the catalogue's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations, product
from typing import Final

from chaos.rank_kills import OF_THE_ENGINE, serve_twins
from chaos.real_runs import failure_of
from chaos.scripted_blows import LIES, STEP_S, Blow, Moment, Turn
from chaos.scripted_ranks import ScriptedRanks
from chaos.scripted_time import NeverOver, VirtualSelector, VirtualTime
from engine_under_test.config import EngineConfig
from engine_under_test.distributed.rank_config import FingerprintModel, Patience, RankConfig
from engine_under_test.distributed.rank_supervisor import Policy, RankSupervisor
from engine_under_test.distributed.ranks import Ranks
from engine_under_test.engine import Engine
from engine_under_test.errors import RankLost
from engine_under_test.events import RankEvent, RankEventKind
from engine_under_test.types import Request, SamplingParams
from properties.checkers import run_checkers
from properties.history import History, Record
from properties.invariants.predicate import violation
from properties.op import Op, OpKind
from properties.rank_checkers import DEATHS, EXACT_CHECKERS, NO_FALSE_ALARM
from properties.rank_endings import Terms, endings_by, starts_by
from properties.suite import CheckResult, Profile, SuiteContext
from properties.sums import Sums
from properties.verdict import Violation

SUITE_ID = "ranks-in-turn"
PATIENCE: Final = Patience(beat_s=0.5, silence_s=4.0, step_s=12.0, join_s=20.0)
_BEAT, _SILENCE, _STEP, _JOIN = PATIENCE.beat_s, PATIENCE.silence_s, PATIENCE.step_s, PATIENCE.join_s
_AT_ONCE_S = 0.02
_CAUSE_S = 1.1  # how long a driver looks for the cause of a connection or a collective that broke
_MOST_S, _MOST_STEPS = 900.0, 120
_POISON = "b"
_CONFIG: Final = EngineConfig(num_blocks=24, block_size=4, vocab_size=64, max_tokens_per_step=16, max_num_seqs=2)
_REQUESTS: Final = (
    Request("a", (3, 1, 4, 1, 5, 9), SamplingParams(max_tokens=3)),
    Request(_POISON, (2, 7, 1, 8, 2, 8, 1, 8, 2), SamplingParams(max_tokens=4, temperature=1.0, seed=11)),
    Request("c", (1, 6, 1, 8), SamplingParams(max_tokens=2)),
)
_STEP_MOMENTS: Final = (Moment.BEFORE_PLAN, Moment.IN_COLLECTIVE, Moment.BEFORE_REPLY)
_COLUMNS: Final = ("plan_id", "plan_generation", "rows", "tokens", "told", "error", "to_blame", "distrusts", "collectives")
_AS_SENT: Final = ("plan_id", "rows")  # what even one rank of two can be convicted of
_STRIDES: Final = {Profile.QUICK: 37, Profile.PR: 7, Profile.NIGHTLY: 1}
_LATER: Final = range(2, 1000)


@dataclass(frozen=True, slots=True)
class Case:
    """A group, a policy, blows, and what the driver does meanwhile: ``away_s`` seconds before its step ``away_at``, in which
    the ranks go on, or stand still with it."""

    world_size: int
    policy: Policy
    depth: int
    turns: tuple[Turn, ...] = ()
    away_s: float = 0.0
    away_at: int = 1
    all_stand_still: bool = False
    idle_s: float = 0.0

    @property
    def title(self) -> str:
        """In a line."""
        blows = "; ".join(f"rank {each.rank}: {each.words}" for each in self.turns) or "no blow"
        who = "everything stands still" if self.all_stand_still else "the driver is away"
        away = f", {who} for {self.away_s:g} s before its step {self.away_at}" if self.away_s else ""
        return f"{self.world_size} ranks, depth {self.depth}, {self.policy}: {blows}{away}"


# What befalls ranks, and within which bounds it is noticed


def _expecting(turn: Turn, world_size: int, away_s: float = 0.0) -> Turn:
    """With who is to be named, and when. A driver that is away is away from before the blow on, by at most a second."""
    blow, moment = turn.blow, turn.moment
    named = None if blow in (Blow.PART, Blow.UNBORN) else turn.rank  # then nobody can tell
    least_s, bound_s = 0.0, _AT_ONCE_S + STEP_S + len(turn.order) * turn.gap_s
    waited_s = away_s - 1.0 - 2 * _BEAT if away_s else 0.0
    if blow in (Blow.CUT, Blow.PART):
        bound_s += _CAUSE_S
    elif blow in (Blow.FREEZE, Blow.REFUSE):
        least_s, bound_s = _SILENCE - _BEAT + waited_s, _SILENCE + _BEAT
    elif blow is Blow.STALL:
        least_s, bound_s = _STEP - STEP_S + waited_s, _STEP + STEP_S + _BEAT
    elif blow is Blow.REST:
        bound_s = 0.0
    elif blow is Blow.DIVERGE and world_size == 2 and turn.column not in _AS_SENT:
        named = None
    if (moment is Moment.BIRTH and blow is Blow.FREEZE) or (moment is Moment.JOINING and blow is Blow.STALL):
        least_s, bound_s = _JOIN - 2.0, _JOIN + _BEAT
        named = named if moment is Moment.BIRTH else None
    return replace(turn, named=named, least_s=least_s, bound_s=bound_s and bound_s + away_s)


def _of_steps(world_size: int) -> Iterator[Turn]:
    """Every blow to every rank at every moment of the first steps."""
    blows = (Blow.KILL, Blow.FREEZE, Blow.STALL, Blow.RAISE, Blow.CUT, Blow.PART)
    for blow, moment, rank, sequence in product(blows, _STEP_MOMENTS, range(world_size), (1, 3)):
        yield Turn(blow, moment, rank, sequence)
    for blow, moment, rank in product((Blow.OLD, Blow.NONSENSE), _STEP_MOMENTS, range(world_size)):
        yield Turn(blow, moment, rank, 2)
    for rank, sequence in product(range(world_size), (1, 2)):
        yield Turn(Blow.REFUSE, Moment.BEFORE_PLAN, rank, sequence)
        yield Turn(Blow.TWICE, Moment.BEFORE_REPLY, rank, sequence)
        yield Turn(Blow.AHEAD, Moment.BEFORE_REPLY, rank, sequence)
        for column in _COLUMNS:
            yield Turn(Blow.DIVERGE, Moment.BEFORE_REPLY, rank, sequence, column=column)


def _of_orders() -> Iterator[Turn]:
    """The end of a rank and its echoes, in each order, at once and one after the other."""
    for order, (gap_s, blow, moment) in product(
        permutations(range(4)),
        ((0.0, Blow.RAISE, Moment.BEFORE_PLAN), (0.3, Blow.KILL, Moment.IN_COLLECTIVE), (0.0, Blow.CUT, Moment.IN_COLLECTIVE),
         (0.3, Blow.RAISE, Moment.IN_COLLECTIVE), (0.0, Blow.KILL, Moment.BEFORE_PLAN)),
    ):  # fmt: skip
        yield Turn(blow, moment, order[-1] if gap_s else order[2], 2, order=order, gap_s=gap_s)


def _of_beginnings(world_size: int) -> Iterator[tuple[Turn, ...]]:
    """While a group begins, the first time and again, once and always; the first blow ends the generation before."""
    first = Turn(Blow.KILL, Moment.BEFORE_REPLY, 0, 2)
    always = (
        (Blow.KILL, Moment.JOINING), (Blow.FREEZE, Moment.JOINING), (Blow.STALL, Moment.JOINING), (Blow.RAISE, Moment.JOINING),
        (Blow.POOL, Moment.JOINING), (Blow.FREEZE, Moment.BIRTH), (Blow.UNBORN, Moment.BIRTH),
    )  # fmt: skip
    for (blow, moment), rank in product(always, range(world_size)):
        yield (Turn(blow, moment, rank),)
        for generations in (range(2, 3), range(2, 4), _LATER):
            yield first, Turn(blow, moment, rank, generations=generations)


def _of_generations(world_size: int) -> Iterator[Turn]:
    """Death again and again: whatever is planned, or whenever one request is in it."""
    for blow, moment, rank in product((Blow.KILL, Blow.FREEZE, Blow.RAISE), _STEP_MOMENTS, range(world_size)):
        for sequence in (1, 2):
            yield Turn(blow, moment, rank, sequence, range(1, 1000))
        yield Turn(blow, moment, rank, generations=range(1, 1000), plan_of=_POISON)


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _without_a_driver()
    for number, (world_size, policy) in enumerate(product((2, 4), Policy)):
        for place, turn in enumerate((*_of_steps(world_size), *_of_generations(world_size))):
            yield Case(world_size, policy, (number + place) % 3, (_expecting(turn, world_size),))
        for place, turns in enumerate(_of_beginnings(world_size)):
            yield Case(world_size, policy, place % 3, tuple(_expecting(turn, world_size) for turn in turns))
    for place, turn in enumerate(_of_orders()):
        yield Case(4, tuple(Policy)[place % 2], place % 3, (_expecting(turn, 4),))


def _without_a_driver() -> Iterator[Case]:
    """The driver is away, or waits with nothing to do."""
    for depth, away_s, at, still in product((0, 1, 2), (1.5 * _SILENCE, 2.5 * _STEP), (0, 1, 2, 4), (False, True)):
        yield Case(2, Policy.CONTINUE, depth, (), away_s, at, still)
    away_s = 3 * _SILENCE
    for blow, moment, rank in product((Blow.KILL, Blow.FREEZE, Blow.STALL), _STEP_MOMENTS, (0, 1)):
        yield Case(2, Policy.END, 1, (_expecting(Turn(blow, moment, rank), 2, away_s),), away_s)
    for moment, rank, rest_s in product(_STEP_MOMENTS, (0, 1), (_SILENCE - 2 * _BEAT, away_s + _SILENCE / 2)):
        turn = _expecting(Turn(Blow.REST, moment, rank, rest_s=rest_s), 2)
        yield Case(2, Policy.END, 1, (turn,), away_s if rest_s > _SILENCE else 0.0)
    for blow, rank, world_size in product((Blow.KILL, Blow.FREEZE, Blow.CUT, Blow.RAISE), (0, 1), (2, 4)):
        turn = _expecting(Turn(blow, Moment.IDLE, rank), world_size)
        yield Case(world_size, tuple(Policy)[rank], rank, (turn,), idle_s=3 * _STEP)
    yield Case(2, Policy.CONTINUE, 1, idle_s=3 * _STEP)


# One of them


@dataclass(slots=True)
class CaseRun:
    """What a case came to."""

    case: Case
    history: History
    num_struck: int = 0
    num_steps: int = 0
    violation: Violation | None = None

    @property
    def facts(self) -> tuple[str, ...]:
        told = [each for each in self.history.of(RankEvent) if each.kind not in (RankEventKind.SENT, RankEventKind.EXECUTED)]
        return tuple(
            f"{each.at_s:8.3f} s  generation {each.generation}: {each.kind}"
            f"{'' if each.rank is None else f' rank {each.rank}'}{f' ({each.reason})' if each.reason else ''}"
            for each in told
        )


def run_case(case: Case) -> CaseRun:
    """Serves the workload, and judges what happened."""
    run = CaseRun(case, History({"case": case.title}, _twins()))
    try:
        _serve(run)
    except NeverOver as never:
        run.violation = violation("DI-2", case.title, str(never), "an end in bounded time, whatever befalls the ranks")
    terms = Terms(case.policy is Policy.END)
    of_ranks = (DEATHS, NO_FALSE_ALARM) if LIES.intersection(each.blow for each in case.turns) else EXACT_CHECKERS
    for verdict in run_checkers(run.history, (*OF_THE_ENGINE, *of_ranks, endings_by(terms), starts_by(terms))):
        run.violation = run.violation or verdict.violation
    return run


@lru_cache(maxsize=1)
def _twins() -> tuple[Record, ...]:
    history = History()
    serve_twins(history, _CONFIG, _REQUESTS, FingerprintModel(_CONFIG.vocab_size))
    return tuple(history.records)


def _serve(run: CaseRun) -> None:
    case, history = run.case, run.history
    config = replace(_CONFIG, max_plans_in_flight=case.depth + 1)
    time = VirtualTime(_MOST_S)
    ranks = RankConfig(
        case.world_size, FingerprintModel(config.vocab_size), config.num_blocks, config.block_size, patience=PATIENCE
    )
    launcher = ScriptedRanks(time, ranks, case.turns, history.add)
    selector = VirtualSelector(time, lambda key: launcher.last_said(key.data))
    try:
        with Ranks(ranks, launcher, clock=time, selector=selector, sleep=time.go_on, tell=history.add) as group:
            while time.now() < case.idle_s and not group.is_broken:
                group.wait()
            engine = Engine(config, group, observer=history.add)
            _drain(run, engine, RankSupervisor(engine, group, case.policy), time)
    except RankLost:
        pass  # it did not come up at all: what was told of it is judged
    finally:
        run.num_struck = launcher.num_struck


def _drain(run: CaseRun, engine: Engine, supervisor: RankSupervisor, time: VirtualTime) -> None:
    case, history = run.case, run.history
    for request in _REQUESTS:
        history.add_op(Op(OpKind.ADD, request=request), admission=engine.submit(request))
    generation = 0
    while engine.has_work or engine.poll() or engine.snapshot().unsettled:
        if run.num_steps == _MOST_STEPS:
            raise NeverOver(f"{_MOST_STEPS} steps, and requests without an end")
        if case.away_s and run.num_steps == case.away_at:
            (time.stand_still if case.all_stand_still else time.go_on)(case.away_s)
        supervisor.step()
        run.num_steps += 1
        if engine.snapshot().generation != generation:
            generation = engine.snapshot().generation
            history.add_op(Op(OpKind.RESTART))
        history.extend(engine.take_outputs())
    history.add_op(Op(OpKind.DRAIN))
    history.add(deepcopy(engine.counters))


# All of them


def check_ranks_in_turn(context: SuiteContext) -> CheckResult:
    """Every case at night; of all kinds a part in the smaller profiles, another one for each seed."""
    stride = _STRIDES[context.profile]
    chosen = list(cases())[context.seed % stride :: stride]
    sums = Sums()
    failure = None
    for done, case in enumerate(chosen):
        run = run_case(case)
        _add(sums, run)
        context.progress(done, len(chosen))
        if run.violation is not None:
            failure = failure_of(SUITE_ID, run.violation, case.title, run.facts)
            break
    if context.profile is not Profile.QUICK:
        sums.missed += [f"{blow}: never" for blow in Blow if not any(each.startswith(blow) for each in sums.reached)]
    return sums.result(SUITE_ID, [failure], f"{sums.examples} cases of ranks that are played, on a virtual clock")


def _add(sums: Sums, run: CaseRun) -> None:
    sums.examples += 1
    sums.ops += run.num_steps
    events: Counter[RankEventKind] = Counter(event.kind for event in run.history.of(RankEvent))
    sums.reached["blows"] += run.num_struck
    sums.reached["losses"] += events[RankEventKind.LOST]
    sums.reached["groups that began anew"] += events[RankEventKind.RESTARTED]
    sums.evaluations["DI-1"] += events[RankEventKind.EXECUTED]
    sums.evaluations["DI-2"] += events[RankEventKind.LOST] + run.num_struck
    for turn in run.case.turns[-1:]:
        sums.reached[f"{turn.blow} {turn.moment}"] += 1
    if run.case.turns and not run.num_struck:
        sums.missed.append(f"a blow that falls, in {run.case.title}")
