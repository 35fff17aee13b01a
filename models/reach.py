"""What a run must have reached to count as a run: names, floors, and which floors were missed.

Owns the table of floors and the one comparison of two counts. Counting is done twice, by two who do not know each other:
`models.event_reach` folds the events and operations of a history, `models.witness` looks at the moments of a World (plans,
snapshots, answers). Neither ever asks what a generator meant to do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

from engine_under_test.caps import Caps
from engine_under_test.types import Request
from properties.suite import Profile


class Reach(StrEnum):
    """States and happenings that are counted. The value is what reports show."""

    # Prompts at the door.
    PROMPT_ONE = "prompt of 1 token"
    PROMPT_BLOCK_LESS = "prompt of block-1 tokens"
    PROMPT_BLOCK = "prompt of block tokens"
    PROMPT_BLOCK_MORE = "prompt of block+1 tokens"
    PROMPT_BLOCKS = "prompt of k*block tokens"
    PROMPT_BUDGET_LESS = "prompt of budget-1 tokens"
    PROMPT_BUDGET = "prompt of budget tokens"
    PROMPT_BUDGET_MORE = "prompt of budget+1 tokens"
    PROMPT_ABOVE_POOL = "prompt longer than the pool, refused"
    REFUSED_OTHERWISE = "refused for another reason"
    SAME_PROMPT_TWICE = "same prompt twice"
    SAME_PROMPT_THRICE = "same prompt three times"
    REUSED_IDENTIFIER = "identifier used again after its end"
    ADAPTER_RELOADED = "adapter reloaded under the same name"
    # The prefix cache.
    DIVERGING_HIT = "hit on a prefix that diverges inside a block"
    DUPLICATE_EVICTED = "identical prompts computed in parallel, one evicted"
    FREE_NONE = "next request would hit, free queue empty"
    FREE_ONE = "free queue is one block about to be hit"
    FREE_NEED_LESS = "free queue is need-1 blocks about to be hit"
    FREE_NEED = "free queue is need blocks about to be hit"
    RESET_IDLE = "cache reset, nothing in flight"
    RESET_IN_FLIGHT = "cache reset with results in flight"
    # Aborts.
    ABORT_UNPLANNED = "abort before dispatch"
    ABORT_WAITING = "abort while waiting after a preemption"
    ABORT_BETWEEN_CHUNKS = "abort between chunks"
    ABORT_LAUNCHED = "abort while launched"
    ABORT_UNSENT = "abort when finished but unsent"
    # Preemption and choices.
    RESUMED_CACHED = "preempted, resumed with the prefix cached"
    RESUMED_PARTLY = "preempted, resumed with the prefix partly cached"
    RESUMED_EVICTED = "preempted, resumed with the prefix gone"
    FORK_PARTIAL = "fork at a partial block"
    COPIED = "copy on write"
    # Overlap and faults.
    DEPTH_ONE = "plan launched behind one in flight"
    DEPTH_TWO = "plan launched behind two in flight"
    QUARANTINED = "block quarantined"
    EARLY_RESULT = "result handed in before an older one"
    STALE_RESULT = "result handed in again"
    ROW_DROPPED = "row of a result dropped"
    ROLLED_BACK = "plan rolled back"
    ABANDONED = "plan abandoned"
    RESTARTED = "restart"
    DEADLINE = "ended by deadline"
    REFUSED_BLOCK = "block refused during a reservation"
    # Drafts, where the target speculates.
    DRAFTS_NONE = "none of a row's drafts stand"
    DRAFTS_SOME = "some of a row's drafts stand"
    DRAFTS_ALL = "all of a row's drafts stand"
    DRAFTS_STOPPED = "ended inside drafts that stand"
    DRAFTS_LATE = "aborted or preempted with drafts in flight"
    DRAFTS_LOST = "row with drafts abandoned"
    DRAFTS_CUT = "fewer drafts planned than were proposed"
    DRAFTS_PASSED_OVER = "not planned, with drafts proposed"
    DRAFTS_IN_NEW_BLOCK = "block taken for drafts alone"
    DRAFTS_AHEAD = "drafts planned behind a plan in flight"
    # Adapters, where the target has slots for them.
    SLOT_FILLED = "adapter loaded into an empty slot"
    SLOT_TAKEN = "adapter loaded into the slot of another"
    SLOTS_MIXED = "several adapters in one plan"
    SLOT_AWAITED = "waited for a slot while others entered"
    SLOT_AWAITED_LONGEST = "waited for a slot up to the stated bound"
    SLOT_LOST = "load lost with its plan"
    VERSIONS_TOGETHER = "two versions of an adapter in one plan"
    UNLOADED_IN_USE = "adapter unloaded or reloaded while requests use it"
    # Grammars, where requests may have one.
    GRAMMAR_COMPLETE = "ended by a stop token where its grammar is complete"
    GRAMMAR_CUT = "ended by length with a grammar"
    GRAMMAR_AHEAD = "row with a grammar planned behind a token in flight"
    GRAMMAR_RESUMED = "preempted with a grammar and some output, resumed"
    GRAMMAR_LOST = "row with a grammar abandoned"
    GRAMMARS_MIXED = "several grammars, or some and none, in one plan"
    GRAMMAR_DRAFTS_STAND = "drafts of a row with a grammar stand"
    GRAMMAR_DRAFTS_FALL = "drafts of a row with a grammar fall"
    # Rows, where the runner keeps them.
    ROWS_KEPT = "row kept from step to step, and compared"
    # A target with a swap pool, or without a check of lengths at its door.
    RESUMED_SWAPPED = "preempted, resumed from the swap pool"
    RESUMED_ANEW = "preempted, resumed from its prompt"
    OUTGREW = "request accepted that outgrows the pool"
    # Odd hashes, and going on after a drain.
    HASH_TWO_BIT = "block published under a two-bit hash"
    HASH_CONSTANT = "block published under a constant hash"
    WORK_AFTER_DRAIN = "request accepted after a drain"


FLOOR_PR = 50

# The directed stories meet the floors; nightly tells twice as many, but not of each kind.
_SCALE = {Profile.QUICK: 0.1, Profile.PR: 1.0, Profile.NIGHTLY: 1.5}


class ReachCounts:
    """How often each was reached. The base of what counts one kind of things beside the two counts of everything."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def _count(self, name: Reach, times: int = 1) -> None:
        if times:
            self.counts[name.value] += times


def floor(profile: Profile, at_pr: int = FLOOR_PR) -> int:
    """How often each state must be reached under a profile; at least once."""
    return max(1, round(at_pr * _SCALE[profile]))


def missed(reached: Mapping[str, int], floors: Iterable[Reach], profile: Profile, at_pr: int = FLOOR_PR) -> tuple[str, ...]:
    """Those of `floors` that were not reached often enough, each with found and expected."""
    needed = floor(profile, at_pr)
    return tuple(f"{name.value}: {reached.get(name, 0)} of {needed}" for name in floors if reached.get(name, 0) < needed)


def disagreements(one: Mapping[str, int], other: Mapping[str, int], counted_by_both: Iterable[Reach]) -> tuple[str, ...]:
    """Where two independent counts of the same run differ."""
    return tuple(
        f"{name.value}: {one.get(name, 0)} by the events, {other.get(name, 0)} by the moments"
        for name in counted_by_both
        if one.get(name, 0) != other.get(name, 0)
    )


def prompt_names(length: int, block_size: int, budget: int) -> tuple[Reach, ...]:
    """The edges of length on which an accepted prompt stands (several may coincide)."""
    edges = (
        (Reach.PROMPT_ONE, length == 1),
        (Reach.PROMPT_BLOCK_LESS, length == block_size - 1),
        (Reach.PROMPT_BLOCK, length == block_size),
        (Reach.PROMPT_BLOCK_MORE, length == block_size + 1),
        (Reach.PROMPT_BLOCKS, length >= 2 * block_size and length % block_size == 0),
        (Reach.PROMPT_BUDGET_LESS, length == budget - 1),
        (Reach.PROMPT_BUDGET, length == budget),
        (Reach.PROMPT_BUDGET_MORE, length == budget + 1),
    )
    return tuple(name for name, holds in edges if holds)


def trap_names(free: Collection[int], hits: Collection[int], head: Request, caps: Caps) -> tuple[Reach, ...]:
    """What looks free is not: the next request would hit `hits`, and the free queue holds nothing but such blocks.

    `need` is what the head's prompt needs beyond its hits; a count of free blocks that is compared with it before the hits
    are taken out admits a request that does not fit.
    """
    if not hits or not set(free) <= set(hits):
        return ()
    need = -(-len(head.prompt) // caps.block_size) - len(hits)
    edges = (
        (Reach.FREE_NONE, 0),
        (Reach.FREE_ONE, 1),
        (Reach.FREE_NEED_LESS, need - 1),
        (Reach.FREE_NEED, need),
    )
    return tuple(name for name, count in edges if len(free) == count)


def is_reload(request: Request, earlier: Iterable[Request]) -> bool:
    """Its adapter was in use before under the same name and another version."""
    adapter = request.adapter
    return adapter is not None and any(
        other.adapter is not None and other.adapter.name == adapter.name and other.adapter.version != adapter.version
        for other in earlier
    )


def is_diverging(request: Request, num_cached: int, earlier: Iterable[Request], caps: Caps) -> bool:
    """It found exactly the whole blocks that it shares with an earlier prompt that it leaves inside a block."""
    for other in earlier:
        shared = shared_prefix(request.prompt, other.prompt)
        leaves_inside = shared % caps.block_size and shared < min(len(request.prompt), len(other.prompt))
        if leaves_inside and num_cached == shared // caps.block_size * caps.block_size:
            return True
    return False


def shared_prefix(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    """How many tokens two prompts have in common at their start."""
    shared = 0
    for mine, yours in zip(one, other, strict=False):
        if mine != yours:
            break
        shared += 1
    return shared
