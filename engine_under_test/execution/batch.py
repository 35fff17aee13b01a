"""What a plan and its reservation become as tensors on a device.

Owns: their layout, flat, and the check that the two belong together and name nothing out of bounds. Never: what is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch

from engine_under_test.errors import RunnerError
from engine_under_test.execution.asked import PromptPart
from engine_under_test.execution.media import MediaPart, parts_of
from engine_under_test.execution.rows import KeptRows
from engine_under_test.execution.verifying import Places, places_of
from engine_under_test.sampling.sampler import Draws
from engine_under_test.types import History, Plan, Reservation, RowId


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of a plan, flat: n tokens, row after row. Lists say the same as the tensor of their name, for the host.

    ``tokens``, ``positions`` and ``slots`` [n] int64, 0 for a token that is in flight; ``tables`` [rows, blocks] int32, padded
    with the padding block; ``lengths`` [rows] int32, start + n of a row; ``starts`` [rows] int32; ``row_begins`` [rows + 1]
    int32; ``sampled`` int64: where the last tokens of the rows that sample stand, and then the positions of
    `asked.prompt_parts`. ``pending``: where in `tokens`, and whose. ``media``: what of items stands at which of the tokens.
    """

    block_size: int
    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    starts: torch.Tensor
    row_begins: torch.Tensor
    sampled: torch.Tensor
    length_list: tuple[int, ...]
    start_list: tuple[int, ...]
    row_begin_list: tuple[int, ...]
    pending: tuple[tuple[int, RowId], ...]
    media: tuple[MediaPart, ...] = ()

    @property
    def num_tokens(self) -> int:
        return self.row_begin_list[-1]

    @property
    def num_rows(self) -> int:
        return len(self.start_list)

    @property
    def is_decode(self) -> bool:
        """Every row computes one token."""
        return self.num_tokens == self.num_rows


def lengths_after(plan: Plan) -> tuple[int, ...]:
    """start + n of each row: the positions that exist once the plan has run."""
    return tuple([start + num for start, num in zip(plan.starts, plan.num_tokens, strict=True)])


def num_bytes(plan: Plan, reservation: Reservation) -> int:
    """What the tensors of a batch take on the device."""
    width = max(map(len, reservation.tables), default=0)
    return 8 * 3 * len(reservation.slots) + 4 * plan.num_rows * (width + 4)


def lay_out(
    plan: Plan,
    reservation: Reservation,
    rows: KeptRows,
    block_size: int,
    device: torch.device,
    parts: Sequence[PromptPart] = (),
) -> Batch:
    """The tensors of a plan that was checked. ``rows``: which follow it already."""
    lengths = rows.lengths[: plan.num_rows]
    length_list = tuple(lengths.tolist())
    begins = (0, *accumulate(plan.num_tokens))
    positions = chain.from_iterable(map(range, plan.starts, length_list))
    width = -(-max(length_list, default=0) // block_size)
    tokens, pending = _place_tokens(plan, begins)
    sampled = [begins[row] - plan.starts[row] + end - 1 for row, end in zip(*places_of(plan), strict=True)]
    for part in parts:
        first = begins[part.row] - plan.starts[part.row]
        sampled += [first + position for position in part.positions]

    def long(numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=device)

    def short(numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int32, device=device)

    return Batch(
        block_size=block_size,
        tokens=long(tokens),
        positions=long(list(positions)),
        slots=long(reservation.slots),
        tables=torch.tensor(rows.tables[: plan.num_rows, :width], device=device),
        lengths=torch.tensor(lengths, device=device),
        starts=short(plan.starts),
        row_begins=short(begins),
        sampled=long(sampled),
        length_list=length_list,
        start_list=plan.starts,
        row_begin_list=begins,
        pending=pending,
        media=_media(plan, rows, begins) if rows.has("media") else (),
    )


def _media(plan: Plan, rows: KeptRows, begins: Sequence[int]) -> tuple[MediaPart, ...]:
    columns = enumerate(zip(begins, plan.starts, plan.num_tokens, strict=False))
    parts = (parts_of(rows.value("media", row), row, *numbers) for row, numbers in columns)
    return tuple(chain.from_iterable(parts))


def draws(plan: Plan, rows: KeptRows) -> Draws:
    """What the rows that sample ask of the sampler, as it is kept of them."""
    places = places_of(plan)
    return Draws(
        [rows.sampling(row) for row in places.rows],
        [rows.value("choice", row) for row in places.rows],
        places.positions,
        [len(rows.value("prompt", row)) for row in places.rows],
        _histories(plan, places, rows) if rows.has("output") else (),
    )


def _histories(plan: Plan, places: Places, rows: KeptRows) -> list[History | None]:
    """See `Draws.histories`. A draft counts as output for the places behind it."""
    found: list[History | None] = []
    drafts = plan.drafts()
    for row, end in zip(*places, strict=True):
        output = rows.value("output", row)
        if output is None:
            found.append(None)
            continue
        first = plan.starts[row] + plan.num_tokens[row] - len(drafts[row])  # the position of the first draft
        found.append(History(rows.value("prompt", row), (*output, *drafts[row][: max(end - first, 0)])))
    return found


def check_fit(plan: Plan, reservation: Reservation, num_blocks: int, block_size: int, vocab_size: int) -> None:
    """Refuses what would be an access out of bounds, or a plan and a reservation that do not belong together.

    `num_blocks` counts the padding block.
    """
    num_new, copies = sum(plan.num_tokens), reservation.copies
    found = (
        (plan.plan_id == reservation.plan_id, "plan and reservation have the same identifier"),
        (plan.num_rows == len(reservation.tables), "there is one table for each row"),
        (min(plan.num_tokens, default=1) >= 1, "each row computes at least one position"),
        (num_new == len(reservation.slots), "there is one slot for each position computed"),
        (num_new == len(plan.token_ids) + sum(plan.num_pending), "there is a token for each position, but for those in flight"),
        (_lie_below(reservation.slots, num_blocks * block_size), "slots lie in the store"),
        (_lie_below(plan.token_ids, vocab_size), "tokens lie in the vocabulary"),
        (_lie_below(list(chain.from_iterable(reservation.tables)), num_blocks), "tables name blocks of the store"),
        (_lie_below(reservation.fills, num_blocks), "fills name blocks of the store"),
        (all(_lie_below(copy[:2], num_blocks) for copy in copies), "copies name blocks of the store"),
        (all(copy.num_slots <= block_size for copy in copies), "a copy is no longer than a block"),
        (
            all(len(table) * block_size >= end for table, end in zip(reservation.tables, lengths_after(plan), strict=False)),
            "a table covers every position below start + n",
        ),
    )
    for holds, rule in found:
        if not holds:
            raise RunnerError(f"plan {plan.plan_id} can not be launched: {rule}; found {plan} with {reservation}")


def _lie_below(numbers: Sequence[int], end: int) -> bool:
    return not numbers or (min(numbers) >= 0 and max(numbers) < end)


def _place_tokens(plan: Plan, begins: Sequence[int]) -> tuple[list[int], tuple[tuple[int, RowId], ...]]:
    """The input tokens in their places, and the places of those that are in flight: the last of their rows."""
    if not any(plan.num_pending):
        return list(plan.token_ids), ()
    known = iter(plan.token_ids)
    pending = {end - 1: plan.row_id(row) for row, end in enumerate(begins[1:]) if plan.num_pending[row]}
    return [0 if place in pending else next(known) for place in range(begins[-1])], tuple(pending.items())
