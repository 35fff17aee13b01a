"""SE-4, the batch-invariant mode: a request's logits are the same, bit for bit, whatever shares its batch.

Also whatever its chunks, its blocks and its place in the batch: all of these are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_under_test import Plan, Request, Reservation
from engine_under_test.errors import ConfigError
from engine_under_test.execution.attention import Eager
from engine_under_test.execution.tiles import TILE_KEYS, in_tiles
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, LlamaWeights, tiny_random

BLOCK = 4
NUM_BLOCKS = 500
SHAPES = {
    "narrow": LlamaConfig(96, 32, num_layers=2, num_heads=6, num_kv_heads=2, head_size=8, intermediate_size=40),
    "uneven": LlamaConfig(101, 36, num_layers=2, num_heads=3, num_kv_heads=1, head_size=12, intermediate_size=50),
    "wide": LlamaConfig(512, 192, num_layers=1, num_heads=3, num_kv_heads=1, head_size=64, intermediate_size=512),
}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@dataclass(frozen=True, slots=True)
class Row:
    """A prompt and the sizes of its chunks; ``is_poisoned``: NaN is put in the place of its values, chunk after chunk."""

    prompt: tuple[int, ...]
    chunks: tuple[int, ...]
    is_poisoned: bool = False


def whole(prompt: tuple[int, ...]) -> Row:
    return Row(prompt, (len(prompt),))


@st.composite
def rows(draw: st.DrawFn, vocab_size: int, longest: int) -> Row:
    length = draw(st.integers(1, longest))
    salt = draw(st.integers(0, 2**16))
    prompt = tuple(random.Random(salt).choices(range(vocab_size), k=length))
    cuts = sorted(draw(st.sets(st.integers(1, length), max_size=4)) | {length})
    return Row(prompt, tuple(end - begin for begin, end in zip([0, *cuts], cuts, strict=False)), draw(st.booleans()))


def last_logits(weights: LlamaWeights, batch: Sequence[Row], salt: int = 0) -> list[torch.Tensor]:
    """The logits behind each row's prompt; step k computes the k-th chunk of every row that has one, over scattered blocks."""
    runner = TransformerRunner(weights, NUM_BLOCKS, BLOCK, is_batch_invariant=True)
    blocks = iter(random.Random(salt).sample(range(1, NUM_BLOCKS + 1), NUM_BLOCKS))
    tables = [tuple(next(blocks) for _ in range(0, len(row.prompt), BLOCK)) for row in batch]
    found: dict[int, torch.Tensor] = {}
    for step in range(max(len(row.chunks) for row in batch)):
        present = [index for index, row in enumerate(batch) if step < len(row.chunks)]
        plan, reservation = one_step(step, [batch[index] for index in present], [tables[index] for index in present])
        logits = runner.launch(plan, reservation).logits
        samples = [index for index, is_last in zip(present, plan.samples, strict=True) if is_last]
        found.update(zip(samples, logits, strict=True))
        for index in present:
            if batch[index].is_poisoned:
                for block in tables[index]:
                    runner.values[:, block * BLOCK : (block + 1) * BLOCK] = torch.nan
    return [found[index] for index in range(len(batch))]


def one_step(step: int, batch: Sequence[Row], tables: Sequence[tuple[int, ...]]) -> tuple[Plan, Reservation]:
    starts = tuple(sum(row.chunks[:step]) for row in batch)
    nums = tuple(row.chunks[step] for row in batch)
    num = len(batch)

    def new() -> Iterator[tuple[Row, tuple[int, ...], int]]:
        for row, table, start, count in zip(batch, tables, starts, nums, strict=True):
            yield from ((row, table, position) for position in range(start, start + count))

    plan = Plan(
        plan_id=step + 1,
        generation=1,
        requests=tuple(Request(str(index), row.prompt) for index, row in enumerate(batch)),
        choices=(0,) * num,
        incarnations=(1,) * num,
        epochs=(0,) * num,
        starts=starts,
        num_tokens=nums,
        token_ids=tuple(row.prompt[position] for row, _, position in new()),
        num_pending=(0,) * num,
        samples=tuple(step == len(row.chunks) - 1 for row in batch),
        hit_blocks=((),) * num,
    )
    slots = tuple(table[position // BLOCK] * BLOCK + position % BLOCK for _, table, position in new())
    return plan, Reservation(plan.plan_id, tuple(tables), slots, ((),) * num)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_logits_do_not_depend_on_batch_chunks_blocks_or_place(shape: LlamaConfig, dtype: torch.dtype) -> None:
    weights = tiny_random(shape, 3, dtype)

    @settings(max_examples=12, deadline=None, derandomize=True, database=None)
    @given(
        watched=rows(shape.vocab_size, 2 * TILE_KEYS + 9),
        mates=st.lists(rows(shape.vocab_size, 40), max_size=9),
        place=st.integers(0, 9),
        salt=st.integers(0, 99),
    )
    def holds(watched: Row, mates: list[Row], place: int, salt: int) -> None:
        watched = Row(watched.prompt, watched.chunks)
        place = min(place, len(mates))
        (alone,) = last_logits(weights, [whole(watched.prompt)])
        together = last_logits(weights, [*mates[:place], watched, *mates[place:]], salt)
        assert alone.isfinite().all()
        assert torch.equal(alone, together[place])

    holds()


def test_a_row_of_nan_leaves_its_batch_mates_as_they_are() -> None:
    """The poison is there: the row that reads it has NaN in every logit, and nobody else has one."""
    weights = tiny_random(SHAPES["narrow"], 3)
    sick = Row(tuple(range(12)), (5, 6, 1), is_poisoned=True)
    well = [Row(tuple(range(30 + 5 * k, 42 + 5 * k)), (5, 6, 1)) for k in range(6)]
    logits = last_logits(weights, [*well[:3], sick, *well[3:]])
    assert logits[3].isnan().all()
    for row, beside in zip(well, logits[:3] + logits[4:], strict=True):
        assert torch.equal(beside, last_logits(weights, [row])[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("width", [8, 36, 192, 576, 1536])
def test_a_row_s_place_in_its_tile_does_not_matter(width: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(width)
    weight = torch.randn(40, width, generator=generator).to(dtype)
    (tile,) = in_tiles(torch.randn(8, width, generator=generator).to(dtype))
    for shift in range(8):
        turned = torch.nn.functional.linear(tile.roll(shift, dims=0), weight)
        assert torch.equal(turned.roll(-shift, dims=0), torch.nn.functional.linear(tile, weight))


def test_another_attention_beside_the_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="attention of its own, found eager"):
        TransformerRunner(tiny_random(SHAPES["narrow"], 3), 4, BLOCK, attention=Eager(), is_batch_invariant=True)
