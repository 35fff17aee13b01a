"""Ranks that are played: each says what a rank would say, when it would say it, on a clock that only waiting moves.

Owns the life of a rank as its driver sees it (beats, joining, two collectives a step, the answer) and what each blow makes of
it. The driver's end is real, connection and messages included; tokens are those of one runner for all. Never judges anything.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from chaos.scripted_blows import BEGIN_S, JOIN_S, SUM_S, Blow, Moment, Turn, another, is_due
from chaos.scripted_time import NeverOver, VirtualTime
from engine_under_test.distributed.rank_config import FingerprintModel, RankConfig
from engine_under_test.distributed.rank_link import Link
from engine_under_test.distributed.rank_messages import (
    Beat,
    Crashed,
    Executed,
    Joined,
    Meet,
    Start,
    Step,
    Waiting,
)
from engine_under_test.errors import AssayError
from engine_under_test.events import RankEvent, RankEventKind
from engine_under_test.execution.fingerprint import FingerprintRunner

_MOST_GENERATIONS = 24
_MEETING = "the meeting"


@dataclass(slots=True)
class _Generation:
    """What the ranks of one generation have in common: a barrier for each collective, and one runner."""

    number: int
    runner: FingerprintRunner
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    begun: dict[object, list[tuple[ScriptedRank, Callable[[], None]]]] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    is_parted: bool = False
    struck: set[Turn] = field(default_factory=set)


class ScriptedRank:
    """A `RankProcess`, and the rank in it."""

    def __init__(self, group: ScriptedRanks) -> None:
        ours, theirs = socket.socketpair()
        self.link, self._peer = Link(ours), Link(theirs)
        self._group, self._time = group, group.time
        self._start: Start | None = None
        self.of: _Generation
        self._steps: list[Step] = []
        self._is_busy = self._is_there = self._knows_where = False
        self._progress = (0, 0)
        self._held: list[Callable[[], None]] | None = None  # while it stands still
        self.is_stalled = False
        self._how = ""
        self.last_said = 0

    # As its driver sees it

    @property
    def name(self) -> str:
        return "played" if self._start is None else f"played {self._start.rank}"

    def has_ended(self) -> bool:
        return bool(self._how)

    def kill(self) -> None:
        """See `RankProcess`."""
        self.end("was killed by SIGKILL")

    def how_it_ended(self, timeout_s: float) -> str:
        """See `RankProcess`."""
        if not self._how:
            self._time.go_on(timeout_s)
        return self._how

    def close(self) -> None:
        """See `RankProcess`."""
        self.link.close()
        self._peer.close()

    # As it lives

    @property
    def rank(self) -> int:
        assert self._start is not None  # it has been told before it does anything
        return self._start.rank

    def end(self, how: str) -> None:
        """Its end of the connection goes with it."""
        if not self._how:
            self._how = how
            self.cut()

    def cut(self) -> None:
        """The connection alone."""
        self._peer.close()
        self.last_said = self._group.spoken()

    def say(self, message: object) -> None:
        if not self._peer.is_ended:
            self._peer.post(message)
            self.last_said = self._group.spoken()

    def later(self, delay_s: float, action: Callable[[], None], turn: int = -1) -> None:
        """As long as it lives; behind its rest, if it stands still then."""

        def due() -> None:
            if self._how or self._peer.is_ended:
                return
            if self._held is None:
                action()
            else:
                self._held.append(action)

        self._time.later(delay_s, due, turn)

    def rest(self, seconds: float | None) -> None:
        """Stands still, for good if for None."""
        self._held = []
        if seconds is not None:
            self._time.later(seconds, self._wake)

    def _wake(self) -> None:
        held, self._held = self._held or [], None
        for action in held:
            if not self._how and not self._peer.is_ended:
                action()

    def attend(self) -> None:
        """Hears what the driver said."""
        if self._held is not None or self._peer.is_ended:
            return
        for message in self._peer.take():
            if isinstance(message, Start):
                self._start, self.of = message, self._group.generation(message.generation)
                self.later(message.config.patience.beat_s, self._beat)
                self.later(JOIN_S, self._join)
                self._group.strike(self, Moment.BIRTH)
            elif isinstance(message, Meet):
                self._knows_where = True
                self._meet()
            elif isinstance(message, Step):
                self._steps.append(message)
                self._begin()

    def _beat(self) -> None:
        assert self._start is not None  # as in `rank`
        if not self._peer.has_unsent:
            self.say(Beat(self.of.number, *self._progress))
        self.later(self._start.config.patience.beat_s, self._beat)

    def _join(self) -> None:
        if self._group.strike(self, Moment.JOINING):
            return
        self._is_there = True
        if self.rank == 0:
            self._knows_where = True
            self.say(Waiting(self.of.number, "here", 1))
        self._meet()

    def _meet(self) -> None:
        if self._is_there and self._knows_where:
            self._await(_MEETING, self._joined)

    def _joined(self) -> None:
        config = self._group.config
        num_blocks = config.num_blocks + self._group.strike(self, Moment.JOINING, Blow.POOL)
        self.say(Joined(self.of.number, num_blocks, config.block_size))
        self.later(BEGIN_S, self._idle)

    def _idle(self) -> None:
        self._group.strike(self, Moment.IDLE)

    def _await(self, what: object, then: Callable[[], None]) -> None:
        """Begins what all ranks do together; goes on when all have begun it, or fails as all do when one is gone."""
        of = self.of
        waiting = of.begun.setdefault(what, [])
        waiting.append((self, then))
        if len(waiting) == self._group.config.world_size:
            for rank, action in waiting:
                rank.later(SUM_S, action)
        elif what != _MEETING and (of.is_parted or of.gone - {rank.rank for rank, _ in waiting}):
            self.fail()

    def fail(self) -> None:
        """A collective failed: the echo of what happened elsewhere."""
        turn, gap_s = self._group.when_heard(self)
        self.later(gap_s, self._echo, turn)

    def _echo(self) -> None:
        self.say(Crashed(self.of.number, "CollectiveFailed: connection closed by peer", is_echo=True))
        self.end("exited with code 4")

    def _begin(self) -> None:
        if self._is_busy or not self._steps:
            return
        self._is_busy = True
        step = self._steps.pop(0)
        self._progress = step.sequence, 0
        if not self._group.strike(self, Moment.BEFORE_PLAN, step=step):
            self.later(BEGIN_S, lambda: self._sum(step, 1))

    def _sum(self, step: Step, number: int) -> None:
        if self.is_stalled:
            return
        self._progress = step.sequence, number
        self._await((step.sequence, number), lambda: self._reply(step) if number == 2 else self._sum(step, number + 1))
        if number == 1:
            self._group.strike(self, Moment.IN_COLLECTIVE, step=step)

    def _reply(self, step: Step) -> None:
        if self.is_stalled or self._group.strike(self, Moment.BEFORE_REPLY, step=step):
            return
        self.answer(step)

    def answer(self, step: Step, **changes: Any) -> None:
        """The acknowledgement of a step, and on to the next one."""
        told = self._group.answer_to(self.of, step)
        self.say(replace(Executed(**told), **changes))
        self._is_busy = False
        self._begin()

    def accounts(self, step: Step) -> Executed:
        return Executed(**self._group.answer_to(self.of, step))


class ScriptedRanks:
    """A `Launcher`. ``tell``: hears of each blow as it falls."""

    def __init__(self, time: VirtualTime, config: RankConfig, turns: Sequence[Turn], tell: Callable[[RankEvent], None]) -> None:
        self.time, self.config, self.turns = time, config, tuple(turns)
        self._tell = tell
        self._ranks: list[ScriptedRank] = []
        self._generations: dict[int, _Generation] = {}
        self._num_spoken = 0
        self.num_struck = 0
        self._starting = 1
        time.attend = self.attend

    def start(self) -> ScriptedRank:
        """See `Launcher`."""
        if all(rank.has_ended() for rank in self._ranks):
            self._ranks.clear()
            self._starting = max(self._generations, default=0) + 1
            if self._starting > _MOST_GENERATIONS:
                raise NeverOver(f"{_MOST_GENERATIONS} generations, and still not over")
            for turn in self.turns:
                if turn.blow is Blow.UNBORN and self._starting in turn.generations:
                    self.generation(self._starting)
                    self._struck(turn, self._starting)
                    raise AssayError("no process for a rank could be started")
        self._ranks.append(ScriptedRank(self))
        return self._ranks[-1]

    def close(self) -> None:
        """See `Launcher`."""

    def attend(self) -> None:
        for rank in tuple(self._ranks):
            rank.attend()

    def spoken(self) -> int:
        self._num_spoken += 1
        return self._num_spoken

    def last_said(self, rank: int) -> int:
        """When a rank of the newest generation spoke last, in the order of all that was said."""
        return self._ranks[rank].last_said

    def generation(self, number: int) -> _Generation:
        if number not in self._generations:
            model = self.config.model
            assert isinstance(model, FingerprintModel)
            runner = FingerprintRunner(self.config.num_blocks, self.config.block_size, model.vocab_size)
            self._generations[number] = _Generation(number, runner)
        return self._generations[number]

    def answer_to(self, of: _Generation, step: Step) -> dict[str, Any]:
        """What each rank says of a step; computed once for all of them."""
        if step.sequence not in of.answers:
            plan = step.plan
            result = of.runner.launch(plan, step.reservation).result()
            of.answers[step.sequence] = {
                "generation": of.number,
                "sequence": step.sequence,
                "plan_id": plan.plan_id,
                "plan_generation": plan.generation,
                "rows": plan.row_ids(),
                "collectives": ("sum of layer one", "sum of digests"),
                "tokens": result.tokens,
                "told": (result.logprobs, result.prompt_logprobs),
            }
        return of.answers[step.sequence]

    def when_heard(self, rank: ScriptedRank) -> tuple[int, float]:
        """In which turn, and how long after the first."""
        turn = next(iter(self.turns), None)
        place = 0 if turn is None else turn.turn_of(rank.rank)
        return place, 0.0 if turn is None else place * turn.gap_s

    # Blows

    def strike(self, rank: ScriptedRank, moment: Moment, only: Blow | None = None, step: Step | None = None) -> bool:
        """Deals the blow that is due here; True if the rank does not go on by itself."""
        of = rank.of
        for turn in self.turns:
            if (turn.rank, turn.moment) != (rank.rank, moment) or of.number not in turn.generations or turn in of.struck:
                continue
            if (only is None) == (turn.blow is Blow.POOL):
                continue
            if step is not None and not is_due(turn, step):
                continue
            of.struck.add(turn)
            self._struck(turn, of.number)
            return self._deal(turn, rank, of, step)
        return False

    def _struck(self, turn: Turn, generation: int) -> None:
        self.num_struck += 1
        self._tell(
            RankEvent(
                RankEventKind.STRUCK, generation, self.time.now(), turn.named, turn.sequence, bound_s=turn.bound_s,
                reason=turn.words, least_s=turn.least_s,
            )
        )  # fmt: skip

    def _deal(self, turn: Turn, rank: ScriptedRank, of: _Generation, step: Step | None) -> bool:
        blow = turn.blow
        if blow in (Blow.KILL, Blow.RAISE, Blow.CUT):
            self._take_away(turn, rank, of)
        elif blow in (Blow.FREEZE, Blow.REST):
            rank.rest(turn.rest_s or None)
            return blow is Blow.FREEZE
        elif blow is Blow.STALL:
            rank.is_stalled = True
        elif blow is Blow.PART:
            of.is_parted = True
            return False
        elif blow is Blow.REFUSE:
            assert step is not None  # it refuses a plan
            rank.answer(step, error="refused by me", to_blame=(0,), tokens=(), collectives=(), told=((), ()))
        elif blow is Blow.DIVERGE:
            assert step is not None  # it answers a plan
            rank.answer(step, **{turn.column: another(turn.column, rank.accounts(step))})
        elif blow is not Blow.POOL:
            self._speak(blow, rank, of.number, step)
            return False
        return True

    def _take_away(self, turn: Turn, rank: ScriptedRank, of: _Generation) -> None:
        """It does nothing more from now on; that is heard when its turn has come."""
        place, gap_s = self.when_heard(rank)
        rank.is_stalled = True
        at_s = {Moment.BEFORE_PLAN: BEGIN_S, Moment.IN_COLLECTIVE: SUM_S}.get(turn.moment, 0.0) + gap_s

        def heard() -> None:
            if turn.blow is Blow.CUT:
                rank.cut()
                return
            if turn.blow is Blow.RAISE:
                rank.say(Crashed(of.number, "ZeroDivisionError: of this rank alone", is_echo=False))
            rank.end("was killed by SIGKILL" if turn.blow is Blow.KILL else "exited with code 4")

        self.time.later(at_s, heard, place)
        if turn.blow is not Blow.CUT:
            of.gone.add(rank.rank)
            for what, waiting in of.begun.items():
                others = [each for each, _ in waiting]
                if what != _MEETING and rank not in others and len(others) < self.config.world_size:
                    for other in others:
                        other.fail()

    def _speak(self, blow: Blow, rank: ScriptedRank, generation: int, step: Step | None) -> None:
        if blow is Blow.OLD:
            rank.say(Beat(generation - 1, 0, 0))
        elif blow is Blow.NONSENSE:
            rank.say(Start(rank.rank, generation, self.config))
        elif step is not None:
            told = rank.accounts(step)
            rank.say(told if blow is Blow.TWICE else replace(told, sequence=step.sequence + 7))
            if blow is Blow.TWICE:
                rank.say(told)
