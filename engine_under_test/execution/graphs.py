"""Decodes in buckets: batches padded to a few sizes, so that each size is recorded once and replayed with other inputs.

Owns: the buckets, the static inputs that a recording reads, what stands in their padding, and the recordings. Never: a formula
(`model/llama.py`), or how pages are read (`attention.py`).

    8 rows   a b c d e f g h     bucket 8: copied in, replayed, copied out
    5 rows   a c d f h . . .     bucket 8: three rows are padding; what a to h left there is overwritten
    9 rows                       above the largest bucket: computed as any other batch

On a CPU a recording is the very function, run again on the same buffers; on CUDA it is a `torch.cuda.CUDAGraph` of it. So the
code around it (copies, padding, choice of a bucket) is the same in both.

Padding is poison: a padding row is NaN from its embedding on. Whatever it is made to write, it writes to slot 0, in the padding
block, which holds NaN already; and nobody reads what it came to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch

from engine_under_test.errors import ConfigError
from engine_under_test.execution.adapter_slots import RowAdapters
from engine_under_test.execution.attention import Attention, decode_attention_of
from engine_under_test.execution.batch import Batch
from engine_under_test.execution.forward import WholeForward
from engine_under_test.execution.media import MediaEmbeddings
from engine_under_test.execution.memory import StepMemory
from engine_under_test.model import llama
from engine_under_test.model.weights import LlamaWeights


@dataclass(frozen=True, slots=True)
class Buckets:
    """Numbers of rows to which batches are padded, rising."""

    sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.sizes or self.sizes[0] < 1 or any(one >= other for one, other in pairwise(self.sizes)):
            raise ConfigError(f"buckets are rising numbers of rows from 1 on, found {self.sizes}; sort them, each once")

    @property
    def largest(self) -> int:
        return self.sizes[-1]

    def of(self, num_rows: int) -> int | None:
        """The smallest bucket that holds so many rows; None above the largest."""
        return next((size for size in self.sizes if size >= num_rows), None)


def width_of(num_blocks: int) -> int:
    """Columns of a static table: the next power of two, so that a few widths serve every length."""
    return 1 << max(num_blocks - 1, 0).bit_length()


class StaticInputs(NamedTuple):
    """What a recording reads, always at the same addresses: ``tokens``, ``positions``, ``slots`` [rows] int64; ``tables``
    [rows, width] and ``lengths`` [rows] int32; ``is_row`` [rows] bool, False in padding."""

    tokens: torch.Tensor
    positions: torch.Tensor
    slots: torch.Tensor
    tables: torch.Tensor
    lengths: torch.Tensor
    is_row: torch.Tensor

    @classmethod
    def of(cls, num_rows: int, width: int, device: torch.device) -> StaticInputs:
        """Full of padding."""

        def zeros(*shape: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        long, short = torch.int64, torch.int32
        return cls(
            zeros(num_rows, dtype=long),
            zeros(num_rows, dtype=long),
            zeros(num_rows, dtype=long),
            zeros(num_rows, width, dtype=short),
            zeros(num_rows, dtype=short) + 1,
            zeros(num_rows, dtype=torch.bool),
        )

    def first(self, num_rows: int) -> StaticInputs:
        """The same memory, seen by a bucket."""
        return StaticInputs(*(each[:num_rows] for each in self))

    def copy_in(self, batch: Batch) -> None:
        """The rows of a batch of decodes, and padding behind them and behind their tables."""
        n, width = batch.tables.shape
        for static, rows in ((self.tokens, batch.tokens), (self.positions, batch.positions), (self.slots, batch.slots)):
            static[:n] = rows
            static[n:] = 0
        self.tables[:n, :width] = batch.tables
        self.tables[:n, width:] = 0
        self.tables[n:] = 0
        self.lengths[:n] = batch.lengths
        self.lengths[n:] = 1  # position 0 of the padding block
        self.is_row[:n] = True
        self.is_row[n:] = False


Body = Callable[[StaticInputs], torch.Tensor]  # [rows, vocab]


class Recording(Protocol):
    """A body on its inputs, ready to be run again."""

    def replay(self) -> torch.Tensor:
        """Runs it; the same tensor each time."""


class Rerun:
    """The form for a CPU: the body is run again, its result copied to where it always lies."""

    def __init__(self, body: Body, inputs: StaticInputs) -> None:
        self._body = body
        self._inputs = inputs
        self.output = torch.empty(0)

    def replay(self) -> torch.Tensor:
        """See `Recording`."""
        found = self._body(self._inputs)
        if self.output.shape != found.shape:
            self.output = torch.empty_like(found)
        self.output.copy_(found)
        return self.output


class Captured:
    """The form for CUDA: a graph of the body's kernels.

    The body runs twice on a side stream before it is captured, as `torch.cuda.graph` asks; it writes what the replay will.
    """

    def __init__(self, body: Body, inputs: StaticInputs, warm_ups: int = 2) -> None:
        now = torch.cuda.current_stream(inputs.tokens.device)
        side = torch.cuda.Stream(inputs.tokens.device)  # type: ignore[no-untyped-call]  # torch's, without annotations
        side.wait_stream(now)
        with torch.cuda.stream(side):
            for _ in range(warm_ups):
                body(inputs)
        now.wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self.output = body(inputs)

    def replay(self) -> torch.Tensor:
        """See `Recording`."""
        self._graph.replay()
        return self.output


class GraphCache:
    """Recordings by bucket and width of tables. ``replays``: how often each was run; ``statics``: by width, for all buckets."""

    def __init__(
        self, body: Body, buckets: Buckets, device: torch.device, record: Callable[[Body, StaticInputs], Recording]
    ) -> None:
        self.buckets = buckets
        self.statics: dict[int, StaticInputs] = {}
        self.recordings: dict[tuple[int, int], Recording] = {}
        self.replays: Counter[tuple[int, int]] = Counter()
        self._body = body
        self._device = device
        self._record = record

    def run(self, batch: Batch) -> torch.Tensor | None:
        """[rows, vocab] of a batch of decodes, until the next replay; None above the largest bucket."""
        num_rows, num_blocks = batch.tables.shape
        bucket = self.buckets.of(num_rows)
        if bucket is None:
            return None
        key = bucket, width_of(num_blocks)
        if key[1] not in self.statics:
            self.statics[key[1]] = StaticInputs.of(self.buckets.largest, key[1], self._device)
        inputs = self.statics[key[1]].first(bucket)
        inputs.copy_in(batch)
        if key not in self.recordings:
            self.recordings[key] = self._record(self._body, inputs)
        self.replays[key] += 1
        return self.recordings[key].replay()[:num_rows]


class BucketedForward:
    """Decodes in buckets; every other batch, and one above the largest bucket, whole. ``graphs``: the recordings."""

    def __init__(
        self,
        weights: LlamaWeights,
        attention: Attention,
        memory: StepMemory,
        product: llama.Product,
        buckets: Sequence[int],
        stores: tuple[torch.Tensor, torch.Tensor],
        block_size: int,
        media: MediaEmbeddings | None = None,
    ) -> None:
        self._whole = WholeForward(weights, attention, memory, product, media)
        self._memory = memory
        device = weights.embedding.device
        body = _DecodeBody(weights, attention, product, stores, block_size)
        record = Captured if device.type == "cuda" else Rerun
        self.graphs = GraphCache(body, Buckets(tuple(buckets)), device, record)
        self._logit_bytes = weights.config.vocab_size * torch.float32.itemsize

    def __call__(
        self, batch: Batch, keys: torch.Tensor, values: torch.Tensor, adapters: RowAdapters | None = None
    ) -> torch.Tensor:
        """See `WholeForward`. Keys and values are those that the recordings were made with; what has
        adapters or media is not recorded."""
        logits: torch.Tensor | None = None
        if batch.is_decode and adapters is None and not batch.media:
            self._memory.take("logits of a bucket", self._logit_bytes * batch.num_rows)
            logits = self.graphs.run(batch)
        if logits is None:
            return self._whole(batch, keys, values, adapters)
        return logits.index_select(0, batch.sampled)  # a copy


class _DecodeBody:
    """One pass of one token a row, from static inputs alone: nothing in it depends on the host."""

    def __init__(
        self,
        weights: LlamaWeights,
        attention: Attention,
        product: llama.Product,
        stores: tuple[torch.Tensor, torch.Tensor],
        block_size: int,
    ) -> None:
        self._weights = weights
        self._attention = attention
        self._decode = decode_attention_of(attention)
        self._product = product
        self._keys, self._values = stores
        self._block_size = block_size

    def __call__(self, inputs: StaticInputs) -> torch.Tensor:
        """[rows, vocab] float32."""
        weights, config, dtype = self._weights, self._weights.config, self._keys.dtype
        hidden = llama.embed(weights, inputs.tokens).masked_fill(~inputs.is_row[:, None], torch.nan)
        by = llama.angles(config, inputs.positions, dtype)
        for number, layer in enumerate(weights.layers):
            heads = llama.project(hidden, layer, config, by, self._product)
            caches = self._keys[number], self._values[number]
            self._attention.store(heads.keys, heads.values, *caches, inputs.slots)
            attended = self._decode(heads.queries, *caches, inputs.tables, inputs.lengths, self._block_size)
            hidden = llama.finish(hidden, attended, layer, config, self._product)
        return llama.logits(hidden, weights, self._product)
