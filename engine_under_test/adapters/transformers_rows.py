"""A batch that transformers prepared, read back from the tensors that its model would be given.

Owns the reading: row by row, in the order of the batch. Never looks at what transformers meant to write there: start, tokens,
slots, what is read and who samples come from the tensors, so that a wrong index is seen as the device would see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from engine_under_test.adapters.transformers_parts import Memory
from engine_under_test.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Row:
    """One request of a batch. ``table``: the blocks of the positions that it reads. ``num_pending``: 1 if its last token is
    taken over from the batch in flight, and so not among ``tokens``."""

    name: str
    start: int
    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    table: tuple[int, ...]
    samples: bool
    num_pending: int = 0

    @property
    def num_tokens(self) -> int:
        return len(self.tokens) + self.num_pending


def rows_of(io: Any, memory: Memory, sampled_before: list[str] | None = None) -> list[Row]:
    """The rows of the batch that lies in `io`, transformers' inputs and outputs. ``sampled_before``: who sampled in the batch
    in flight, in order; None: there is none."""
    count = io.num_request_in_batch
    begins = io.cumulative_seqlens_q[: count + 1].tolist()
    (lengths,) = io.cumulative_seqlens_k.values()
    key_begins = lengths[: count + 1].tolist()
    tokens, positions = (column[: begins[-1]].tolist() for column in (io.input_ids, io.position_ids))
    writes = list(map(memory.slot, io.write_index_storage[0, : io.true_write_sizes[0]].tolist()))
    reads = list(map(memory.slot, io.read_index_storage[0, : io.true_read_sizes[0]].tolist()))
    num_sampled = sum(future.has_new_token for future in io.requests_in_batch)
    sampled = set(io.logits_indices[:num_sampled].tolist())
    taken_over = io.carry_over_ids[: begins[-1]].tolist() if sampled_before is not None else [-1] * begins[-1]
    rows = []
    for number, future in enumerate(io.requests_in_batch):
        name = future.state.request_id
        begin, end = begins[number : number + 2]
        start = _start_of(name, positions[begin:end], future.state.position_offset)
        if io.max_kv_read:
            table = _table_of(name, reads[slice(*key_begins[number : number + 2])], memory.block_size)
        else:  # nobody reads the cache
            table = memory.table_of(name)[: -(-(start + end - begin) // memory.block_size)]
        samples = end > begin and end - 1 in sampled
        num_pending = _num_pending(name, taken_over[begin:end], sampled_before or [])
        known = tuple(tokens[begin : end - num_pending])
        rows.append(Row(name, start, known, tuple(writes[begin:end]), table, samples, num_pending))
    return rows


def _num_pending(name: str, taken_over: list[int], sampled_before: list[str]) -> int:
    """Whether the last token of a row is taken over from the batch in flight; from its own place there, and no other is."""
    places = [place for place in taken_over if place != -1]
    if not places:
        return 0
    if len(places) > 1 or taken_over[-1] == -1 or sampled_before[places[0] : places[0] + 1] != [name]:
        raise ProtocolError(f"a row takes over its own last token, found places {taken_over} of {sampled_before} for {name}")
    return 1


def _start_of(name: str, positions: list[int], default: int) -> int:
    start = positions[0] if positions else default
    if positions != list(range(start, start + len(positions))):
        raise ProtocolError(f"the positions of a row follow on each other, found {positions} for {name}")
    return start


def _table_of(name: str, slots: list[int], size: int) -> tuple[int, ...]:
    """The blocks of the slots that a row reads, position by position."""
    table = tuple(slot // size for slot in slots[::size])
    if slots != [table[place // size] * size + place % size for place in range(len(slots))]:
        raise ProtocolError(f"a row reads its blocks one after the other from their first slot on, found {slots} for {name}")
    return table
