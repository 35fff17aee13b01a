"""The noise of `sampling/noise.py` as a kernel: the same words, and the same bits of every uniform.

Owns Philox 4x32-10 in Triton. Never: a state, an address of its own, or what a draw is used for.

What was last run where stands in `docs/last-seen.json`: suite ``kernels-interpreter``.
"""

from __future__ import annotations

import torch
from triton import language as tl

from engine_under_test.execution.kernels import door
from engine_under_test.execution.kernels.launch import kernel

_BLOCK = 128  # calls of the generator in a program, each of four lanes


def uniform(seeds: torch.Tensor, choices: torch.Tensor, positions: torch.Tensor, purpose: int, num_lanes: int) -> torch.Tensor:
    """[rows, num_lanes] float64 in (0, 1): what `seams.Noise.uniform` gives at these addresses.

    `seeds`, `choices`, `positions` [rows] int64 on one device, the last two below 2^32; seeds of 64 bits as
    `torch_noise.as_words` has them. Raises ConfigError for anything else.
    """
    rows = seeds.shape[0] if seeds.dim() else 0
    for name, column in (("seeds", seeds), ("choices", choices), ("positions", positions)):
        door.check_words(name, column, seeds, (rows,))
    found = torch.empty((rows, num_lanes), dtype=torch.float64, device=seeds.device)
    if rows and num_lanes:
        grid = (rows, -(-num_lanes // (4 * _BLOCK)))
        uniform_kernel.launch(seeds.device, grid, seeds, choices, positions, found, purpose, num_lanes, BLOCK=_BLOCK)
    return found


@kernel("purpose", "num_lanes")
def uniform_kernel(
    seeds: tl.tensor, choices: tl.tensor, positions: tl.tensor, found: tl.tensor, purpose: tl.tensor, num_lanes: tl.tensor,
    BLOCK: tl.constexpr,
) -> None:  # fmt: skip
    """One program for 4 * BLOCK lanes of a row. Words of 32 bits stand in 64, where their products have room.

    Last run: `docs/last-seen.json`, ``kernels-interpreter`` (CPU).
    """
    row = tl.program_id(0).to(tl.int64)
    quads = tl.program_id(1).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    nothing = tl.full((BLOCK,), 0, tl.uint64)
    low = tl.full((BLOCK,), 0xFFFFFFFF, tl.uint64)
    first, second = tl.full((BLOCK,), 0xD2511F53, tl.uint64), tl.full((BLOCK,), 0xCD9E8D57, tl.uint64)
    seed = tl.load(seeds + row).to(tl.uint64) + nothing
    k0, k1 = seed & low, seed >> 32
    c0 = tl.load(choices + row).to(tl.uint64) + nothing
    c1 = tl.load(positions + row).to(tl.uint64) + nothing
    c2 = nothing + purpose
    c3 = quads.to(tl.uint64)
    for _ in tl.static_range(10):
        p0, p1 = c0 * first, c2 * second
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & low, (p0 >> 32) ^ c3 ^ k1, p0 & low
        k0 = (k0 + 0x9E3779B9) & low
        k1 = (k1 + 0xBB67AE85) & low
    at = found + row * num_lanes
    lanes = 4 * quads
    tl.store(at + lanes, (c0.to(tl.float64) + 0.5) * 2.0**-32, mask=lanes < num_lanes)
    tl.store(at + lanes + 1, (c1.to(tl.float64) + 0.5) * 2.0**-32, mask=lanes + 1 < num_lanes)
    tl.store(at + lanes + 2, (c2.to(tl.float64) + 0.5) * 2.0**-32, mask=lanes + 2 < num_lanes)
    tl.store(at + lanes + 3, (c3.to(tl.float64) + 0.5) * 2.0**-32, mask=lanes + 3 < num_lanes)
