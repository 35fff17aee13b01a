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
    """One request of a batch. ``table``: the blocks of the positions that it reads."""

    name: str
    start: int
    tokens: tuple[int, ...]
    slots: tuple[int, ...]
    table: tuple[int, ...]
    samples: bool

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)


def rows_of(io: Any, memory: Memory) -> list[Row]:
    """The rows of the batch that lies in `io`, transformers' inputs and outputs."""
    count = io.num_request_in_batch
    begins = io.cumulative_seqlens_q[: count + 1].tolist()
    (lengths,) = io.cumulative_seqlens_k.values()
    key_begins = lengths[: count + 1].tolist()
    tokens, positions = (column[: begins[-1]].tolist() for column in (io.input_ids, io.position_ids))
    writes = list(map(memory.slot, io.write_index_storage[0, : io.true_write_sizes[0]].tolist()))
    reads = list(map(memory.slot, io.read_index_storage[0, : io.true_read_sizes[0]].tolist()))
    num_sampled = sum(future.has_new_token for future in io.requests_in_batch)
    sampled = set(io.logits_indices[:num_sampled].tolist())
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
        rows.append(Row(name, start, tuple(tokens[begin:end]), tuple(writes[begin:end]), table, samples))
    return rows


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
