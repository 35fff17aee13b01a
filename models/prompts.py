"""Prompts that share prefixes on purpose: one endless text, and variants that leave it at a chosen position.

Pure functions of their arguments; machines, scenarios and strategies take their prompts from here, so that two requests
of one run share exactly as much as they were meant to. Never draws anything, never looks at a target.
"""

from __future__ import annotations

from engine_under_test.caps import Caps

Tokens = tuple[int, ...]


def prompt(length: int, vocab_size: int, *, leaves_at: int | None = None, variant: int = 0) -> Tokens:
    """The first `length` tokens of the text; from position `leaves_at` on those of another text, one for each variant.

    Two prompts of other variants differ from position `leaves_at` on, so that the prefix they share has exactly that
    length. Needs a vocabulary of at least 4 tokens, for the variants 1 to 3 beside the text itself (0).
    """
    leave = length if leaves_at is None else leaves_at
    return tuple((_text(at) if at < leave else _text(at) + variant % 4) % vocab_size for at in range(length))


def _text(at: int) -> int:
    """Token at a position of the one text: neither constant nor of a short period, whatever the block size."""
    return at * at + 3 * at + at // 5


def edge_lengths(caps: Caps) -> dict[str, int]:
    """The prompt lengths at which off-by-one errors live, by name; only those >= 1. "pool+1" can not be served."""
    block, budget, pool = caps.block_size, caps.max_tokens_per_step, caps.num_blocks * caps.block_size
    lengths = {
        "one": 1,
        "block-1": block - 1,
        "block": block,
        "block+1": block + 1,
        "two-blocks": 2 * block,
        "three-blocks": 3 * block,
        "budget-1": budget - 1,
        "budget": budget,
        "budget+1": budget + 1,
        "pool": pool,
        "pool+1": pool + 1,
    }
    return {name: length for name, length in lengths.items() if length >= 1}


def is_k_blocks(length: int, block_size: int) -> bool:
    """Whether a prompt of this length ends exactly where a block ends, the second or a later one."""
    return length % block_size == 0 and length >= 2 * block_size
