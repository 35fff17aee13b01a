"""A runner whose KV cells are fingerprints: docs/fingerprint.md, executed through tables and slots alone.

Owns: the store, and the tokens sampled last, by row and position (for rows whose input token is still in flight). Never:
which block belongs to whom, or whether what it read is right. It needs rows and slots only, so it runs behind any engine's
plans.

One step is a handful of numpy operations over all rows, laid out flat; what depends on the plan alone (`_Rows`) is computed
at launch, what depends on the store in the device operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, compress, islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import ProtocolError, RunnerError
from engine_under_test.execution import cells as law
from engine_under_test.execution.device import ImmediateDevice
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.sampler import Draws, sample
from engine_under_test.seams import Device, DeviceOp, Fence, Noise, Page
from engine_under_test.types import BlockCopy, Plan, Reservation, RowId, StepResult

BUFFER = "kv"  # of every page that this runner declares
# A row may want the token of a plan behind which others were lost and launched again; old ones are dropped by number.
_LAUNCHES_REMEMBERED = 32
_SAMPLES_REMEMBERED = 1024

Indices = npt.NDArray[np.int64]


class _Rows(NamedTuple):
    """The rows of a plan, flat. *Cells* are the positions 0 .. start + n - 1 of each row, row after row; *new* are the
    positions that the plan computes, row after row."""

    begins: Indices  # [rows] first cell of each row
    ends: Indices  # [rows] start + n
    slots_read: Indices  # [cells]
    positions_read: Indices  # [cells]
    slots_written: Indices  # [new]
    row_of_new: Indices  # [new]
    positions: law.Words  # [new]
    cell_of_new: Indices  # [new] where a new position stands among the cells
    tokens: law.Words  # [new] with 0 for tokens that are in flight
    pending: tuple[tuple[int, RowId], ...]  # where in `tokens`, and whose
    adapters: law.Words | None  # [new]
    media: law.Words | None  # [new]
    row_ids: tuple[RowId, ...]
    sampled: tuple[int, ...]  # rows that sample
    draws: Draws  # theirs


class FingerprintLaunch:
    """One launched plan. ``cells`` is what its rows read, for whoever checks it."""

    __slots__ = ("_cells", "_device", "_error", "_fence", "_plan", "_result", "_row_ends")

    def __init__(self, plan: Plan, row_ends: tuple[int, ...], device: Device) -> None:
        self._plan = plan
        self._row_ends = row_ends
        self._device = device
        self._fence: Fence | None = None
        self._cells: law.Words | None = None
        self._result: StepResult | None = None
        self._error: Exception | None = None

    @property
    def plan_id(self) -> int:
        return self._plan.plan_id

    @property
    def fence(self) -> Fence:
        if self._fence is None:
            raise ProtocolError(f"plan {self.plan_id} has no fence before it is on the device; ask after `launch` returned")
        return self._fence

    @property
    def cells(self) -> law.Words:
        """[n, 2]: the cells read through the tables after the plan's writes, rows one after the other."""
        self.result()
        assert self._cells is not None
        return self._cells

    @property
    def row_ends(self) -> tuple[int, ...]:
        """The end of each row in `cells`."""
        return self._row_ends

    def result(self) -> StepResult:
        """See `runner.Launch`."""
        if self._result is None and self._error is None:
            try:
                self._device.synchronize()
            except Exception as error:
                self._error = error
        if self._error is not None:
            raise RunnerError(f"plan {self.plan_id} failed on the device: {self._error}; abandon it") from self._error
        if self._result is None:
            raise RunnerError(f"plan {self.plan_id} was not executed though the device is idle; abandon it")
        return self._result


class FingerprintRunner:
    """Executes plans on a store of ``(num_blocks + 1) * block_size`` fingerprint cells, block 0 being padding."""

    def __init__(
        self, num_blocks: int, block_size: int, vocab_size: int, *, device: Device | None = None, noise: Noise | None = None
    ) -> None:
        self.store: law.Words = np.full(((num_blocks + 1) * block_size, 2), law.POISON)
        self._blocks = self.store.reshape(num_blocks + 1, block_size, 2)
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._device: Device = ImmediateDevice() if device is None else device
        self._noise: Noise = PhiloxNoise() if noise is None else noise
        self._pages = tuple(Page(BUFFER, block) for block in range(num_blocks + 1))
        self._token_words = law.mix(np.arange(vocab_size, dtype=np.uint64))
        self._offsets = np.arange(block_size)
        self._counting = np.arange(256)
        self._weights = law.digest_weights(256)
        self._generation: int | None = None
        self._sampled: dict[tuple[RowId, int], int] = {}  # by row and position, oldest first

    def launch(self, plan: Plan, reservation: Reservation) -> FingerprintLaunch:
        """See `runner.Runner`."""
        ends = [start + num for start, num in zip(plan.starts, plan.num_tokens, strict=True)]
        tables = self._tables_read(reservation, ends)
        blocks = list(chain.from_iterable(tables))
        self._check(plan, reservation, blocks)
        launch = FingerprintLaunch(plan, tuple(accumulate(ends)), self._device)
        rows = self._lay_out(plan, reservation, ends, tables, blocks)
        try:
            for op in self._ops(reservation, blocks, partial(self._run, launch, plan, rows)):
                self._device.submit(op)
        except Exception as error:
            raise RunnerError(f"plan {plan.plan_id}: the device took no more work: {error}; abandon it") from error
        launch._fence = self._device.fence()
        return launch

    # On the host, at launch

    def _tables_read(self, reservation: Reservation, ends: Sequence[int]) -> list[tuple[int, ...]]:
        """The part of each table that the row reads: blocks of positions below start + n."""
        size = self._block_size
        found = []
        for end, table in zip(ends, reservation.tables, strict=False):
            num_blocks = -(-end // size)
            found.append(table if len(table) == num_blocks else table[:num_blocks])
            if len(table) < num_blocks:
                raise RunnerError(
                    f"plan {reservation.plan_id}: a table covers every position below start + n; found {len(table)} blocks of "
                    f"{size} for {end} positions; reserve before launch"
                )
        return found

    def _check(self, plan: Plan, reservation: Reservation, blocks: Sequence[int]) -> None:
        """Refuses what would be an access out of bounds, or a plan and a reservation that do not belong together."""
        num_new = sum(plan.num_tokens)
        num_pages, copies = len(self._pages), reservation.copies
        found = (
            (plan.plan_id == reservation.plan_id, "plan and reservation have the same identifier"),
            (plan.num_rows == len(reservation.tables), "there is one table for each row"),
            (min(plan.num_tokens, default=1) >= 1, "each row computes at least one position"),
            (num_new == len(reservation.slots), "there is one slot for each position computed"),
            (
                num_new == len(plan.token_ids) + sum(plan.num_pending),
                "there is a token for each position, but for those in flight",
            ),
            (_lie_below(reservation.slots, len(self.store)), "slots lie in the store"),
            (_lie_below(plan.token_ids, self._vocab_size), "tokens lie in the vocabulary"),
            (_lie_below(blocks, num_pages), "tables name blocks of the store"),
            (_lie_below(reservation.fills, num_pages), "fills name blocks of the store"),
            (all(_lie_below(copy[:2], num_pages) for copy in copies), "copies name blocks of the store"),
            (all(copy.num_slots <= self._block_size for copy in copies), "a copy is no longer than a block"),
        )
        for holds, rule in found:
            if not holds:
                raise RunnerError(f"plan {plan.plan_id} can not be launched: {rule}; found {plan} with {reservation}")

    def _lay_out(
        self, plan: Plan, reservation: Reservation, ends: list[int], tables: Sequence[tuple[int, ...]], blocks: list[int]
    ) -> _Rows:
        size = self._block_size
        row_begins = [0, *accumulate(ends)]
        num_cells = row_begins.pop()
        self._grow(num_cells + len(plan.token_ids), max(ends, default=0))
        ends_, starts, nums, begins, num_blocks = np.array(
            (ends, plan.starts, plan.num_tokens, row_begins, [len(table) for table in tables]), dtype=np.int64
        )
        cells = self._counting[:num_cells]
        table_slots = (np.array(blocks, dtype=np.int64)[:, None] * size + self._offsets).reshape(-1)
        shifts = (num_blocks.cumsum() - num_blocks) * size - begins  # from a cell to its place among the slots of all tables
        row_of_new, positions = self._new_positions(starts, nums, len(reservation.slots))
        tokens, pending = _place_tokens(plan)
        sampled = tuple(compress(range(len(ends)), plan.samples))
        return _Rows(
            begins=begins,
            ends=ends_,
            slots_read=table_slots.take(cells + shifts.repeat(ends_)),
            positions_read=cells - begins.repeat(ends_),
            slots_written=np.array(reservation.slots, dtype=np.int64),
            row_of_new=row_of_new,
            positions=positions.astype(np.uint64),
            cell_of_new=begins.take(row_of_new) + positions,
            tokens=tokens,
            pending=pending,
            adapters=_adapters(plan, row_of_new),
            media=_media(plan),
            row_ids=tuple(map(RowId, [r.request_id for r in plan.requests], plan.choices, plan.incarnations, plan.epochs)),
            sampled=sampled,
            draws=_draws(plan, ends, sampled),
        )

    def _new_positions(self, starts: Indices, nums: Indices, num_new: int) -> tuple[Indices, Indices]:
        """For each computed position its row, and itself."""
        rows = self._counting[: len(nums)]
        if num_new == len(nums):  # decodes only
            return rows, starts
        row_of_new = rows.repeat(nums)
        first_new = nums.cumsum() - nums
        return row_of_new, (starts - first_new).take(row_of_new) + self._counting[:num_new]

    def _grow(self, num_cells: int, num_positions: int) -> None:
        if num_cells > len(self._counting):
            self._counting = np.arange(2 * num_cells)
        if num_positions > len(self._weights):
            self._weights = law.digest_weights(2 * num_positions)

    def _ops(self, reservation: Reservation, blocks: list[int], run_rows: Callable[[], None]) -> Iterator[DeviceOp]:
        """Fills, copies, rows: what is in this step, with what each touches declared."""
        page = self._pages.__getitem__
        fills, copies = reservation.fills, reservation.copies
        if fills:
            yield DeviceOp("fill", frozenset(), frozenset(map(page, fills)), partial(self._fill, fills))
        if copies:
            sources = frozenset(page(copy.source) for copy in copies)
            targets = frozenset(page(copy.target) for copy in copies)
            yield DeviceOp("copy", sources, targets, partial(self._copy, copies))
        size = self._block_size
        writes = frozenset([page(slot // size) for slot in reservation.slots])
        yield DeviceOp("rows", frozenset(map(page, blocks)), writes, run_rows)

    # On the device, now or later

    def _fill(self, blocks: Sequence[int]) -> None:
        self._blocks[list(blocks)] = law.POISON

    def _copy(self, copies: Sequence[BlockCopy]) -> None:
        for source, target, num_slots in copies:
            self._blocks[target, :num_slots] = self._blocks[source, :num_slots]

    def _run(self, launch: FingerprintLaunch, plan: Plan, rows: _Rows) -> None:
        """The rows of one plan. An error belongs to this launch alone, so it is kept for `result`."""
        try:
            if plan.generation != self._generation:
                self._generation = plan.generation
                self._sampled.clear()
            launch._cells = self._compute(rows)
            tokens = self._sample(launch._cells, rows)
        except Exception as error:
            launch._error = error
            return
        emitted: list[tuple[int, ...]] = [()] * len(rows.row_ids)
        for row, token in zip(rows.sampled, tokens, strict=True):
            emitted[row] = (token,)
        self._remember(rows, tokens)
        launch._result = StepResult(plan.plan_id, plan.generation, rows.row_ids, tuple(emitted))

    def _compute(self, rows: _Rows) -> law.Words:
        """Writes layer one, reads it through the tables, writes layer two, reads both: the cells read."""
        store = self.store.reshape(-1)
        written = 2 * rows.slots_written
        layer_one = law.layer_one(self._input_tokens(rows), rows.positions, rows.adapters, rows.media)
        store.put(written, layer_one)
        read = store.take(2 * rows.slots_read)
        sums = read.cumsum()
        before_row = (sums - read).take(rows.begins)
        sums_of_new = sums.take(rows.cell_of_new) - before_row.take(rows.row_of_new)
        store.put(written + 1, law.layer_two(layer_one, sums_of_new))
        return self.store.take(rows.slots_read, axis=0)

    def _input_tokens(self, rows: _Rows) -> law.Words:
        if not rows.pending:
            return rows.tokens
        tokens = rows.tokens.copy()
        for place, row_id in rows.pending:
            token = self._sampled.get((row_id, int(rows.positions[place])))
            if token is None:
                raise RunnerError(f"row {row_id} wants a token in flight that none of the last launches sampled")
            tokens[place] = token
        return tokens

    def _remember(self, rows: _Rows, tokens: Sequence[int]) -> None:
        """Tokens sampled, for the plans behind this one, which may be launched before the host has seen them."""
        sampled = self._sampled
        for draw, (row, token) in enumerate(zip(rows.sampled, tokens, strict=True)):
            address = rows.row_ids[row], rows.draws.positions[draw]
            sampled.pop(address, None)
            sampled[address] = token
        for address in list(
            islice(sampled, max(len(sampled) - max(_SAMPLES_REMEMBERED, _LAUNCHES_REMEMBERED * len(tokens)), 0))
        ):
            del sampled[address]

    def _sample(self, cells: law.Words, rows: _Rows) -> list[int]:
        """One token for each row that samples, from the digest of what it read."""
        if not rows.sampled:
            return []
        weighted = cells * self._weights.take(rows.positions_read, axis=0)
        digests = np.add.reduceat(weighted.reshape(-1), 2 * rows.begins)
        digests += rows.ends.astype(np.uint64)
        if len(rows.sampled) < len(rows.row_ids):
            digests = digests.take(rows.sampled)
        tokens: list[int] = sample(law.logits(law.mix(digests), self._token_words), rows.draws, self._noise).tolist()
        return tokens


def _lie_below(numbers: Sequence[int], end: int) -> bool:
    return not numbers or (min(numbers) >= 0 and max(numbers) < end)


def _place_tokens(plan: Plan) -> tuple[law.Words, tuple[tuple[int, RowId], ...]]:
    """The input tokens in their places, and the places of those that are in flight."""
    known = np.array(plan.token_ids, dtype=np.uint64)
    if not any(plan.num_pending):
        return known, ()
    pending = tuple(
        (end - 1, plan.row_id(row))
        for row, (end, is_pending) in enumerate(zip(accumulate(plan.num_tokens), plan.num_pending, strict=True))
        if is_pending
    )
    gaps = [place - earlier for earlier, (place, _) in enumerate(pending)]  # np.insert counts in the array without gaps
    return np.insert(known, gaps, np.uint64(0)), pending


def _adapters(plan: Plan, row_of_new: Indices) -> law.Words | None:
    if all(request.adapter is None for request in plan.requests):
        return None
    words = np.array([law.adapter_word(request.adapter) for request in plan.requests], dtype=np.uint64)
    return words.take(row_of_new)


def _media(plan: Plan) -> law.Words | None:
    if not any(request.media for request in plan.requests):
        return None
    rows = zip(plan.requests, plan.starts, plan.num_tokens, strict=True)
    return np.concatenate([law.media_words(request.media, start, num) for request, start, num in rows])


def _draws(plan: Plan, ends: Sequence[int], sampled: Sequence[int]) -> Draws:
    requests = [plan.requests[row] for row in sampled]
    return Draws(
        [request.sampling for request in requests],
        [plan.choices[row] for row in sampled],
        [ends[row] for row in sampled],
        [len(request.prompt) for request in requests],
    )
