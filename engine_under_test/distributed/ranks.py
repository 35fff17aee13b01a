"""The driver's end of a group of ranks: one runner to the engine, N processes behind it.

Owns which plans are out and when a rank counts as lost. Never: what the ranks answered to a plan (`rank_launch.py`), a process
(`rank_processes.py`), or what becomes of the requests (`rank_supervisor.py`). A plan goes

    driver   Step(generation, sequence) to every rank, without waiting for any of them
    ranks    execute in order, summing up with each other; each answers Executed(sequence, what it executed)
    driver   takes the answers of all ranks as they come, compares them, and hands out the tokens that all agree on

Answers are never read rank by rank: one that is gone would hide behind one that waits for it. Whichever way a rank is lost
(killed, frozen, an exception, a connection that broke, an answer that differs), all of the group is ended at once, every plan
that is out fails with `RankLost`, and `restart` begins a new generation.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from engine_under_test.distributed.rank_config import FingerprintModel, RankConfig
from engine_under_test.distributed.rank_launch import RankLaunch
from engine_under_test.distributed.rank_messages import Beat, Crashed, Executed, Joined, Meet, Start, Step, Waiting
from engine_under_test.distributed.rank_processes import Launcher, Processes, RankProcess
from engine_under_test.distributed.rank_vitals import Vitals
from engine_under_test.errors import AssayError, ConfigError, ProtocolError, RankLost, RunnerError
from engine_under_test.events import RankEvent, RankEventKind
from engine_under_test.execution.adapter_rows import weights_to_load
from engine_under_test.seams import Clock
from engine_under_test.types import Plan, Reservation, RowId

if TYPE_CHECKING:
    from engine_under_test.execution.adapter_slots import AdapterLibrary

_END_S = 5.0  # how long a killed process may take to go
_CAUSE_S = 1.0  # how long a failed collective waits for the rank that caused it to be seen dead
_LOOK_AGAIN_S = 0.01

Tell = Callable[[RankEvent], None]


class MonotonicClock:
    """Seconds of this machine."""

    def now(self) -> float:
        return time.monotonic()


class Ranks:
    """A group of ranks, which is there when it was made. Close it, or use it in a `with`. Not thread-safe.

    ``launcher`` is closed with the group only if the group made it. ``adapters``: whose weights are sent to the ranks when a
    plan loads them, for a Llama with slots. Time is seen and passes only through ``clock``,
    ``selector`` (closed with the group) and ``sleep``; by default they are this machine's.
    """

    def __init__(
        self,
        config: RankConfig,
        launcher: Launcher | None = None,
        *,
        clock: Clock | None = None,
        selector: selectors.BaseSelector | None = None,
        sleep: Callable[[float], None] = time.sleep,
        tell: Tell | None = None,
        adapters: AdapterLibrary | None = None,
    ) -> None:
        _require_adapters(config, adapters)
        self.config = config
        self._library = adapters
        self.generation = 0
        self._owned: Processes | None = None
        if launcher is None:
            launcher = self._owned = Processes()
        self._launcher: Launcher = launcher
        self._clock: Clock = MonotonicClock() if clock is None else clock
        self._tell: Tell = tell if tell is not None else lambda _event: None
        self._selector = selectors.DefaultSelector() if selector is None else selector
        self._sleep = sleep
        self._processes: list[RankProcess] = []
        self._joined: dict[int, Joined] = {}
        self._out: dict[int, RankLaunch] = {}
        self._sequence = 0
        self._progress_s = 0.0  # when something was answered last
        self._progress: dict[int, tuple[int, int]] = {}  # of each rank, as its last beat told it
        self._lost: RankLost | None = None
        self._is_closed = False
        self._vitals = Vitals((), config.patience.silence_s, 0.0)
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def processes(self) -> tuple[RankProcess, ...]:
        """By rank."""
        return tuple(self._processes)

    @property
    def loss(self) -> RankLost | None:
        """What broke the group, until it begins anew."""
        return self._lost

    @property
    def is_broken(self) -> bool:
        return self._lost is not None

    # Verbs

    def launch(self, plan: Plan, reservation: Reservation) -> RankLaunch:
        """See `runner.Runner`. A group that is broken, or breaks while the plan is out, shows it in the launch's result."""
        if self._is_closed:
            raise RunnerError("the group of ranks was closed, nothing is computed any more; make another one")
        while len(self._out) >= self.config.window and self._lost is None:
            self.wait()
        launch = RankLaunch(self, plan, self._sequence + 1, self._clock.now())
        if self._lost is not None:
            launch.fail(self._lost)
            return launch
        weights = {} if self._library is None else weights_to_load(plan, reservation, self._library)
        self._sequence = launch.sequence
        if not self._out:
            self._progress_s = launch.sent_s
        self._out[launch.sequence] = launch
        self._tell_of(RankEventKind.SENT, sequence=launch.sequence, plan_id=plan.plan_id, rows=plan.row_ids())
        step = Step(self.generation, launch.sequence, plan, reservation, weights)
        for process in self._processes:
            process.link.post(step)
        return launch

    def look(self) -> None:
        """Takes what has come, without waiting, and judges who is silent."""
        if self._lost is None and not self._is_closed:
            self._listen(0.0)

    def wait(self) -> None:
        """Waits until something comes, for one beat at most. ProtocolError if there is nothing that could come."""
        if self._lost is not None or self._is_closed:
            raise ProtocolError("a group that is broken or closed is not waited for; restart it")
        self._listen(self.config.patience.beat_s)

    def restart(self) -> None:
        """See `RankGroup.restart`."""
        if self._is_closed:
            raise ProtocolError("a group of ranks that was closed does not begin anew; make another one")
        self._break(None, "the group was restarted")
        self._begin()
        self._tell_of(RankEventKind.RESTARTED)

    def close(self) -> None:
        """See `RankGroup.close`."""
        if self._is_closed:
            return
        self._is_closed = True
        self._end_all()
        self._fail_all(RunnerError("the group of ranks was closed before this plan was computed"))
        self._tell_of(RankEventKind.CLOSED)
        self._selector.close()
        if self._owned is not None:
            self._owned.close()

    # The beginning of a generation

    def _begin(self) -> None:
        config = self.config
        self.generation += 1
        self._sequence = 0
        self._joined.clear()
        self._progress.clear()
        self._lost = None
        try:
            for rank in range(config.world_size):
                process = self._launcher.start()
                self._processes.append(process)
                self._selector.register(process.link, selectors.EVENT_READ, rank)
        except AssayError as error:
            self._break(None, str(error))
        else:
            now = self._clock.now()
            self._vitals = Vitals((), config.patience.silence_s, now)  # whoever has not spoken yet has until join_s
            for rank, process in enumerate(self._processes):
                process.link.post(Start(rank, self.generation, config))
            while len(self._joined) < config.world_size and self._lost is None:
                self._listen(config.patience.beat_s)
                if self._clock.now() - now > config.patience.join_s:
                    missing = sorted(set(range(config.world_size)) - set(self._joined))
                    unheard = [
                        rank for rank in missing if not self._vitals.has_heard(rank)
                    ]  # all wait for whoever is not there
                    self._break((unheard or missing)[0], f"has not joined within {config.patience.join_s:g} s")
        if self._lost is not None:
            raise self._lost

    # Listening

    def _listen(self, timeout_s: float) -> None:
        for process in self._processes:
            if process.link.has_unsent:
                process.link.flush()
        ready = self._selector.select(timeout_s)
        now = self._clock.now()
        self._progress_s += self._vitals.listen(
            now, 2 * self.config.patience.beat_s
        )  # a driver that is away misses answers too
        for key, _ in ready:
            if self._lost is None:
                self._hear(key.data, now)
        if self._lost is None:
            self._judge_silence(now)

    def _hear(self, rank: int, now: float) -> None:
        """Everything that one rank has said by now."""
        link = self._processes[rank].link
        for message in link.take():
            self._vitals.heard(rank, now)
            self._take(rank, message, now)
            if self._lost is not None:
                return
        if link.is_ended:
            how = self._processes[rank].how_it_ended(_CAUSE_S)
            self._break(rank, how or "lost its connection")

    def _take(self, rank: int, message: object, now: float) -> None:
        generation = getattr(message, "generation", None)
        if generation != self.generation:
            self._break(rank, f"spoke of generation {generation} in generation {self.generation}")
        elif isinstance(message, Executed):
            self._acknowledge(rank, message, now)
        elif isinstance(message, Crashed):
            self._crashed(rank, message)
        elif isinstance(message, Waiting):
            for process in self._processes[1:]:
                process.link.post(Meet(self.generation, message.host, message.port))
        elif isinstance(message, Joined):
            self._join(rank, message)
        elif isinstance(message, Beat):
            self._progress[rank] = message.sequence, message.num_collectives
        else:
            self._break(rank, f"said something that no rank says: {type(message).__name__}")

    def _join(self, rank: int, message: Joined) -> None:
        pool = (message.num_blocks, message.block_size)
        self._joined[rank] = message
        self._tell_of(RankEventKind.JOINED, rank=rank, pool=pool, window=self.config.window)
        expected = (self.config.num_blocks, self.config.block_size)
        if pool != expected:
            self._break(rank, f"holds {pool[0]} blocks of {pool[1]}, the group was asked for {expected[0]} of {expected[1]}")

    def _acknowledge(self, rank: int, answer: Executed, now: float) -> None:
        self._tell_of(
            RankEventKind.EXECUTED,
            rank=rank,
            sequence=answer.sequence,
            plan_id=answer.plan_id,
            rows=answer.rows,
            collectives=answer.collectives,
            reason=answer.error,
        )
        launch = self._out.get(answer.sequence)
        if launch is None or rank in launch.answers:
            self._break(rank, f"answered step {answer.sequence}, which it was not asked for")
            return
        self._progress_s = now
        launch.answers[rank] = answer
        if len(launch.answers) == self.config.world_size:
            if found := launch.disagreement():
                self._break(*found)
                return
            del self._out[answer.sequence]
            launch.succeed()

    def _crashed(self, rank: int, message: Crashed) -> None:
        """A failed collective is most often the echo of another rank's end: that one is looked for first."""
        deadline = self._clock.now() + (_CAUSE_S if message.is_echo else 0.0)
        suspects = set(range(len(self._processes))) - {rank}
        while suspects and self._clock.now() < deadline:
            for other in tuple(suspects):
                process = self._processes[other]
                words = [each for each in process.link.take() if isinstance(each, Crashed)]
                if words and words[0].is_echo:
                    suspects.discard(other)
                elif words:
                    self._break(other, f"failed: {words[0].reason}")
                    return
                elif process.link.is_ended or process.has_ended():
                    self._break(other, process.how_it_ended(_CAUSE_S) or "lost its connection")
                    return
            self._sleep(_LOOK_AGAIN_S)
        self._break(rank, f"failed: {message.reason}")

    def _judge_silence(self, now: float) -> None:
        patience = self.config.patience
        if silent := self._vitals.silent(now):
            self._break(silent[0], f"was silent for {patience.silence_s:g} s while the driver listened: frozen, or cut off")
            return
        if not self._out:
            return
        oldest = self._out[min(self._out)]
        waited = now - self._progress_s
        missing = [rank for rank in range(self.config.world_size) if rank not in oldest.answers]
        refused = [rank for rank, answer in oldest.answers.items() if answer.error]
        if refused and waited >= patience.silence_s:
            self._break(refused[0], f"refused plan {oldest.plan_id} alone: {oldest.answers[refused[0]].error}")
        elif waited >= patience.step_s:
            last = min(missing, key=lambda rank: self._progress.get(rank, (0, 0)))
            far = ", ".join(
                "rank {}: step {}, {} collectives".format(rank, *self._progress.get(rank, (0, 0))) for rank in missing
            )
            self._break(last, f"has not answered plan {oldest.plan_id} for {patience.step_s:g} s, though it lives ({far})")

    # The end of a generation

    def _break(self, rank: int | None, reason: str) -> None:
        """All ranks are ended, and all plans that are out fail."""
        if self._lost is None:
            who = "the ranks" if rank is None else f"rank {rank}"
            named = f" ({self._processes[rank].name})" if rank is not None else ""
            self._lost = RankLost(f"{who}{named}: {reason}; generation {self.generation} is over, restart the group")
            self._tell_of(RankEventKind.LOST, rank=rank, reason=reason)
        self._end_all()
        self._fail_all(self._lost)

    def _end_all(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            self._selector.unregister(process.link)
            process.how_it_ended(_END_S)
            process.close()
        self._processes.clear()

    def _fail_all(self, error: AssayError) -> None:
        for launch in self._out.values():
            launch.fail(error)
        self._out.clear()

    def _tell_of(
        self,
        kind: RankEventKind,
        *,
        rank: int | None = None,
        sequence: int = 0,
        plan_id: int | None = None,
        rows: tuple[RowId, ...] = (),
        collectives: tuple[str, ...] = (),
        pool: tuple[int, int] = (0, 0),
        window: int = 0,
        reason: str = "",
    ) -> None:
        event = RankEvent(
            kind, self.generation, self._clock.now(), rank, sequence, plan_id, rows, collectives, pool, window, 0.0, reason
        )
        self._tell(event)


def _require_adapters(config: RankConfig, library: AdapterLibrary | None) -> None:
    """ConfigError where weights have no slots, or slots no weights."""
    slots, most = config.num_adapter_slots, config.max_adapter_rank
    if isinstance(config.model, FingerprintModel):
        if library is not None:
            raise ConfigError("the fingerprint model has no weights, found a library of adapters; leave it out")
    elif (slots > 0) != (library is not None):
        found = "no library" if library is None else "a library"
        raise ConfigError(
            f"adapters on ranks need slots and a library of their weights, found num_adapter_slots {slots} and {found}; "
            "give both or neither"
        )
    elif library is not None and library.max_rank > most:
        raise ConfigError(
            f"ranks must have room for every adapter of the library, found max_adapter_rank {most} for a library of up to "
            f"{library.max_rank}; raise it"
        )
