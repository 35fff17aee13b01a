"""The device that the harness plays: it executes launched plans in order and sets what they did against the law.

Owns the fingerprint store, the stream of launched plans and the law's track of each choice. Never decides what lands when,
and judges nothing: it fills in `Execution`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from operator import add
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_under_test.caps import Caps
from engine_under_test.events import Misdeclared, Race
from engine_under_test.execution.fingerprint import FingerprintLaunch, FingerprintRunner
from engine_under_test.execution.runner import Move
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.seams import Grammars
from engine_under_test.types import Plan, PlannedStep, RowId, StepResult
from models.allocator_model import Key
from models.kept_device import WatchedRows
from models.law import POISON, Law, Track
from models.law_of_drafts import verdict
from properties.doubles import RecordingNoise
from properties.moment import ChoiceFacts, Execution, Expected, NoiseAddress
from properties.op import Op
from properties.verdict import Violation

SICK = np.uint64(0x7FF8_51CC_51CC_51CC)  # stands in a cell that holds no number


class Flight:
    """A launched plan on its way: first queued, then executed, then handed in (or lost)."""

    __slots__ = (
        "execution",
        "is_dropped",
        "is_handed",
        "is_refused",
        "kept_wrongly",
        "plan_id",
        "sick_rows",
        "step",
        "stuck_rows",
        "tracks",
        "uses",
        "writes",
    )

    def __init__(self, step: PlannedStep, tracks: list[Track]) -> None:
        self.step = step
        self.plan_id = step.plan.plan_id
        self.tracks = tracks
        self.execution: Execution | None = None
        self.is_handed = False
        self.is_dropped = False  # it will never run
        self.is_refused = False  # the device had no memory for it
        self.sick_rows: set[int] = set()  # they came to no number
        self.stuck_rows: set[int] = set()  # no token can be drawn for them, whatever they read
        self.kept_wrongly: Violation | None = None  # of a runner that keeps its rows
        reservation = step.reservation
        self.uses: frozenset[int] = frozenset(chain.from_iterable(reservation.tables)).union(
            *(copy[:2] for copy in reservation.copies)
        )
        self.writes: frozenset[int] = frozenset(reservation.slots)

    @property
    def result(self) -> StepResult:
        assert self.execution is not None
        return self.execution.result


class _Due:
    """What the law says of a plan, worked out when somebody asks, together with all others that are due."""

    __slots__ = ("_device", "_found", "ends", "samples", "tracks")

    def __init__(self, device: Device, tracks: list[Track], ends: list[int], samples: Sequence[bool]) -> None:
        self._device = device
        self._found: Expected | None = None
        self.tracks, self.ends, self.samples = tracks, ends, samples

    @property
    def cells(self) -> npt.NDArray[np.uint64]:
        return self._settled().cells

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        return self._settled().tokens

    def _settled(self) -> Expected:
        if self._found is None:
            self._device.work_out()
            assert self._found is not None
        return self._found

    def settle(self, law: Law, next_tokens: Iterator[int]) -> None:
        """``next_tokens``: of the rows that sample."""
        tokens = tuple([(next(next_tokens),) if is_sampled else () for is_sampled in self.samples])
        self._found = Expected(law.cells(self.tracks, self.ends), tokens)


class _Seen:
    """A read of a block by a device that knows what is no number."""

    __slots__ = ("_move", "fence")

    def __init__(self, move: Move) -> None:
        self._move = move
        self.fence = move.fence

    def data(self) -> bytes | None:
        data = self._move.data()
        return None if data is None or bool((np.frombuffer(data, np.uint64) == SICK).any()) else data


class Device:
    """One compute stream over one store."""

    def __init__(self, caps: Caps, keeps_rows: bool = False) -> None:
        """``keeps_rows``: the runner keeps its rows from step to step, and each step is compared with the plan (SC-13)."""
        self._caps = caps
        self._runner_kind: type[FingerprintRunner] = WatchedRows if keeps_rows else FingerprintRunner
        self._law = Law(caps.vocab_size)
        self._tracks: dict[Key, Track] = {}
        self._stream: deque[Flight] = deque()
        self._due: list[_Due] = []
        self._noise = RecordingNoise(PhiloxNoise())
        self._is_spoiled = False
        self.num_rows_compared = 0
        self._runner = self._new_runner()
        self._look_at_store()

    law_of_drafts: Callable[[RowId], Any] | None = None  # see `models.proposers.Keeping`
    orders: Callable[[], tuple[tuple[Race, ...], tuple[Misdeclared, ...]]] | None = None  # for devices with streams

    @property
    def is_short(self) -> bool:
        """Whether an allocation is going to be refused."""
        return False

    def refuse_memory(self, kth: int, is_for_good: bool) -> bool:
        """The k-th allocation from now on is refused, and every later one if it is for good; 0: none is. Whether that changes
        anything here."""
        del kth, is_for_good
        return False

    def fragment_memory(self, num_words: int) -> bool:
        """Free memory lies in pieces of so many words, none larger; 0: in one. Whether that changes anything here."""
        del num_words
        return False

    def spoil(self, slot: int, is_wrong: bool) -> None:
        """The slot holds no number, which the device tells of whoever reads it; or a wrong one, of which it knows nothing."""
        self._is_spoiled = True
        cell = SICK ^ np.uint64(slot + 1) if is_wrong else SICK
        self._flat[2 * slot : 2 * slot + 2] = cell
        self._shadow[2 * slot : 2 * slot + 2] = cell

    def begin(self, op_index: int, op: Op) -> None:
        """World begins an op: for devices that play with time."""

    def _look_at_store(self) -> None:
        """Views of the new runner's store, and its content as it is now."""
        store = self._runner.store
        self._flat = store.reshape(-1)
        self._words = store.data.cast("B").cast("Q")  # word 2 * slot + layer
        self._shadow = self._flat.copy()
        self._differs = np.empty(self._flat.shape, dtype=np.bool_)

    def _new_runner(self) -> FingerprintRunner:
        caps = self._caps
        return self._runner_kind(
            caps.num_blocks, caps.block_size, caps.vocab_size, noise=self._noise, num_adapter_slots=caps.num_adapter_slots,
            grammars=self._grammars(),
        )  # fmt: skip

    def _grammars(self) -> Grammars | None:
        """What compiles those of requests, where they may have some."""
        if not self._caps.has_grammars:
            return None
        from models.compiled import compiled

        return compiled(self._caps.vocab_size)

    @property
    def block_bytes(self) -> int:
        """See `execution.runner.Mover`."""
        return self._runner.block_bytes

    def read_block(self, block: int) -> Move:
        """See `execution.runner.Mover`."""
        return _Seen(self._runner.read_block(block))

    def write_block(self, block: int, data: bytes) -> Move:
        """See `execution.runner.Mover`: behind what was launched before."""
        self.execute_all()
        move = self._runner.write_block(block, data)
        np.copyto(self._shadow, self._flat)
        return move

    def content_of(self, block: int) -> bytes:
        """What the block holds now, for whoever only looks."""
        size = self._caps.block_size
        return self._runner.store[block * size : (block + 1) * size].tobytes()

    def differs_from_law(self, facts: ChoiceFacts, blocks: tuple[int, ...], start: int) -> int | None:
        """The first position of a choice, from `start` on, at which these blocks do not hold what computing it gives."""
        key = (facts.request.request_id, facts.choice, facts.incarnation)
        track = self._tracks.get(key)
        if track is None:
            track = self._tracks[key] = self._law.open(facts.request, facts.choice)
            track.tokens.extend(facts.emitted)
        size = self._caps.block_size
        end = start + len(blocks) * size
        self._law.extend([track], [end])
        expected = self._law.cells([track], [end])[start:]
        found = np.concatenate([self._runner.store[block * size : (block + 1) * size] for block in blocks])
        wrong = (found != expected).any(axis=1).nonzero()[0]
        return start + int(wrong[0]) if len(wrong) else None

    def launch(self, step: PlannedStep) -> Flight:
        """Queues a plan behind those launched before."""
        plan, tracks = step.plan, self._tracks
        found = []
        for row, request in enumerate(plan.requests):
            key = (request.request_id, plan.choices[row], plan.incarnations[row])
            track = tracks.get(key)
            if track is None:
                track = tracks[key] = self._law.open(request, plan.choices[row])
            found.append(track)
        flight = Flight(step, found)
        self._stream.append(flight)
        return flight

    def forget(self, keys: Iterable[Key]) -> None:
        """Choices ended; what is launched keeps its own track."""
        for key in keys:
            self._tracks.pop(key, None)

    def execute(self, through: Flight) -> None:
        """Runs everything on the stream up to and with this plan."""
        while through.execution is None:
            flight = self._stream.popleft()
            flight.execution = self._run(flight)

    def drop(self, flights: Iterable[Flight]) -> None:
        """These never run: the device lost them, and with them every fill, copy and write of theirs."""
        for flight in flights:
            if flight.execution is None:
                self._stream.remove(flight)
                flight.is_dropped = True

    def execute_all(self) -> None:
        if self._stream:
            self.execute(self._stream[-1])

    def restart(self, keeps_content: bool = False) -> None:
        """Nothing on the stream; poison everywhere, or what was there before."""
        self._stream.clear()
        before, self._runner = self._runner, self._new_runner()
        if keeps_content:
            np.copyto(self._runner.store, before.store)
        self._look_at_store()

    def _run(self, flight: Flight) -> Execution:
        step = flight.step
        launch = self._runner.launch(step.plan, step.reservation)
        launch.result()
        changed = np.not_equal(self._flat, self._shadow, out=self._differs).nonzero()[0]
        np.copyto(self._shadow, self._flat)
        changed_slots = frozenset((changed >> 1).tolist())
        return self._execution(flight, launch, changed_slots, self._stale_slots(step), self._noise.take_addresses())

    def _execution(
        self,
        flight: Flight,
        launch: FingerprintLaunch,
        changed_slots: frozenset[int],
        stale_slots: frozenset[int],
        addresses: tuple[NoiseAddress, ...],
    ) -> Execution:
        """What a launch that has ended did, beside what it had to do."""
        step = flight.step
        ends = list(map(add, step.plan.starts, step.plan.num_tokens))
        tracks = flight.tracks
        if self._is_spoiled and (is_sick := (launch.cells == SICK).any(axis=1)).any():
            begins = (0, *launch.row_ends)
            flight.sick_rows.update(row for row, end in enumerate(launch.row_ends) if is_sick[begins[row] : end].any())
        result = launch.result()
        lawful = (
            self._expected_with_drafts(flight, ends) if step.plan.num_drafts else self._put_off(step.plan, tracks, ends, result)
        )
        if isinstance(self._runner, WatchedRows):
            flight.kept_wrongly = self._runner.judge(step, result, tracks)
            self.num_rows_compared += step.plan.num_rows
        return Execution(
            step=step,
            result=result,
            cells=launch.cells,
            row_ends=launch.row_ends,
            lawful=lawful,
            changed_slots=changed_slots,
            stale_slots=stale_slots,
            addresses=addresses,
        )

    def _stale_slots(self, step: PlannedStep) -> frozenset[int]:
        """Slots of new blocks that the plan does not write and that hold something other than poison."""
        reservation, size, words = step.reservation, self._caps.block_size, self._words
        if size == 1:
            return frozenset()
        new = chain.from_iterable(reservation.new_blocks)
        slots = set(chain.from_iterable([range(block * size, (block + 1) * size) for block in new]))
        slots.difference_update(reservation.slots)
        found = [slot for slot in slots if words[2 * slot] != POISON or words[2 * slot + 1] != POISON]
        for copy in reservation.copies:
            found = [slot for slot in found if not copy.target * size <= slot < copy.target * size + copy.num_slots]
        return frozenset(found)

    def _expected_with_drafts(self, flight: Flight, ends: list[int]) -> Expected:
        """What is expected of a plan with drafts, row by row: what each draft's cell must hold, and which of them stand."""
        self.work_out()
        plan, law = flight.step.plan, self._law
        cells: list[npt.NDArray[np.uint64]] = []
        found: list[tuple[int, ...]] = []
        laws = self._laws_of_drafts(plan)
        for row, (track, end, drafts) in enumerate(zip(flight.tracks, ends, plan.drafts(), strict=True)):
            first, samples = end - len(drafts), plan.samples[row]
            if samples and not plan.num_pending[row]:  # what a plan that was lost had sampled may come to something else
                law.cut(track, first)
                track.tokens += drafts
            law.extend([track], [end])
            cells.append(law.cells([track], [end]))
            tokens: list[int] = []
            if drafts and laws[row] is not None and track.temperature > 0:
                tokens = verdict(law, track, first, drafts, laws[row])
            else:
                for place in range(len(drafts) + 1 if samples else 0):
                    tokens += law.next_tokens([track], [first + place])
                    if drafts[place : place + 1] != tuple(tokens[-1:]):
                        break
            if drafts:
                law.cut(track, first)
            if samples and len(track.tokens) == first:
                track.tokens += tokens
            found.append(tuple(tokens))
        return Expected(np.concatenate(cells), tuple(found))

    def _laws_of_drafts(self, plan: Plan) -> list[Any]:
        """What each row's drafts were drawn from, by whoever drew them; by the plan, if that is not known any more."""
        told = plan.draft_laws or (None,) * plan.num_rows
        known = map(self.law_of_drafts, plan.row_ids()) if self.law_of_drafts is not None else told
        return [law if own is None else own for law, own in zip(told, known, strict=True)]

    def _put_off(self, plan: Plan, tracks: list[Track], ends: list[int], result: StepResult) -> _Due:
        """What the law says is worked out later; until then the tracks go on with what the runner says that was sampled.

        Nothing is lost by that: whoever asks compares plan by plan in the order in which they ran, so that the first token
        that is not the law's is found before anything that follows from it. What is no token at all is not taken over.
        """
        due = _Due(self, tracks, ends, plan.samples)
        self._due.append(due)
        told = result.tokens if len(result.tokens) == len(ends) else due.tokens
        for row, (track, end, samples, said) in enumerate(zip(tracks, ends, plan.samples, told, strict=True)):
            known = track.tokens
            if len(known) < end:
                self.work_out()  # a plan beyond what is known is no plan: that shows now
            elif samples:
                if len(known) > end and not plan.num_pending[row]:
                    self.work_out()
                    self._law.cut(track, end)  # what a plan that was lost had sampled may have come of drafts
                if len(known) == end:
                    is_token = len(said) == 1 and 0 <= said[0] < self._caps.vocab_size
                    known.append(said[0] if is_token else due.tokens[row][0])
        return due

    def work_out(self) -> None:
        """What the law says of each plan of which nobody has asked yet."""
        due, self._due = self._due, []
        if not due:
            return
        law = self._law
        rows = [row for each in due for row in zip(each.tracks, each.ends, each.samples, strict=True)]
        law.extend([track for track, _, _ in rows], [end for _, end, _ in rows])
        sampling = [(track, end) for track, end, is_sampled in rows if is_sampled]
        found = iter(law.next_tokens([track for track, _ in sampling], [end for _, end in sampling]))
        for each in due:
            each.settle(law, found)
