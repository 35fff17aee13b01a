"""Claims about the Triton kernels: what they compute, beside a dense float64 attention, and that they read nothing else.

On tensors of the CPU Triton's interpreter runs them; with `-m gpu` the same tests run compiled.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import triton.runtime.interpreter as triton_interpreter

from engine_under_test.errors import ConfigError
from engine_under_test.execution.kernels import decode_attention, prefill_attention, store_kv
from properties.paged import PagedShape, dense_attention, lay_out, of_lengths
from properties.paged_kernels import KERNELS, bits, excess, run_decode, run_prefill, watched

HAS_CUDA = torch.cuda.is_available()
WHY_NOT = "needs a CUDA device; on a machine that has one say: pytest -m gpu properties/test_kernels.py"

CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason=WHY_NOT)], id="compiled for CUDA")
on_each_device = pytest.mark.parametrize("device", [pytest.param("cpu", id="interpreted"), CUDA])


def shapes_of(rows_of: Callable[[int], tuple[tuple[int, int], ...]], num_spare_queries: int = 0) -> Iterator[PagedShape]:
    """30 shapes: block sizes, query heads of a KV head and types in every combination; head sizes and numbers of KV heads
    alternate."""
    combinations = product(enumerate((16, 32, 64)), enumerate((1, 2, 3, 4, 8)), enumerate((torch.float32, torch.bfloat16)))
    for (b, block), (r, ratio), (d, dtype) in combinations:
        kv_heads = 3 if (block, ratio) == (16, 3) else 1 + (b + r) % 2
        head = (64, 128)[(b + r + d) % 2]
        yield PagedShape(ratio * kv_heads, kv_heads, head, block, dtype, rows_of(block), num_spare_queries)


def at_block_edges(block: int) -> tuple[tuple[int, int], ...]:
    """Of 1, 2 and some blocks, one position less and one more; a single position; a padding row."""
    many = {16: 5, 32: 3, 64: 2}[block] * block
    return of_lengths(1, block - 1, block, block + 1, 0, many - 1, many, many + 1)


def chunks(block: int) -> tuple[tuple[int, int], ...]:
    """Chunks that begin at 0, in the middle and at the edge of a block, and end at, before and behind an edge."""
    if block == 16:
        return ((0, 1), (0, block), (0, block + 1), (0, 0), (block // 2, block), (block, block - 1), (2 * block - 1, 2))
    return ((0, 5), (block - 3, 4), (0, 0), (block, 2), (block // 2, 1), (block - 1, 1))


DECODES = tuple(shapes_of(at_block_edges))
CHUNKS = tuple(shapes_of(chunks, num_spare_queries=2))
LONG = (
    PagedShape(3, 1, 64, 16, torch.float32, of_lengths(511, 512, 513, 1025, 1)),
    PagedShape(2, 2, 128, 64, torch.bfloat16, of_lengths(1025, 1, 512)),
    PagedShape(4, 1, 128, 32, torch.float32, of_lengths(1024, 2)),
    PagedShape(1, 1, 64, 64, torch.bfloat16, of_lengths(16 * 512 + 1, 3)),  # two rounds of the reduction
)


def words(shape: PagedShape) -> str:
    name = str(shape.dtype).removeprefix("torch.")
    longest = max(start + count for start, count in shape.rows)
    return f"{shape.heads} heads over {shape.kv_heads} of {shape.head}, blocks of {shape.block}, {name}, up to {longest}"


@on_each_device
@pytest.mark.parametrize("shape", [pytest.param(shape, id=words(shape)) for shape in (*DECODES, *LONG)])
def test_a_decode_is_dense_attention_over_its_context(shape: PagedShape, device: str) -> None:
    paged = lay_out(shape, seed=1)
    found = run_decode(paged, device)
    worst = excess(found[paged.lengths > 0], dense_attention(paged), shape.dtype)
    assert worst.max() <= 1, f"error over tolerance, by row: {worst.tolist()}"
    assert not found[paged.lengths == 0].any()


@on_each_device
@pytest.mark.parametrize("shape", [pytest.param(shape, id=words(shape)) for shape in CHUNKS])
def test_a_chunk_is_dense_causal_attention_and_padding_is_zero(shape: PagedShape, device: str) -> None:
    paged = lay_out(shape, seed=2)
    found = run_prefill(paged, device)
    worst = excess(found, dense_attention(paged), shape.dtype)
    assert worst.max() <= 1, f"error over tolerance, by query: {worst.tolist()}"
    assert not found[-shape.num_spare_queries :].any()


@pytest.mark.parametrize("shape", [pytest.param(shape, id=words(shape)) for shape in (*DECODES, *CHUNKS, *LONG)])
def test_the_tolerance_fails_a_shift_by_one_position_and_two_swapped_kv_heads(shape: PagedShape) -> None:
    paged = lay_out(shape, seed=1)
    wanted = dense_attention(paged)
    num_queries = sum(count for _, count in shape.rows)
    positions = torch.tensor([start + ordinal for start, count in shape.rows for ordinal in range(count)])
    shifted = excess(dense_attention(paged, num_unseen=1), wanted, shape.dtype)[:num_queries]
    assert shifted[positions > 0].min() > 10
    if shape.kv_heads > 1:
        swapped = excess(dense_attention(paged, swaps_kv_heads=True), wanted, shape.dtype)[:num_queries]
        assert swapped.min() > 10


@on_each_device
@pytest.mark.parametrize("lengths", [(0, 5, 0), (0, 600, 0)], ids=["in one piece", "in two pieces"])
def test_a_padding_row_reads_nothing_and_is_zero(lengths: tuple[int, ...], device: str) -> None:
    paged = lay_out(PagedShape(4, 2, 64, 16, torch.float32, of_lengths(*lengths)), seed=3)
    found = run_decode(paged, device)
    assert not found[0].any()
    assert not found[2].any()
    assert excess(found[1:2], dense_attention(paged), torch.float32).max() <= 1


@pytest.mark.filterwarnings("ignore:All-NaN slice:RuntimeWarning", "ignore:invalid value:RuntimeWarning")  # of a row of NaN
@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_decode_is_bitwise_the_same_alone_and_beside_longer_rows_or_nan(dtype: torch.dtype, device: str) -> None:
    """Beside a longer row the table is wider, and there are more pieces to reduce."""
    paged = lay_out(PagedShape(3, 1, 64, 16, dtype, of_lengths(70, 520, 3)), seed=4)
    together = run_decode(paged, device)
    queries, keys, values, tables = (
        tensor[:1] if row_wise else tensor for tensor, row_wise in zip(paged.to(device), (1, 0, 0, 1), strict=True)
    )
    narrow = tables[:, :5].contiguous()
    alone = decode_attention(queries, keys, values, narrow, paged.lengths[:1].to(device), 16)
    assert torch.equal(together[:1], alone.cpu())
    spoilt = replace(paged, queries=paged.queries.clone())
    spoilt.queries[1] = torch.nan
    beside_nan = run_decode(spoilt, device)
    assert torch.equal(together[[0, 2]], beside_nan[[0, 2]])
    assert beside_nan[1].isnan().all()


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("cuts", [(0, 37), (0, 16, 37), (0, 1, 9, 30, 37)], ids=["whole", "in two", "in four odd chunks"])
def test_a_query_gets_the_same_however_its_prompt_is_cut(cuts: tuple[int, ...], dtype: torch.dtype, device: str) -> None:
    """Bit for bit where it is compiled. The interpreter's matrix products are those of numpy, whose rounding of a row depends
    on the row's place among the others."""
    whole = lay_out(PagedShape(3, 1, 64, 16, dtype, ((0, 37),)), seed=5)
    wanted = run_prefill(whole, device)
    queries, keys, values, tables = whole.to(device)
    parts = [
        prefill_attention(
            queries[begin:end], keys, values, tables, torch.tensor([begin], dtype=torch.int32, device=device),
            torch.tensor([0, end - begin], dtype=torch.int32, device=device), 16,
        ).cpu()
        for begin, end in pairwise(cuts)
    ]  # fmt: skip
    found = torch.cat(parts)
    if device == "cuda":
        assert torch.equal(found, wanted)
    else:
        assert torch.allclose(found, wanted, atol=2e-6, rtol=0.0 if dtype == torch.float32 else 2**-7)


@on_each_device
def test_a_given_scale_replaces_one_over_the_root_of_the_head_size(device: str) -> None:
    paged = lay_out(PagedShape(2, 1, 64, 16, torch.float32, of_lengths(20, 33)), seed=6)
    doubled = replace(paged, queries=paged.queries * 2)
    assert torch.allclose(run_decode(paged, device, scale=2 * 64**-0.5), run_decode(doubled, device), atol=1e-6)
    assert not torch.allclose(run_decode(paged, device), run_decode(doubled, device), atol=1e-2)


# What is read and written


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["decodes", "chunks"])
def test_exactly_the_slots_and_table_entries_of_the_rows_are_read(kind: str, dtype: torch.dtype) -> None:
    rows = of_lengths(1, 31, 0, 32, 33, 65) if kind == "decodes" else ((0, 33), (20, 7), (0, 0), (47, 1))
    paged = lay_out(PagedShape(6, 2, 64, 32, dtype, rows, 0 if kind == "decodes" else 3), seed=7)
    lengths = paged.lengths
    with watched() as watch:
        watch.read = []
        if kind == "decodes":
            queries = torch.zeros(len(rows), 6, 64, dtype=dtype)
            decode_attention(queries, paged.key_cache, paged.value_cache, paged.tables, lengths, 32)
        else:
            run_prefill(paged)
    owned = {slot for row in paged.owned for slot in row}
    assert watch.slots_read(paged.key_cache) == owned
    assert watch.slots_read(paged.value_cache) == owned
    assert watch.entries_read(paged.tables) == sum(-(-end // 32) for end in lengths.tolist())


@on_each_device
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=["int32 slots", "int64 slots"])
@pytest.mark.parametrize(("kv_heads", "head"), [(1, 64), (3, 64), (2, 128), (5, 128)], ids=str)
def test_storing_writes_the_named_slots_and_leaves_every_other_bit(
    kv_heads: int, head: int, index: torch.dtype, dtype: torch.dtype, device: str
) -> None:
    """The caches lie between further slots, so that a write before or behind them is seen too."""
    generator = torch.Generator().manual_seed(8)
    keys, values = (torch.randn(7, kv_heads, head, generator=generator).to(dtype) for _ in range(2))
    keys[1] = torch.nan  # a padding row
    values[4, 0, :5] = torch.nan  # stored as it is
    before = [torch.randn(16 + 48 + 16, kv_heads, head, generator=generator).to(dtype) for _ in range(2)]
    before[0][30], before[1][31] = torch.nan, -0.0
    slots = torch.tensor([47, -1, 0, 16, 17, -7, 5], dtype=index)
    after = [memory.clone().to(device) for memory in before]
    store_kv(keys.to(device), values.to(device), after[0][16:-16], after[1][16:-16], slots.to(device))
    for given, memory, earlier in zip((keys, values), after, before, strict=True):
        wanted = earlier.clone()
        for row, slot in enumerate(slots.tolist()):
            if slot >= 0:
                wanted[16 + slot] = given[row]
        assert torch.equal(bits(memory), bits(wanted))


@on_each_device
def test_no_tokens_and_no_rows_are_no_work(device: str) -> None:
    cache = torch.zeros(32, 2, 64, device=device)
    nothing = torch.zeros(0, 2, 64, device=device)
    tables = torch.zeros(0, 3, dtype=torch.int32, device=device)
    none = torch.zeros(0, dtype=torch.int32, device=device)
    store_kv(nothing, nothing, cache, cache.clone(), none)
    assert decode_attention(nothing, cache, cache, tables, none, 16).shape == (0, 2, 64)
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    assert not prefill_attention(cache[:4], cache, cache, tables, none, zero, 16).any()


# At the door


def arguments() -> dict[str, Any]:
    return {
        "queries": torch.zeros(2, 4, 64), "key_cache": torch.zeros(64, 2, 64), "value_cache": torch.zeros(64, 2, 64),
        "tables": torch.zeros(2, 3, dtype=torch.int32), "lengths": torch.ones(2, dtype=torch.int32), "block_size": 16,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        pytest.param({"block_size": 24}, "must be a multiple of 16, found 24", id="a block size between multiples"),
        pytest.param({"block_size": 8}, "must be a multiple of 16, found 8", id="a small block size"),
        pytest.param({"block_size": 0}, "must be a multiple of 16, found 0", id="no block size"),
        pytest.param(
            {"key_cache": torch.zeros(64, 2, 96), "value_cache": torch.zeros(64, 2, 96)},
            "know the head sizes 64 and 128, found 96", id="an odd head size",
        ),
        pytest.param(
            {"key_cache": torch.zeros(64, 2, 64).half()}, "float32 or bfloat16, found torch.float16", id="half precision"
        ),
        pytest.param({"queries": torch.zeros(2, 4, 64).bfloat16()}, "must have the type of key_cache", id="two types"),
        pytest.param({"queries": torch.zeros(2, 3, 64)}, "must be a multiple of the 2 KV heads, found 3", id="an odd group"),
        pytest.param({"queries": torch.zeros(2, 64)}, "queries must be of shape [n, heads, head]", id="flat queries"),
        pytest.param(
            {"queries": torch.zeros(2, 64, 4).transpose(1, 2)}, "queries must be contiguous, found strides", id="turned queries"
        ),
        pytest.param(
            {"key_cache": torch.zeros(64, 4, 64)[:, ::2]}, "key_cache must be contiguous", id="a cache with gaps"
        ),
        pytest.param(
            {"tables": torch.zeros(2, 6, dtype=torch.int32)[:, ::2]}, "tables must be contiguous", id="tables with gaps"
        ),
        pytest.param({"value_cache": torch.zeros(32, 2, 64)}, "value_cache must be of shape", id="a short value cache"),
        pytest.param({"tables": torch.zeros(2, 3, dtype=torch.int64)}, "tables must be torch.int32", id="wide tables"),
        pytest.param({"tables": torch.zeros(3, 3, dtype=torch.int32)}, "tables must be of shape", id="a table too many"),
        pytest.param({"lengths": torch.ones(3, dtype=torch.int32)}, "lengths must be of shape [2]", id="a length too many"),
        pytest.param({"lengths": torch.ones(2)}, "lengths must be torch.int32", id="lengths that are no integers"),
        pytest.param(
            {"queries": torch.zeros(2, 4, 64, device="meta")}, "on the device of key_cache, cpu, found meta", id="two devices"
        ),
    ],
)  # fmt: skip
def test_what_the_kernels_can_not_do_is_said_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert decode_attention(**arguments()).shape == (2, 4, 64)
    with pytest.raises(ConfigError) as refusal:
        decode_attention(**arguments() | changes)
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["keys", "values", "slots"])
def test_what_does_not_fit_the_cache_is_not_stored(name: str) -> None:
    cache = torch.zeros(32, 2, 64)
    given = {"keys": torch.ones(3, 2, 64), "values": torch.ones(3, 2, 64), "slots": torch.arange(3)}
    given[name] = given[name][:2]
    with pytest.raises(ConfigError, match="must be of shape"):
        store_kv(given["keys"], given["values"], cache, cache, given["slots"])
    assert not cache.any()


@pytest.mark.parametrize("name", ["starts", "row_begins"])
def test_a_chunk_without_its_row_is_refused(name: str) -> None:
    given = arguments()
    del given["lengths"]
    rows: dict[str, Any] = {
        "starts": torch.zeros(2, dtype=torch.int32),
        "row_begins": torch.tensor([0, 1, 2], dtype=torch.int32),
    }
    assert prefill_attention(**given, **rows).shape == (2, 4, 64)
    rows[name] = rows[name][:-1]
    with pytest.raises(ConfigError, match=f"{name} must be of shape"):
        prefill_attention(**given, **rows)


# How they are run


def test_tensors_of_the_cpu_are_interpreted_whoever_imported_triton_before() -> None:
    for kernel in KERNELS:
        assert isinstance(kernel.interpreted(), triton_interpreter.InterpretedFunction)
        assert not isinstance(kernel.compiled(), triton_interpreter.InterpretedFunction)


@pytest.mark.parametrize("missing", ["triton", "torch"])
def test_without_the_extra_there_is_one_sentence(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("engine_under_test.execution.kernels")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)  # how Python marks what can not be imported
    with pytest.raises(ConfigError, match=f"extra `model`, but {missing} is not installed; say pip install"):
        importlib.import_module("engine_under_test.execution.kernels")
