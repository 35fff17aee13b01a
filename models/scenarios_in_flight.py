"""Directed stories in which two things line up in time: a release, a return or a preemption against plans in flight.

Like `models.scenarios`, whose words they use; `models.stories` says in how many shapes they are told.
"""

from __future__ import annotations

from models.scenarios import DRAIN, PLAN, POLL, STEP, Scenario, abort, add, land, spec


def orphaned_child(block_size: int, spare: int) -> Scenario:
    """A child waits for a longer fence than its parent: they are let go together, the child was also another's.

    a and b compute the same two blocks in parallel; a filler evicts a's second block, so that e finds a's first block and
    b's second. b is aborted with two plans in flight that use the second; e ends when the first of them lands.
    """
    length = 2 * block_size + 1
    evicting = (spare + 2) * block_size  # what is empty behind a and b, and one cached block
    ops = (
        add("a", length),
        add("b", length, 6),
        STEP,
        add("f", evicting, 1, leaves_at=0, variant=1),
        PLAN,
        abort("f"),
        land(),
        POLL,
        add("e", length),
        PLAN,
        PLAN,
        abort("b"),
        land(),
        POLL,
        land(),
        POLL,
        add("g", evicting + block_size, 1, leaves_at=0, variant=2),
        STEP,
        DRAIN,
    )
    world = spec(6 + spare, block_size, max_plans_in_flight=2, max_tokens_per_step=64)
    return Scenario(f"orphaned-child-{block_size}-{spare}", world, ops)


def early_return(num_blocks: int, max_tokens: int) -> Scenario:
    """A victim's own blocks, still in quarantine, would let it return while its old plan is in flight."""
    ops = (
        add("a", 1, num_blocks - 4),
        add("b", 1, max_tokens, leaves_at=0, variant=1),
        PLAN,
        land(),
        PLAN,
        PLAN,
        STEP,
        PLAN,
        land(),
        PLAN,
        DRAIN,
    )
    world = spec(num_blocks, 1, max_num_seqs=2, max_tokens_per_step=4, max_plans_in_flight=3)
    return Scenario(f"early-return-{num_blocks}-{max_tokens}", world, ops)


def long_prompt_beside(block_size: int, budget: int) -> Scenario:
    """A prompt that does not fit beside who runs waits for its turn, and is not begun, preempted and begun again."""
    num_blocks, running = 72, 10 * block_size
    whole = (num_blocks - 10) * block_size + 1
    ops = (add("a", running, 60 * block_size), STEP, add("b", whole, 2, leaves_at=0, variant=1), DRAIN)
    world = spec(num_blocks, block_size, max_tokens_per_step=budget, prefix_cache=False)
    return Scenario(f"long-prompt-beside-{block_size}-{budget}", world, ops)
