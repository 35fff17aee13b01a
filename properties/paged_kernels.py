"""The Triton kernels on a layout: how they are called, how far they may be off, and what their interpreter does meanwhile.

Owns the calls, the tolerance, and the watch over the interpreter: every address that a program touches, the order in which the
programs of a grid run, and poison in whatever is allocated. Never: a layout, a reference, or a verdict.

Tolerances: the largest errors measured under the interpreter were 2.5e-6 in float32 and, in bfloat16, 2**-7 of the result (the
interpreter cuts bfloat16 off where a GPU rounds; a GPU rounds the weights too, which adds up to 2**-9 of the values). Scores of
some height are off by some units of their last place, and weights by as much of themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.runtime.interpreter as triton_interpreter

from engine_under_test.execution import kernels
from engine_under_test.execution.kernels import decode, prefill, store, verify
from properties.paged import Paged

KERNELS = (
    store.store_kernel, decode.split_kernel, decode.reduce_kernel, prefill.prefill_kernel, verify.accept_kernel,
    verify.race_kernel,
)  # fmt: skip
TOLERANCE = {torch.float32: (2e-5, 0.0), torch.bfloat16: (4e-3, 2**-6)}  # absolute, and of the result
_OF_HEIGHT = 2**-20  # 8 units in the last place of a float32

Addresses = npt.NDArray[np.uint64]
Order = Callable[[int], Sequence[int]]  # of a grid of so many programs


def excess(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype, height: float = 0.0) -> torch.Tensor:
    """[n]: the largest error of each query, over the tolerance; infinite for what is not a number."""
    absolute, relative = TOLERANCE[dtype]
    ratios = (found.cpu().to(torch.float64) - wanted).abs() / (absolute + height * _OF_HEIGHT + relative * wanted.abs())
    return ratios.nan_to_num(nan=torch.inf).flatten(1).amax(dim=1)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Numbers as integers: NaN is equal to itself, and 0.0 not to -0.0."""
    return tensor.cpu().contiguous().view(torch.int32 if tensor.dtype == torch.float32 else torch.int16)


def run_decode(paged: Paged, device: str = "cpu", scale: float | None = None) -> torch.Tensor:
    """Padding rows have a query here (NaN) though the layout has none."""
    counts = torch.tensor([count for _, count in paged.shape.rows], dtype=torch.bool)
    queries = torch.full((len(counts), *paged.queries.shape[1:]), torch.nan, dtype=paged.shape.dtype)
    queries[counts] = paged.queries[: int(counts.sum())]
    _, keys, values, tables = paged.to(device)
    lengths = paged.lengths.to(device)
    return kernels.decode_attention(queries.to(device), keys, values, tables, lengths, paged.shape.block, scale).cpu()


def run_prefill(paged: Paged, device: str = "cpu") -> torch.Tensor:
    """[n, heads, head]."""
    queries, keys, values, tables = paged.to(device)
    starts, row_begins = paged.starts.to(device), paged.row_begins.to(device)
    return kernels.prefill_attention(queries, keys, values, tables, starts, row_begins, paged.shape.block).cpu()


# Under the interpreter


class OutsideError(Exception):
    """A program touches memory that is none of the tensors that it was given."""


class Watch:
    """The interpreter's memory accesses, each checked before it is made; with ``read``, what was read."""

    def __init__(self, interpreter: Any) -> None:
        self._interpreter = interpreter
        self._extents: tuple[tuple[int, int], ...] = ()
        self.read: list[Addresses] | None = None

    def begin(self, *arguments: Any, **_constants: Any) -> None:
        """A launch with these arguments; called by the interpreter."""
        tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
        self._extents = tuple((each.data_ptr(), each.data_ptr() + each.numel() * each.element_size()) for each in tensors)

    def load(self, addresses: Any, mask: Any, other: Any, dtype: Any) -> Any:
        touched = self._checked("reads", addresses, mask)
        if self.read is not None:
            self.read.append(np.unique(touched))
        return self._interpreter.load(addresses, mask, other, dtype)

    def store(self, addresses: Any, values: Any, mask: Any) -> Any:
        self._checked("writes", addresses, mask)
        return self._interpreter.store(addresses, values, mask)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._interpreter, name)

    def _checked(self, what: str, addresses: Any, mask: Any) -> Addresses:
        touched: Addresses = np.asarray(addresses)[np.asarray(mask, dtype=bool)].reshape(-1)
        if touched.size:
            lowest, highest = int(touched.min()), int(touched.max())
            if not any(begin <= lowest and highest < end for begin, end in self._extents):
                raise OutsideError(f"a program {what} outside of every tensor that it was given")
        return touched

    def slots_read(self, cache: torch.Tensor) -> set[int]:
        """Of a cache."""
        return set((self._offsets(cache) // np.uint64(cache.stride(0) * cache.element_size())).tolist())

    def entries_read(self, table: torch.Tensor) -> int:
        """Of a table, each once."""
        return len(self._offsets(table))

    def _offsets(self, tensor: torch.Tensor) -> Addresses:
        read = np.unique(np.concatenate(self.read or [np.empty(0, dtype=np.uint64)])).astype(np.uint64)
        begin = tensor.data_ptr()
        return read[(read >= begin) & (read < begin + tensor.numel() * tensor.element_size())] - np.uint64(begin)


@contextmanager
def watched(*, order: Order | None = None) -> Iterator[Watch]:
    """A watch over what the interpreter does inside, and the programs of each grid in the `order` of their numbers.

    The interpreter has no hook for either, so two of its names are replaced here, and nowhere else: the module that touches
    memory, and the two methods that tell a program its place.
    """
    memory = triton_interpreter._interpreter
    watch = Watch(memory)
    with ExitStack() as undone:
        for kernel in KERNELS:
            kernel.interpreted().add_pre_run_hook(watch.begin)
            undone.callback(kernel.interpreted().pre_run_hooks.remove, watch.begin)
        triton_interpreter._interpreter = watch
        undone.callback(setattr, triton_interpreter, "_interpreter", memory)
        if order is not None:
            _reorder(triton_interpreter.interpreter_builder, order, undone)
        yield watch


def _reorder(builder: Any, order: Order, undone: ExitStack) -> None:
    tell_place, tell_size = builder.set_grid_idx, builder.set_grid_dim
    places: list[tuple[int, ...]] = []

    def set_grid_dim(*size: int) -> None:
        tell_size(*size)
        grid = list(np.ndindex(*size))
        places[:] = reversed([grid[number] for number in order(len(grid))])  # the next one is the last

    def set_grid_idx(*_asked: int) -> None:
        tell_place(*places.pop())

    builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx
    undone.callback(delattr, builder, "set_grid_dim")  # what the instance had was its class's
    undone.callback(delattr, builder, "set_grid_idx")


@contextmanager
def poisoned_memory() -> Iterator[None]:
    """Inside, what torch allocates without filling it holds NaN, and integers their largest number (a mode of torch's own)."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        if not torch.empty(64).isnan().all():
            raise RuntimeError("torch does not fill what it allocates; set torch.utils.deterministic.fill_uninitialized_memory")
        yield
    finally:
        torch.use_deterministic_algorithms(before)
