"""Buckets, and what stands in the padding of a batch that was put into one."""

from __future__ import annotations

import pytest
import torch

from engine_under_test.errors import ConfigError
from engine_under_test.execution.attention import Eager, PagedTorch, decode_attention_of, decode_by_tables
from engine_under_test.execution.batch import Batch
from engine_under_test.execution.graphs import Buckets, StaticInputs, width_of
from engine_under_test.execution.transformer import TransformerRunner
from engine_under_test.model.weights import LlamaConfig, tiny_random


@pytest.mark.parametrize(("num_rows", "bucket"), [(1, 2), (2, 2), (3, 8), (8, 8), (9, None)])
def test_the_smallest_bucket_that_holds_the_rows_is_taken(num_rows: int, bucket: int | None) -> None:
    assert Buckets((2, 8)).of(num_rows) == bucket


@pytest.mark.parametrize("sizes", [(), (0, 2), (4, 2), (2, 2)], ids=["none", "of no row", "falling", "twice the same"])
def test_buckets_that_are_none_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="rising"):
        Buckets(sizes)


def test_a_table_has_the_width_of_the_next_power_of_two() -> None:
    assert [width_of(number) for number in (1, 2, 3, 4, 5, 8, 9)] == [1, 2, 4, 4, 8, 8, 16]


def test_behind_fewer_rows_than_before_everything_is_padding() -> None:
    static = StaticInputs.of(4, 4, torch.device("cpu"))
    padding = [each.clone() for each in static]
    static.copy_in(_decodes(4, 4))
    static.copy_in(_decodes(1, 2))
    for each, due in zip(static, padding, strict=True):
        assert torch.equal(each[1:], due[1:])
    assert static.tables[0].tolist() == [1, 2, 0, 0]


def test_decodes_by_tables_are_those_of_paged_attention() -> None:
    generator = torch.Generator().manual_seed(0)
    batch = _decodes(3, 2)
    keys, values = (torch.randn(28, 2, 8, generator=generator) for _ in range(2))
    queries = torch.randn(3, 4, 8, generator=generator)
    expected = PagedTorch().attend(queries, keys, values, batch)
    found = decode_by_tables(queries, keys, values, batch.tables, batch.lengths, 4)
    torch.testing.assert_close(found, expected)


def test_buckets_need_paged_attention_and_no_tiles() -> None:
    with pytest.raises(ConfigError, match="paged attention"):
        decode_attention_of(Eager())
    weights = tiny_random(LlamaConfig(17, 8, 1, 2, 1, 4, 8), 0)
    with pytest.raises(ConfigError, match="buckets"):
        TransformerRunner(weights, 4, 4, is_batch_invariant=True, buckets=(2,))


def _decodes(num_rows: int, width: int) -> Batch:
    """Row r at position r + 3 of blocks 1, 2, ... and on."""
    lengths = torch.arange(num_rows, dtype=torch.int32) + 4
    tables = torch.arange(num_rows * width, dtype=torch.int32).view(num_rows, width) % 6 + 1
    positions = lengths.long() - 1
    begins = tuple(range(num_rows + 1))
    return Batch(
        4, torch.full((num_rows,), 5), positions, positions + 4, tables, lengths, lengths - 1, torch.tensor(begins),
        torch.arange(num_rows), tuple(lengths.tolist()), tuple(positions.tolist()), begins, (),
    )  # fmt: skip
