"""What `transformers_cb` is built around: transformers' own batch processor, made without a model, and eyes on its memory.

Owns how its parts are put together on a CPU, and the translation of its block numbers. Never decides anything in its place: the
scheduler, the paged cache, the swap pool, the input tensors and the router of outputs are transformers' own objects.

The memory that it moves is real, but holds stamps in place of keys and values: before a verb every block says which one it is,
and what says something else afterwards was copied there. So a copy is what it did, not what its tables say that it did.
"""

from __future__ import annotations

import logging
import math
import os
import queue
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_under_test.config import EngineConfig
from engine_under_test.errors import BadInput, ProtocolError

Array = npt.NDArray[np.int64]

_TRASH_SECTORS = 2  # in front of the cache's data, never allocated
_LEAST_PAGE = 4
_SECTOR_BYTES = 128  # a sector is a multiple of it
_WORD_BYTES = 8  # float32 keys and values of one head of one dimension
SCHEDULERS = ("fifo", "prefill_first")


@dataclass(frozen=True, slots=True)
class Options:
    """What transformers lets a user choose beyond an `EngineConfig`, in blocks and shares.

    ``host_blocks``: of the swap pool; 0: who is put out is computed anew. ``sector_blocks``: blocks of a sector, the unit
    in which its pool hands out memory. ``safety_margin``: share of free blocks below which no prefill enters but the first.
    ``overlap``: the next batch is prepared before the tokens of the last one are known (its asynchronous batching).
    """

    scheduler: str = "fifo"
    host_blocks: int = 0
    sector_blocks: int = 1
    safety_margin: float = 0.0
    overlap: bool = False


def options_from(data: Mapping[str, Any]) -> Options:
    """The options of a world. Raises BadInput on anything that is not one."""
    known = {field.name: field.type for field in fields(Options)}
    if unknown := set(data) - set(known):
        raise BadInput(f"the options of this target are {sorted(known)}, found {sorted(unknown)}; remove them")
    found = Options(**data)
    whole = all(type(value) is int for value in (found.host_blocks, found.sector_blocks))
    if found.scheduler not in SCHEDULERS or not whole or found.host_blocks < 0 or found.sector_blocks not in (1, 2, 4, 8):
        raise BadInput(f"scheduler is one of {SCHEDULERS}, host_blocks a count, sector_blocks 1, 2, 4 or 8, found {found}")
    if not 0 <= found.safety_margin <= 1:
        raise BadInput(f"safety_margin is a share between 0 and 1, found {found.safety_margin}; correct it")
    if type(found.overlap) is not bool:
        raise BadInput(f"overlap is a switch, true or false, found {found.overlap!r}; set one of them")
    return found


@dataclass(frozen=True, slots=True)
class Library:
    """The names of transformers that are used here."""

    version: str
    torch: Any
    config: Any  # the class of a model's configuration
    settings: Any  # of continuous batching
    generation: Any
    processors: Any
    processor: Any
    router: Any
    status: Any
    pairs: Any  # the inputs and outputs of asynchronous batching
    cache: Any
    helper: Any
    schedulers: Mapping[str, Any]
    state: Any
    ended: Any  # RequestStatus.FINISHED: it and all above are ends
    block_hash: Any


@cache
def load_library() -> Library:
    """Loads transformers, which takes seconds, once. Raises BadInput where it is missing or has no such engine."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched, and nobody is told of a run
    try:
        import torch
        from transformers import GenerationConfig, LlamaConfig, LogitsProcessorList, __version__
        from transformers.generation.configuration_utils import ContinuousBatchingConfig
        from transformers.generation.continuous_batching import cache as caches
        from transformers.generation.continuous_batching import continuous_api as api
        from transformers.generation.continuous_batching import input_outputs, requests, scheduler
        from transformers.generation.continuous_batching.cache_allocators.cache_allocator import compute_block_hash
        from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessorList
        from transformers.generation.continuous_batching.distributed import DistributedHelper
    except ImportError as error:
        raise BadInput(
            "the engine `transformers` needs the extra `reference` with transformers 5.24 or of its series, found that "
            f"{error.name} can not be imported; say pip install -c constraints.txt -e '.[reference]'"
        ) from error

    class Processor(api.ContinuousBatchProcessor):
        """Its finalizer collects all garbage of the interpreter, for the sake of CUDA graphs that there are none of here."""

        def __del__(self) -> None:
            """Nothing to do."""

    class Helper(DistributedHelper):
        """Seeds nothing: whoever plays the device draws the tokens, and the generator of torch is not ours to set."""

        def set_tp_seed(self, seed: int | None, model_device: Any) -> None:
            del seed, model_device

    class Pairs(input_outputs.ContinuousBatchingAsyncIOs):
        """Two sets of host tensors in turns, as its own; it has no device tensors, streams and events, which want an
        accelerator: the harness is the device, and says when a batch has ended."""

        def __init__(self, **settings: Any) -> None:
            pairs = [SimpleNamespace(host_io=input_outputs.ContinuousBatchingIOs(**settings)) for _ in range(2)]
            tokens = settings["cache"].max_batch_tokens
            self.__dict__.update(current_pair=0, io_pairs=pairs, compute_stream=None, max_batch_tokens=tokens)

        def prepare_batch_update(self) -> Any:
            return self.io_pairs[self.current_pair].host_io.prepare_batch_update()

    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    return Library(
        version=__version__,
        torch=torch,
        config=LlamaConfig,
        settings=ContinuousBatchingConfig,
        generation=GenerationConfig,
        processors=lambda: ContinuousBatchingLogitsProcessorList(LogitsProcessorList()),
        processor=Processor,
        router=api.OutputRouter,
        status=api.BackgroundThreadStatus,
        pairs=Pairs,
        cache=caches.PagedAttentionCache,
        helper=Helper,
        schedulers=scheduler.SCHEDULER_MAPPING,
        state=requests.RequestState,
        ended=requests.RequestStatus.FINISHED,
        block_hash=compute_block_hash,
    )


def processor_for(config: EngineConfig, options: Options) -> Any:
    """transformers' batch processor on the CPU, with one layer of full attention."""
    if config.block_size < _LEAST_PAGE:
        raise BadInput(
            f"a page of transformers holds at least {_LEAST_PAGE} tokens, found {config.block_size}; use larger blocks"
        )
    lib, device = load_library(), load_library().torch.device("cpu")
    model = _model_config(config, options)
    sector_bytes = math.lcm(_block_bytes(config, model.head_dim), _SECTOR_BYTES)
    sectors = -(-options.host_blocks // options.sector_blocks)
    settings = lib.settings(
        page_size=config.block_size,
        num_blocks=config.num_blocks,
        max_batch_tokens=config.max_tokens_per_step,
        max_requests_per_batch=config.max_num_seqs,
        max_blocks_per_request=0,  # the path for flash attention on a GPU
        allow_block_sharing=config.prefix_cache,
        use_async_batching=False,
        use_cuda_graph=False,
        max_memory_percent=0.6,
        safety_margin=options.safety_margin,
        cpu_offload_space=(sectors * sector_bytes + 0.5) / 2**30 if sectors else 0.0,
        cpu_offload_space_safety_threshold=1.0,
    )
    helper = lib.helper(None, None, {})
    memory = lib.cache(model, settings, device, helper, lib.torch.float32)
    with _without_pinning(lib.torch):
        made = lib.processor(
            cache=memory,
            config=model,
            generation_config=lib.generation(),
            continuous_batching_config=settings,
            logit_processor=lib.processors(),
            input_queue=queue.Queue(),
            cancel_queue=queue.Queue(),
            output_router=lib.router(),
            background_thread_status=lib.status(),
            model_device=device,
            model_dtype=lib.torch.float32,
            scheduler=lib.schedulers[options.scheduler](memory, options.safety_margin, config.max_num_seqs),
            distributed_helper=helper,
        )
        if options.overlap:
            made.use_async_batching = True
            made.inputs_and_outputs = made.model_runner.inputs_and_outputs = lib.pairs(
                cache=memory,
                config=model,
                continuous_batching_config=settings,
                device=device,
                model_dtype=lib.torch.float32,
                logit_processor=made.logit_processor,
            )
    return made


def _model_config(config: EngineConfig, options: Options) -> Any:
    """One head, whose size makes `sector_blocks` blocks one sector: sectors are the least common multiple of a block and
    128 bytes."""
    wanted = _SECTOR_BYTES // options.sector_blocks
    per_dimension = _block_bytes(config, 1)
    twos = per_dimension & -per_dimension
    if wanted < twos and options.sector_blocks > 1:
        raise BadInput(
            f"a sector of {options.sector_blocks} blocks needs blocks of {wanted} bytes, found at least {twos} in a block of "
            f"{config.block_size} tokens; choose fewer blocks or an odd number of tokens"
        )
    head_dim = max(1, wanted // twos)
    made = load_library().config(
        vocab_size=config.vocab_size,
        hidden_size=head_dim,
        intermediate_size=1,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=head_dim,
    )
    made._attn_implementation = "flash_attention_2"  # the one without masks: nobody attends here
    return made


def _block_bytes(config: EngineConfig, head_dim: int) -> int:
    return _WORD_BYTES * head_dim * config.block_size


@contextmanager
def _without_pinning(torch: Any) -> Iterator[None]:
    """The swap pool asks for pinned memory, which torch has only with an accelerator. Nothing is copied asynchronously here."""
    empty = torch.empty

    def unpinned(*args: Any, pin_memory: bool = False, **options: Any) -> Any:
        del pin_memory
        return empty(*args, **options)

    torch.empty = unpinned
    try:
        yield
    finally:
        torch.empty = empty


class Memory:
    """The blocks of the cache and of the swap pool, under our numbers: 0 is transformers' trash, the cache's blocks are
    1 .. num_blocks, those of the swap pool follow."""

    def __init__(self, processor: Any) -> None:
        (self.allocator,) = processor.cache.cache_allocators.values()
        self.pool = processor.cache.pool
        self.host_pool = processor.offloading_manager._cpu_pool
        self._sector: int = self.allocator.blocks_per_sector
        self._first: int = _TRASH_SECTORS * self._sector
        self.block_size: int = self.allocator.tokens_per_page
        self._stride: int = self.allocator.block_physical_stride
        self._stamps: Array = self.allocator._copy_view.numpy().view(np.int64)
        self.num_blocks: int = len(self._stamps) - self._first
        host = processor.offloading_manager._cpu_views
        self._host_stamps: Array = np.empty((0, 1), np.int64)
        if host:
            (view,) = host.values()
            self._host_stamps = view.numpy().view(np.int64)
        self.num_host_blocks = len(self._host_stamps)

    def number(self, block: int) -> int:
        """Our number of one of its blocks."""
        return max(block - self._first + 1, 0)

    def table_of(self, name: str) -> tuple[int, ...]:
        return tuple(map(self.number, self.allocator.block_table.get(name, ())))

    def slot(self, place: int) -> int:
        """Our slot of a row of the layer's view of the cache."""
        block, offset = divmod(place, self._stride)
        if not 0 <= offset < self.block_size:
            raise ProtocolError(f"an index of the cache names a token of a block, found row {offset} of block {block}")
        return self.number(block) * self.block_size + offset

    def free(self) -> tuple[int, ...]:
        """What its pool would hand out: free blocks of the sectors in use, then whole sectors."""
        found = [block for tree in self.pool._free_blocks[self.allocator.index].trees.values() for block in reversed(tree)]
        for sector in reversed(self.pool.free_sectors):
            found += range(sector * self._sector, (sector + 1) * self._sector)
        return tuple(map(self.number, found))

    def host_blocks_in_use(self) -> tuple[int, ...]:
        if self.host_pool is None:
            return ()
        free = {block for tree in self.host_pool._free_blocks[self.allocator.index].trees.values() for block in tree}
        for sector in self.host_pool.free_sectors:
            free.update(range(sector * self._sector, (sector + 1) * self._sector))
        return tuple(self.num_blocks + 1 + block for block in range(self.num_host_blocks) if block not in free)

    def ref_counts(self, free: tuple[int, ...]) -> tuple[int, ...]:
        """By its ledger: a block that stands nowhere has one holder."""
        ledger = self.allocator.ledger
        counts = [0] + [1] * self.num_blocks
        for block in (*free, *map(self.number, ledger.cached_blocks)):
            counts[block] = 0
        for block, count in ledger.shared_ref_counts.items():
            counts[self.number(block)] = count
        return tuple(counts)

    def stamp(self) -> None:
        """Every block says which one it is."""
        self._stamps[:] = np.arange(len(self._stamps))[:, None]
        self._host_stamps[:] = len(self._stamps) + np.arange(self.num_host_blocks)[:, None]

    def moves(self) -> list[tuple[int, int]]:
        """Who was copied where since `stamp`, (source, target) under our numbers, in an order that has the same effect."""
        moved: dict[int, int] = {}
        for first, stamps in ((0, self._stamps), (len(self._stamps), self._host_stamps)):
            for row in np.flatnonzero(stamps[:, 0] != np.arange(first, first + len(stamps))):
                moved[first + int(row)] = int(stamps[row, 0])
            if (torn := np.flatnonzero((stamps != stamps[:, :1]).any(axis=1))).size:
                raise ProtocolError(
                    f"a block is copied whole, found pieces of several in block {self._ours(int(torn[0]) + first)}"
                )
        return [(self._ours(source), self._ours(target)) for source, target in _in_order(moved)]

    def _ours(self, row: int) -> int:
        if row < len(self._stamps):
            return self.number(row)
        return self.num_blocks + 1 + row - len(self._stamps)


def _in_order(moved: dict[int, int]) -> Iterator[tuple[int, int]]:
    """Copies at one instant (target -> source), one after the other: nothing is overwritten that is still to be read."""
    left = dict(moved)
    while left:
        sources = set(left.values())
        ready = [target for target in left if target not in sources]
        if not ready:
            raise ProtocolError(f"blocks are copied, never exchanged, found a ring among {sorted(left)}")
        for target in ready:
            yield left.pop(target), target
