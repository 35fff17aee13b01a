"""How a kernel is launched: compiled for CUDA tensors, run by Triton's interpreter for tensors of the CPU.

Owns this choice, made by where the tensors lie and never by the environment. Never: a grid, a tile, or a check of arguments.

`triton.jit` decides at decoration between compiler and interpreter, so each function is decorated twice, when first needed.
What the interpreter can not call unless all of Triton was imported under ``TRITON_INTERPRET=1`` are Triton's own functions
that are themselves jitted (`tl.max`, `tl.sum`, `tl.zeros`, `tl.cdiv`); the kernels here use `tl.reduce` with `MAX` or `SUM`
and `tl.full` instead, so that it does not matter who imported Triton before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import triton
from triton import language as tl

# What `tl.max` and `tl.sum` reduce with: the interpreter knows these two functions and reduces in numpy; any other is called
# element by element.
MAX, SUM = tl.standard._elementwise_max, tl.standard._sum_combine
LOG2_E = 1.4426950408889634  # exp(x) = exp2(x * LOG2_E); the hardware has exp2


class Kernel:
    """One Triton function. ``function`` is what was decorated, for whoever compiles it for a device that is not here."""

    __slots__ = ("_compiled", "_interpreted", "_varying", "function")

    def __init__(self, function: Callable[..., None], varying: tuple[str, ...]) -> None:
        self.function = function
        self._varying = varying
        self._compiled: Any = None
        self._interpreted: Any = None

    def compiled(self) -> Any:
        """The `triton.JITFunction`."""
        if self._compiled is None:
            self._compiled = self._decorated(interpreted=False)
        return self._compiled

    def interpreted(self) -> Any:
        """The `triton.runtime.interpreter.InterpretedFunction`."""
        if self._interpreted is None:
            self._interpreted = self._decorated(interpreted=True)
        return self._interpreted

    def launch(self, device: torch.device, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Runs the grid on `device`, on which every tensor among `arguments` lies."""
        if device.type != "cuda":
            self.interpreted()[grid](*arguments, **constants)
            return
        with torch.cuda.device(device):
            self.compiled()[grid](*arguments, **constants)

    def _decorated(self, *, interpreted: bool) -> Any:
        with triton.knobs.runtime.scope():
            triton.knobs.runtime.interpret = interpreted
            return triton.jit(self.function, do_not_specialize=self._varying)


def kernel(*varying: str) -> Callable[[Callable[..., None]], Kernel]:
    """Decorates a Triton function. Its annotations are read by Triton: `tl.constexpr` marks what is known when it compiles.

    `varying` are numbers that come with the batch: the machine code is the same for all of them (Triton would make another one
    for 1 and for multiples of 16, and might round in another order there).
    """
    return lambda function: Kernel(function, varying)


def factor_type(device: torch.device, dtype: torch.dtype) -> Any:
    """The type in which a kernel hands numbers of `dtype` to a matrix product: the same, so that tensor cores take them.

    The interpreter multiplies the bit patterns of bfloat16 as if they were integers, so it gets float32; products of two
    bfloat16 numbers are exact in float32, and both accumulate in float32.
    """
    return tl.bfloat16 if dtype == torch.bfloat16 and device.type == "cuda" else tl.float32
