"""Stores the keys and values of new tokens in their slots.

Owns the scatter into the cache. Never: which slot a token gets, or a slot that is not listed.

What was last run where stands in `docs/last-seen.json`: suites ``kernels-interpreter``, ``kernels-compiled``,
``kernels-cuda``.
"""

from __future__ import annotations

import torch
from triton import language as tl

from engine_under_test.execution.kernels import door
from engine_under_test.execution.kernels.launch import kernel


def store_kv(
    keys: torch.Tensor, values: torch.Tensor, key_cache: torch.Tensor, value_cache: torch.Tensor, slots: torch.Tensor
) -> None:
    """Writes row i of `keys` and `values` ([n, kv_heads, head]) to slot ``slots[i]`` of the caches ([slots, kv_heads, head]).

    A negative slot marks a padding row: nothing is written for it, and its row is not read. No two rows may name one slot;
    every other slot keeps its bits. float32 or bfloat16, contiguous, all on one device; `slots` int32 or int64. Raises
    ConfigError for anything else.
    """
    door.check_cache(key_cache, value_cache)
    num_tokens, (_, kv_heads, head) = keys.shape[0] if keys.dim() else 0, key_cache.shape
    door.check_like("keys", keys, key_cache, (num_tokens, kv_heads, head))
    door.check_like("values", values, key_cache, (num_tokens, kv_heads, head))
    door.check_index("slots", slots, key_cache, (num_tokens,))
    if num_tokens == 0:
        return
    width = kv_heads * head
    lanes = 1 << (width - 1).bit_length()
    store_kernel.launch(
        keys.device, (num_tokens,), keys, values, key_cache, value_cache, slots, WIDTH=width, LANES=lanes, num_warps=4
    )


@kernel()
def store_kernel(
    keys: tl.tensor, values: tl.tensor, key_cache: tl.tensor, value_cache: tl.tensor, slots: tl.tensor,
    WIDTH: tl.constexpr, LANES: tl.constexpr,
) -> None:  # fmt: skip
    """One program a token: WIDTH = kv_heads * head numbers of each kind; LANES is WIDTH rounded up to a power of two.

    Last run: `docs/last-seen.json`, ``kernels-interpreter`` (CPU), ``kernels-compiled`` (machine code only), ``kernels-cuda``.
    """
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token).to(tl.int64)
    if slot >= 0:
        lanes = tl.arange(0, LANES)
        is_lane = lanes < WIDTH
        read = token * WIDTH + lanes
        written = slot * WIDTH + lanes
        tl.store(key_cache + written, tl.load(keys + read, mask=is_lane, other=0.0), mask=is_lane)
        tl.store(value_cache + written, tl.load(values + read, mask=is_lane, other=0.0), mask=is_lane)
