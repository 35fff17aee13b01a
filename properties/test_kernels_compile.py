"""Claims about the machine code of the kernels, for compute capability 9.0 (H100, H200): compiled here, without a device.

What is asked of it is what attention of decodes needs in order to be bound by memory: keys and values come in pieces of 16
bytes and asynchronously, products run on tensor cores, and no register is spilled. Whether it computes the right thing only
a device can say (`test_kernels.py -m gpu`).
"""

from __future__ import annotations

import re
import subprocess
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget

from engine_under_test.execution.kernels import decode, noise, prefill, store
from engine_under_test.execution.kernels.launch import Kernel

CUDA = torch.device("cuda")
CACHES = {"key_cache": "", "value_cache": ""}  # of the type that is asked for


class Compiled(NamedTuple):
    ptx: str
    cubin: bytes


def compiled(
    kernel: Kernel, element: str, pointers: dict[str, str], numbers: dict[str, str], constants: dict[str, Any]
) -> Compiled:
    """`pointers`: what each points to, or "" for `element`; every tensor lies at a multiple of 16 bytes, as torch's do."""
    function = kernel.compiled()
    options = {name: constants[name] for name in ("num_warps", "num_stages") if name in constants}
    names = list(function.arg_names)
    types = {name: "*" + (kind or element) for name, kind in pointers.items()} | numbers
    source = triton.compiler.ASTSource(
        function,
        signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items() if name not in options},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in pointers},
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about defaults of the compiler to come
        found = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    return Compiled(found.asm["ptx"], found.asm["cubin"])


def split(heads: int, kv_heads: int, head: int, dtype: torch.dtype) -> Compiled:
    pointers = {"queries": "", **CACHES, "tables": "i32", "lengths": "i32", "partials": "fp32", "sums": "fp32"}
    return compiled(
        decode.split_kernel, element(dtype), pointers, {"table_width": "i32", "num_splits": "i32", "scale": "fp32"},
        decode.split_constants(heads, kv_heads, head, 16, CUDA, dtype),
    )  # fmt: skip


def chunk(heads: int, kv_heads: int, head: int, dtype: torch.dtype) -> Compiled:
    pointers = {"queries": "", **CACHES, "tables": "i32", "starts": "i32", "row_begins": "i32", "outputs": ""}
    return compiled(
        prefill.prefill_kernel, element(dtype), pointers, {"table_width": "i32", "num_rows": "i32", "scale": "fp32"},
        prefill.prefill_constants(heads, kv_heads, head, 16, CUDA, dtype),
    )  # fmt: skip


def element(dtype: torch.dtype) -> str:
    return "bf16" if dtype == torch.bfloat16 else "fp32"


def stack_bytes(code: Compiled, folder: Path) -> int:
    """What the assembler kept on the stack of a thread: spilled registers, as the kernels have no arrays of their own."""
    path = folder / "kernel.cubin"
    path.write_bytes(code.cubin)
    listing = subprocess.run(
        [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(path)], capture_output=True, text=True, check=True
    ).stdout
    found = re.search(r"STACK:(\d+)", listing)
    assert found is not None, listing
    return int(found[1])


@pytest.mark.parametrize(
    ("head", "heads", "kv_heads"),
    [pytest.param(128, 32, 8, id="32 heads over 8 of 128"), pytest.param(64, 9, 3, id="9 heads over 3 of 64")],
)
def test_decodes_load_16_bytes_asynchronously_and_multiply_on_tensor_cores(
    head: int, heads: int, kv_heads: int, tmp_path: Path
) -> None:
    code = split(heads, kv_heads, head, torch.bfloat16)
    # Keys and values of a tile, 64 positions x head x 2 bytes each, by 128 threads: at least once in the loop.
    copies = re.findall(r"cp\.async\.cg\.shared\.global \[[^]]*\], \[[^]]*\], (0x10|16)", code.ptx)
    assert len(copies) >= 2 * 64 * head * 2 // (128 * 16)
    assert "mma.sync" in code.ptx or "wgmma.mma_async" in code.ptx
    assert stack_bytes(code, tmp_path) == 0


def test_chunks_multiply_on_tensor_cores_without_spilling(tmp_path: Path) -> None:
    code = chunk(32, 8, 128, torch.bfloat16)
    assert "wgmma.mma_async" in code.ptx
    assert stack_bytes(code, tmp_path) == 0


def test_full_precision_is_not_left_to_tensor_cores_which_would_shorten_it(tmp_path: Path) -> None:
    code = split(9, 3, 64, torch.float32)
    assert "mma" not in code.ptx
    assert stack_bytes(code, tmp_path) == 0


def test_the_reduction_and_the_store_compile(tmp_path: Path) -> None:
    reduction = compiled(
        decode.reduce_kernel, "bf16", {"partials": "fp32", "sums": "fp32", "lengths": "i32", "outputs": ""},
        {"num_splits": "i32"}, {"HEADS": 32, "HEAD": 128, "SPLIT": decode.SPLIT, "PIECES": 16, "num_warps": 4},
    )  # fmt: skip
    storing = compiled(
        store.store_kernel, "bf16", {"keys": "", "values": "", **CACHES, "slots": "i64"}, {},
        {"WIDTH": 192, "LANES": 256, "num_warps": 4},
    )  # fmt: skip
    assert stack_bytes(reduction, tmp_path) == stack_bytes(storing, tmp_path) == 0


def test_the_noise_is_compiled_without_a_spilled_register() -> None:
    pointers = {"seeds": "i64", "choices": "i64", "positions": "i64", "found": "fp64"}
    found = compiled(noise.uniform_kernel, "i64", pointers, {"purpose": "i32", "num_lanes": "i32"}, {"BLOCK": 128})
    assert "st.local" not in found.ptx
    assert ".f64" in found.ptx
