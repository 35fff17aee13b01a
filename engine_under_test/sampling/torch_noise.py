"""The noise of `noise.py` as tensors, on whatever device they are wanted: the same words, and the same bits of every uniform.

Owns: Philox 4x32-10 in 64-bit integers of torch. Never: a state, an address of its own, or what a draw is used for.
"""

from __future__ import annotations

import torch

_ROUNDS = 10
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF = 0xFFFFFFFF, 0xFFFF


def philox4x32(counters: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Ten rounds: counters [4, n] and keys [2, n], int64 words below 2^32, give output words [n, 4]."""
    c0, c1, c2, c3 = counters
    k0, k1 = keys
    for _ in range(_ROUNDS):
        (high0, low0), (high1, low1) = _product(c0, _M0), _product(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _W0) & _LOW, (k1 + _W1) & _LOW
    return torch.stack((c0, c1, c2, c3), dim=1)


def _product(word: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Both halves of a product of 32-bit words. Signed integers have no room for it, so it is put together of two parts."""
    upper, lower = (word >> 16) * factor, (word & _HALF) * factor
    middle = upper + (lower >> 16)  # the product, less its last 16 bits
    return middle >> 16, ((middle & _HALF) << 16) | (lower & _HALF)


def uniform(seeds: torch.Tensor, choices: torch.Tensor, positions: torch.Tensor, purpose: int, num_lanes: int) -> torch.Tensor:
    """What `Noise.uniform` gives, [rows, num_lanes] float64, from int64 columns; a seed of 64 bits stands there as its two's
    complement (`as_words`)."""
    rows, quads = len(seeds), -(-num_lanes // 4)
    counters = torch.empty((4, rows, quads), dtype=torch.int64, device=seeds.device)
    counters[0], counters[1], counters[2] = choices[:, None], positions[:, None], purpose
    counters[3] = torch.arange(quads, device=seeds.device)
    keys = torch.stack((seeds & _LOW, (seeds >> 32) & _LOW))[:, :, None].expand(2, rows, quads)
    words = philox4x32(counters.reshape(4, -1), keys.reshape(2, -1))
    return (words.reshape(rows, quads * 4)[:, :num_lanes].double() + 0.5) * 2.0**-32


def as_words(seeds: list[int], device: torch.device | None = None) -> torch.Tensor:
    """Seeds in 0 .. 2^64 - 1 as int64 with the same bits."""
    return torch.tensor([seed - (seed >> 63 << 64) for seed in seeds], dtype=torch.int64, device=device)
