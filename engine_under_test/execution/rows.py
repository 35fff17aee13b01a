"""The rows of a batch as they are kept from step to step: one column for each field, one place for each row.

Owns: every per-row field of who is in the batch, and the moves that keep the columns together (add, finish, condense, swap).
Never: what is computed of them, or who is in the batch: it follows plans, and says of each row what the plan says (SC-13).

    plan N      a b c d        finish b     a . c d        condense     a d c        swap     a c d
    plan N + 1  a c d e        add e takes the first place that is free

A step costs what has changed: a row that stays brings the blocks that are new, and what it sampled is there already. Nothing
is kept of a row that a plan leaves out. An option (a field that most rows lack) has a column only while some row has it. A plan
that was given up leaves rows that are longer than they should be: a row whose length is not the start that the next plan says
is taken anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine_under_test.errors import ProtocolError
from engine_under_test.types import Adapter, Media, Plan, Reservation, RowId, SamplingParams

Ints = npt.NDArray[np.int32]
TokenInFlight = Callable[[RowId, int], int]

_ALWAYS: dict[str, Any] = {"choice": 0, "prompt": (), "seed": 0, "temperature": 0.0}
_OF_SAMPLING: dict[str, Any] = {
    each.name: each.default for each in fields(SamplingParams) if each.default is not MISSING and each.name not in _ALWAYS
}
# With the value that stands for "not asked for". An output is kept of a row whose sampling needs it: a list of tokens.
OPTIONS: dict[str, Any] = {**_OF_SAMPLING, "adapter": None, "media": (), "output": None}


class RowFields(NamedTuple):
    """All that is kept of one row, as the next step will read it. ``length``: positions that its blocks hold once the newest
    plan has run; ``output``: None unless it is kept."""

    row_id: RowId
    length: int
    table: tuple[int, ...]
    choice: int
    prompt: tuple[int, ...]
    sampling: SamplingParams
    adapter: Adapter | None
    media: tuple[Media, ...]
    output: tuple[int, ...] | None


class KeptRows:
    """``tables`` [places, blocks] int32, 0 (the padding block) behind the blocks of a row; ``lengths`` [places] int32, 0 where
    there is no row. After `follow`, row i of the plan stands at place i."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._generation: int | None = None
        self._ids: list[RowId | None] = []  # None: the place is free
        self._place_of: dict[RowId, int] = {}
        self._columns: dict[str, list[Any]] = {name: [] for name in _ALWAYS}
        self._num_with: dict[str, int] = {}  # of each option that has a column: rows that have it
        self._params: list[SamplingParams | None] = []  # as read from the columns since the row came to its place
        self.tables: Ints = np.zeros((8, 8), dtype=np.int32)
        self.lengths: Ints = np.zeros(8, dtype=np.int32)
        self._num_blocks: Ints = np.zeros(8, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._ids)

    # What a step reads

    def sampling(self, row: int) -> SamplingParams:
        """The sampling parameters of a row, as its columns say."""
        found = self._params[row]
        if found is None:
            values = {name: column[row] for name, column in self._columns.items() if name in _SAMPLING_FIELDS}
            found = self._params[row] = SamplingParams(**values)
        return found

    def value(self, name: str, row: int) -> Any:
        """A field of `_ALWAYS` or `OPTIONS`."""
        column = self._columns.get(name)
        return OPTIONS[name] if column is None else column[row]

    def has(self, name: str) -> bool:
        """Whether some row has this option."""
        return name in self._num_with

    def table(self, row: int) -> tuple[int, ...]:
        """The blocks of a row."""
        return tuple(self.tables[row, : self._num_blocks[row]].tolist())

    def fields(self, row: int) -> RowFields:
        """All of one row."""
        row_id = self._ids[row]
        if row_id is None:
            raise ProtocolError(f"place {row} of the batch has no row")
        output = self.value("output", row)
        return RowFields(
            row_id,
            int(self.lengths[row]),
            self.table(row),
            self._columns["choice"][row],
            self._columns["prompt"][row],
            self.sampling(row),
            self.value("adapter", row),
            self.value("media", row),
            None if output is None else tuple(output),
        )

    # What a step changes

    def follow(self, plan: Plan, reservation: Reservation, in_flight: TokenInFlight) -> None:
        """The rows are now those of a plan, in its order, with its blocks and lengths. ``in_flight``: the token that a row
        sampled for a position, which the host did not know when it planned."""
        if plan.generation != self._generation:
            self._generation = plan.generation
            self._clear()
        ids = plan.row_ids()
        stay = self._place_of.keys() & set(ids)
        for place, row_id in enumerate(self._ids):
            if row_id is not None and row_id not in stay:
                self.finish(place)
        for row, row_id in enumerate(ids):
            if row_id not in stay:
                self.add(plan, row)
        self.condense()
        for row, row_id in enumerate(ids):
            if self._ids[row] != row_id:
                self.swap(row, self._place_of[row_id])
        copied = {copy.target for copy in reservation.copies}
        for row, blocks in enumerate(reservation.tables):
            self._advance(plan, row, blocks, copied.intersection(reservation.new_blocks[row]) if copied else ())
            if plan.outputs and plan.outputs[row] is not None:
                self._bring_output(plan, row, in_flight)

    def sampled(self, row: int, tokens: Sequence[int], num_drafts: int = 0) -> None:
        """A row has sampled: one token, or behind drafts up to one more than these. What was computed of drafts that do not
        stand is no part of the row any more."""
        output = self.value("output", row)
        if output is not None:
            output.extend(tokens)
        if num_drafts:
            length = int(self.lengths[row]) - num_drafts + len(tokens) - 1
            self.lengths[row] = length
            self._cut_table(row, -(-length // self._block_size))

    # Moves

    def add(self, plan: Plan, row: int) -> int:
        """A new row takes the first place that is free, or one behind all; its place. Its blocks come with `_advance`."""
        request, sampling = plan.requests[row], plan.requests[row].sampling
        values: dict[str, Any] = {
            "choice": plan.choices[row],
            "prompt": request.prompt,
            "seed": sampling.seed,
            "temperature": sampling.temperature,
        }
        values |= {name: getattr(sampling, name) for name, usual in _OF_SAMPLING.items() if getattr(sampling, name) != usual}
        if request.adapter is not None:
            values["adapter"] = request.adapter
        if request.media:
            values["media"] = request.media
        if sampling.needs_history:
            values["output"] = []
        try:
            place = self._ids.index(None)
        except ValueError:
            place = self._append()
        for name in values.keys() - self._columns.keys():
            self._columns[name] = [OPTIONS[name]] * len(self._ids)
            self._num_with[name] = 0
        for name, column in self._columns.items():
            column[place] = values[name] if name in values else OPTIONS[name]
            if name in self._num_with:
                self._num_with[name] += name in values
        row_id = plan.row_id(row)
        self._ids[place], self._place_of[row_id], self._params[place] = row_id, place, None
        return place

    def finish(self, place: int) -> None:
        """A row leaves; its place is free."""
        row_id = self._ids[place]
        assert row_id is not None  # nobody finishes a place
        del self._place_of[row_id]
        self._ids[place] = None
        self._cut_table(place, 0)
        self.lengths[place] = 0
        for name in list(self._num_with):
            self._num_with[name] -= self._columns[name][place] != OPTIONS[name]
            if not self._num_with[name]:
                del self._num_with[name], self._columns[name]

    def condense(self) -> None:
        """The last rows take the places that are free, and nothing stands behind the last row."""
        free = [place for place, row_id in enumerate(self._ids) if row_id is None]
        for place in free:
            while self._ids and self._ids[-1] is None:
                self._drop_last()
            if place >= len(self._ids):
                return
            self.swap(place, len(self._ids) - 1)
            self._drop_last()

    def swap(self, one: int, other: int) -> None:
        """Two places change their rows, one of which may be none."""
        for column in (*self._columns.values(), self._ids):
            column[one], column[other] = column[other], column[one]
        for array in (self.tables, self.lengths, self._num_blocks):
            array[[one, other]] = array[[other, one]]
        for place in (one, other):
            row_id = self._ids[place]
            self._params[place] = None
            if row_id is not None:
                self._place_of[row_id] = place

    def _append(self) -> int:
        place = len(self._ids)
        if place == len(self.lengths):
            self.tables, self.lengths, self._num_blocks = (
                np.concatenate((array, np.zeros_like(array))) for array in (self.tables, self.lengths, self._num_blocks)
            )
        self._ids.append(None)
        self._params.append(None)
        for column in self._columns.values():
            column.append(None)
        return place

    def _drop_last(self) -> None:
        for column in (*self._columns.values(), self._ids, self._params):
            column.pop()

    def _clear(self) -> None:
        for place in reversed(range(len(self._ids))):
            self.finish(place)
        self.condense()

    # The parts of `follow`

    def _advance(self, plan: Plan, row: int, blocks: Sequence[int], copied: Sequence[int] | set[int]) -> None:
        """Blocks and length of a row once the plan has run."""
        start = plan.starts[row]
        end = start + plan.num_tokens[row]
        blocks = blocks[: -(-end // self._block_size)]
        if self.lengths[row] != start:
            self._cut_table(row, 0)
            if (output := self.value("output", row)) is not None:
                output.clear()
        while len(blocks) > self.tables.shape[1]:
            self.tables = np.concatenate((self.tables, np.zeros_like(self.tables)), axis=1)
        num_known = int(self._num_blocks[row])
        self.tables[row, num_known : len(blocks)] = blocks[num_known:]
        self._num_blocks[row] = len(blocks)
        for block in copied:  # the block that was shared until now is another one
            self.tables[row, blocks.index(block)] = block
        self.lengths[row] = end

    def _bring_output(self, plan: Plan, row: int, in_flight: TokenInFlight) -> None:
        """As many tokens as stand in front of the position that is sampled next, drafts not counted."""
        output, known = self._columns["output"][row], plan.outputs[row]
        assert known is not None  # asked only of these
        prompt_len = len(plan.requests[row].prompt)
        end = plan.starts[row] + plan.num_tokens[row] - (plan.num_drafts[row] if plan.num_drafts else 0)
        num_due = max(end - prompt_len, len(known))
        if not len(known) <= len(output) <= num_due:
            output[:] = known
        row_id = plan.row_id(row)
        output += [in_flight(row_id, position) for position in range(prompt_len + len(output), prompt_len + num_due)]

    def _cut_table(self, row: int, num_blocks: int) -> None:
        self.tables[row, num_blocks : self._num_blocks[row]] = 0
        self._num_blocks[row] = num_blocks


_SAMPLING_FIELDS = frozenset(each.name for each in fields(SamplingParams))
