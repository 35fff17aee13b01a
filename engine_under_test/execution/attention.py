"""Attention over pages: the protocol, the back ends, and which one a device gets.

Owns: how queries meet the keys and values that lie in a paged store. Never: which slot belongs to whom. Causal: the query at
position p reads positions 0 .. p through its row's table; query head h reads KV head h // (heads / kv_heads).

A slot that a row does not own holds poison (NaN), and a product with a weight of 0 does not silence a NaN. So no back end may
read such a slot, not even to mask it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch.nn import functional

from engine_under_test.errors import ConfigError
from engine_under_test.execution.batch import Batch


class Attention(Protocol):
    """How a runner stores and reads keys and values. Caches are [slots, kv_heads, head]."""

    @property
    def name(self) -> str: ...

    def store(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """Writes keys and values [n, kv_heads, head] to `slots` [n]."""

    def attend(self, queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, batch: Batch) -> torch.Tensor:
        """[n, heads, head] for queries [n, heads, head], after the batch's keys and values were stored."""


class TorchStore:
    """Storing with an indexed copy, on any device."""

    def store(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """See `Attention.store`."""
        key_cache.index_copy_(0, slots, keys)
        value_cache.index_copy_(0, slots, values)


class Eager(TorchStore):
    """The plain fallback: row by row, a dense softmax in float32 over everything that the row has."""

    name = "eager"

    def attend(self, queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Attention.attend`."""
        attended = torch.empty_like(queries)
        group = queries.shape[1] // key_cache.shape[1]
        for row, (start, length) in enumerate(zip(batch.start_list, batch.length_list, strict=True)):
            slots = slots_of_row(batch, row)
            keys = key_cache[slots].repeat_interleave(group, dim=1)
            values = value_cache[slots].repeat_interleave(group, dim=1)
            mine = slice(batch.row_begin_list[row], batch.row_begin_list[row + 1])
            scores = torch.einsum("qhd,khd->hqk", queries[mine], keys) * queries.shape[2] ** -0.5
            is_later = causal_mask(start, length, queries.device).logical_not()
            weights = scores.float().masked_fill(is_later, -torch.inf).softmax(dim=-1).to(queries.dtype)
            attended[mine] = torch.einsum("hqk,khd->qhd", weights, values)
        return attended


class _Group(NamedTuple):
    """Rows of equal numbers of queries that are attended together, in [rows, kv_heads, queries of a KV head, head].

    ``tokens`` [rows * queries]: where their tokens stand in the batch, None for all of it. ``pages`` [rows * kv_heads *
    longest]: which vectors of the store they read; behind the end of a row its last position is named again, so that only what
    the row owns is read. ``mask`` [rows, 1, queries of a KV head, longest], or None where every query reads every position.
    """

    tokens: torch.Tensor | None
    num_rows: int
    num_queries: int
    pages: torch.Tensor
    mask: torch.Tensor | None


class PagedTorch(TorchStore):
    """Paged attention in torch: pages gathered once a layer, decodes all at once, longer rows one by one.

    The query heads of a KV head are further queries of it, so that nothing is repeated in memory.
    """

    name = "paged-torch"

    def __init__(self) -> None:
        self._batch: Batch | None = None  # whose groups these are: every layer of a step asks for the same
        self._groups: tuple[_Group, ...] = ()

    def attend(self, queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Attention.attend`."""
        kv_heads = key_cache.shape[1]
        group_size = queries.shape[1] // kv_heads
        if self._batch is not batch:
            self._groups = _group_rows(batch, kv_heads, group_size)
            self._batch = batch
        if len(self._groups) == 1:
            return _attend_group(queries, key_cache, value_cache, self._groups[0])
        attended = torch.empty_like(queries)
        for group in self._groups:
            assert group.tokens is not None  # only a group that is alone stands for the whole batch
            attended[group.tokens] = _attend_group(queries[group.tokens], key_cache, value_cache, group)
        return attended


def _attend_group(queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, group: _Group) -> torch.Tensor:
    num_tokens, heads, size = queries.shape
    kv_heads = key_cache.shape[1]
    rows, each = group.num_rows, group.num_queries
    folded = queries.view(rows, each, kv_heads, heads // kv_heads, size).permute(0, 2, 3, 1, 4)
    folded = folded.reshape(rows, kv_heads, -1, size)
    keys = key_cache.view(-1, size).index_select(0, group.pages).view(rows, kv_heads, -1, size)
    values = value_cache.view(-1, size).index_select(0, group.pages).view(rows, kv_heads, -1, size)
    attended = functional.scaled_dot_product_attention(folded, keys, values, attn_mask=group.mask)
    attended = attended.view(rows, kv_heads, heads // kv_heads, each, size).permute(0, 3, 1, 2, 4)
    return attended.reshape(num_tokens, heads, size)


def _group_rows(batch: Batch, kv_heads: int, group_size: int) -> tuple[_Group, ...]:
    """All rows of one token in one group, every other row in its own."""
    begins = batch.row_begin_list
    sizes = [end - begin for begin, end in pairwise(begins)]
    alone = [[row] for row, size in enumerate(sizes) if size > 1]
    decodes = [row for row, size in enumerate(sizes) if size == 1]
    members = [decodes, *alone] if decodes else alone
    return tuple(_group(batch, rows, kv_heads, group_size, len(members) == 1) for rows in members)


def _group(batch: Batch, rows: list[int], kv_heads: int, group_size: int, is_all: bool) -> _Group:
    device = batch.positions.device
    begin, each = batch.row_begin_list[rows[0]], batch.row_begin_list[rows[0] + 1] - batch.row_begin_list[rows[0]]
    lengths = [batch.length_list[row] for row in rows]
    longest = max(lengths)
    members = torch.tensor(rows, device=device)
    ends = torch.tensor(lengths, device=device)[:, None]
    columns = torch.arange(longest, device=device)
    read = columns.minimum(ends - 1)  # [rows, longest]
    slots = batch.tables[members].gather(1, read // batch.block_size).long() * batch.block_size + read % batch.block_size
    pages = slots[:, None, :] * kv_heads + torch.arange(kv_heads, device=device)[:, None]
    mask: torch.Tensor | None = None
    if each > 1:
        mask = causal_mask(batch.start_list[rows[0]], longest, device).repeat(group_size, 1)[None, None]
        tokens = torch.arange(begin, begin + each, device=device)
    else:
        if min(lengths) < longest:
            mask = (columns < ends)[:, None, None, :].expand(-1, 1, group_size, -1)
        tokens = torch.tensor([batch.row_begin_list[row] for row in rows], device=device)
    return _Group(None if is_all else tokens, len(rows), each, pages.reshape(-1), mask)


class PagedTriton:
    """The kernels of `execution/kernels`, for CUDA."""

    name = "paged-triton"

    def __init__(self) -> None:
        try:
            from engine_under_test.execution import kernels
        except ImportError as error:
            raise ConfigError(
                f"attention by {self.name} needs triton, found none ({error}); install the extra `model`"
            ) from error
        self._kernels = kernels
        self.decode = kernels.decode_attention

    def store(
        self,
        keys: torch.Tensor,
        values: torch.Tensor,
        key_cache: torch.Tensor,
        value_cache: torch.Tensor,
        slots: torch.Tensor,
    ) -> None:
        """See `Attention.store`."""
        self._kernels.store_kv(keys, values, key_cache, value_cache, slots)

    def attend(self, queries: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, batch: Batch) -> torch.Tensor:
        """See `Attention.attend`. A decode beside longer rows is a prefill of one query."""
        if batch.is_decode:
            return self._kernels.decode_attention(
                queries, key_cache, value_cache, batch.tables, batch.lengths, batch.block_size
            )
        return self._kernels.prefill_attention(
            queries, key_cache, value_cache, batch.tables, batch.starts, batch.row_begins, batch.block_size
        )


def decode_by_tables(
    queries: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    tables: torch.Tensor,
    lengths: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """One query a row, [rows, heads, head], over ``lengths`` [rows] positions in ``tables`` [rows, blocks]: like the kernel of
    that name it knows nothing but tensors, so that its shapes do not depend on how long a row is."""
    rows, heads, size = queries.shape
    kv_heads = key_cache.shape[1]
    columns = torch.arange(tables.shape[1] * block_size, device=tables.device)
    ends = lengths.long()[:, None]
    read = columns.minimum(ends - 1)  # behind the end of a row its last position again: only what the row owns is read
    slots = tables.long().gather(1, read // block_size) * block_size + read % block_size
    keys, values = (
        cache.index_select(0, slots.view(-1)).view(rows, -1, kv_heads, size).transpose(1, 2)
        for cache in (key_cache, value_cache)
    )
    folded = queries.view(rows, kv_heads, heads // kv_heads, size)
    mask = (columns < ends)[:, None, None, :].expand(-1, 1, heads // kv_heads, -1)
    return functional.scaled_dot_product_attention(folded, keys, values, attn_mask=mask).reshape(rows, heads, size)


def decode_attention_of(attention: Attention) -> Callable[..., torch.Tensor]:
    """What a back end does for decodes when it is given tensors alone."""
    if isinstance(attention, PagedTriton):
        return attention.decode
    if isinstance(attention, PagedTorch):
        return decode_by_tables
    raise ConfigError(f"decodes in buckets need paged attention, found {attention.name}; leave the buckets out")


def slots_of_row(batch: Batch, row: int) -> torch.Tensor:
    """The slots of positions 0 .. length - 1 of a row, [length] int64."""
    read = torch.arange(batch.length_list[row], device=batch.tables.device)
    return batch.tables[row].long()[read // batch.block_size] * batch.block_size + read % batch.block_size


def causal_mask(start: int, length: int, device: torch.device) -> torch.Tensor:
    """[length - start, length]: whether the query at position start + i reads position j."""
    return torch.arange(length, device=device) <= torch.arange(start, length, device=device)[:, None]


ATTENTIONS: dict[str, type[Attention]] = {each.name: each for each in (PagedTorch, Eager, PagedTriton)}


def choose_attention(device: torch.device, name: str | None = None) -> Attention:
    """The back end of this name; without one, the fastest that the device can run."""
    if name is None:
        name = PagedTriton.name if device.type == "cuda" else PagedTorch.name
    if name not in ATTENTIONS:
        raise ConfigError(f"attention is one of {', '.join(ATTENTIONS)}, found {name!r}; choose one")
    return ATTENTIONS[name]()


def describe(attention: Attention, device: torch.device) -> str:
    """What a caller prints at its start."""
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    return f"attention {attention.name} on {where}"
