"""Which directed stories are told, in how many shapes: enough of each to reach its floor, by construction.

Owns the loops over the parameters of `models.scenarios` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from models.scenarios import (
    Scenario,
    aborted_waiting,
    aborts,
    diverging,
    door,
    duplicates,
    forked,
    late,
    late_in_turn,
    late_together,
    lost_chunk,
    no_room_to_copy,
    nothing_free,
    odd_requests,
    other_media,
    overlapped,
    plain_path,
    preempted,
    reloaded_adapter,
    reset,
    reset_before_first,
    reset_before_fork,
    same_prompt,
    trap,
    urgent_beside,
    without_drains,
)
from models.scenarios_in_flight import (
    blamed_behind_one_who_left,
    coming_home,
    early_return,
    long_prompt_beside,
    looked_up_before_an_eviction,
    lost,
    lost_copy,
    lost_in_between,
    lost_once_and_on,
    lost_with_its_result,
    never_run,
    of_age_for_good,
    of_age_within_a_plan,
    orphaned_child,
    preempted_again,
    refused_behind_a_victim,
    restarted_as_it_was,
    settled_while_reserved,
    undone_from_quarantine,
)


def stories(copies: int) -> Iterator[Scenario]:
    """Every story once, in the shapes that reach its floor; `copies` 1 is enough for the floors of quick, 6 for those of pr."""
    yield from {story.name: story for family in _FAMILIES for story in family(copies)}.values()


def _in_flight(copies: int) -> Iterator[Scenario]:
    for block_size, spare in product((2, 3, 4), range(3, 4 + copies)):
        yield orphaned_child(block_size, spare)
    for block_size, depth in product((1, 2), range(min(copies, 3))):
        yield preempted_again(block_size, depth)
    for num_blocks, max_tokens in product((7, 8, 9), range(4, 5 + copies)):
        yield early_return(num_blocks, max_tokens)
    for block_size in (2, 3):
        yield long_prompt_beside(block_size, 24 * block_size)
        yield coming_home(block_size)
        yield of_age_within_a_plan(block_size + 1)
        yield of_age_for_good(block_size)
        yield looked_up_before_an_eviction(block_size - 1)
    for block_size, length, growing in ((3, 5, 4), (4, 6, 2), (5, 4, 3)):
        yield refused_behind_a_victim(block_size, length, growing)
    for block_size, times, depth in product((1, 2), (1, 2, 3), range(min(copies, 3))):
        yield lost(block_size, times, depth)
    for number in (2, 3):
        yield lost_once_and_on(number)
        yield lost_copy(number + 1, number)
        yield undone_from_quarantine(number)
        yield restarted_as_it_was(number)
        yield blamed_behind_one_who_left(number + 1, number - 1)
        for is_undone in (False, True):
            yield settled_while_reserved(number, is_undone)
    for block_size, depth in product((3, 4, 5), range(min(copies, 3))):
        yield never_run(block_size, depth)
    for max_tokens in range(5, 8)[: copies + 1]:  # more would not fit in the pool
        yield lost_in_between(max_tokens)
    for depth in range(1, min(copies, 2) + 1):
        yield lost_with_its_result(depth)


def _door(copies: int) -> Iterator[Scenario]:
    for block_size, budget, variant in product((1, 2, 3, 4, 5, 8), (4, 7, 10), range(copies // 2 + 1)):
        yield door(block_size, budget, variant)
    yield odd_requests()


def _prompts(copies: int) -> Iterator[Scenario]:
    for block_size, at_once, extra in product((1, 2, 4), (False, True), range(copies)):
        yield same_prompt(block_size, 2 * block_size + extra, at_once=at_once)
        yield reloaded_adapter(block_size, 2 * block_size + extra + at_once)


def _cache(copies: int) -> Iterator[Scenario]:
    for block_size, extra in product((2, 3, 4), range(1, copies + 1)):
        for inside in (1, block_size - 1):
            yield diverging(block_size, 2 * block_size + inside, extra)
        yield other_media(block_size)
    for block_size, num_full in product((1, 2, 3, 4, 5), range(1, copies + 2)):
        yield duplicates(block_size, num_full)
        yield nothing_free(block_size + 1, num_full + 1, 1)
        yield nothing_free(block_size + 2, num_full + 1, 2)
    for block_size, num_free in product((2, 3, 4, 5, 6), range(1, copies + 2)):
        for need in (1, num_free, num_free + 1):
            yield trap(block_size, num_free, need)
            yield trap(block_size, 1, need + num_free)


def _resets_and_aborts(copies: int) -> Iterator[Scenario]:
    for block_size, extra, depth in product((1, 2, 4), range(copies), (0, 1, 2)):
        yield reset(block_size, 2 * block_size + 3 + extra, depth)
        yield aborts(block_size, 2 * block_size + 8 + extra, depth)
    for block_size, extra in product((1, 2, 4), range(copies)):
        yield reset_before_first(block_size, 2 * block_size + 1 + extra)
        yield reset_before_fork(block_size + 1, 2 + extra)


def _preemptions(copies: int) -> Iterator[Scenario]:
    for block_size, num_full in product((1, 2), range(2, 3 + copies)):
        for num_tokens in range(3, 3 + 3 * block_size):
            yield preempted(block_size, num_full, num_tokens, extra=1)
            yield preempted(block_size, num_full, num_tokens + block_size)
    for block_size, num_full, extra in product((3, 4), range(2, 3 + copies), (0, 1)):
        whole = (num_full + 1 + extra) * block_size  # the earlier one goes on for so long that it evicts everything
        for num_tokens in (block_size + extra, block_size + 2, 2 * block_size, whole, whole + 1, whole + 2):
            yield preempted(block_size, num_full, num_tokens, extra)
    for block_size, num_full in product((1, 2, 3, 4), range(3, 4 + 2 * copies)):
        yield aborted_waiting(block_size, num_full)
    for block_size, num_blocks in product((2, 3), (8, 10)):
        yield urgent_beside(block_size, num_blocks)


def _choices(copies: int) -> Iterator[Scenario]:
    for block_size, extra, n in product((2, 3, 4), range(copies), (2, 3)):
        for is_aborted in (False, True):
            yield forked(block_size, block_size * (1 + extra % 3) + 2 + extra % (block_size - 1), n, is_aborted=is_aborted)
    for block_size, num_blocks, n in product((2, 3), (2, 3), (2, 3)):
        yield no_room_to_copy(block_size, num_blocks, n)


def _overlap(copies: int) -> Iterator[Scenario]:
    for block_size, depth, variant in product((1, 2, 4), (0, 1, 2), range(copies)):
        yield overlapped(block_size, depth, variant)
    for block_size, num_blocks in product((2, 3, 4), range(4, 6 + copies)):
        yield lost_chunk(block_size, num_blocks)
    for block_size, variant in product((1, 2, 4), range(2 * copies)):
        yield late(block_size, variant)
    for number in (3, 8):
        yield late_together(number)
        yield late_in_turn(number)
    for block_size, switch in product((1, 3), ("prefix_cache", "batching", "chunking")):
        yield plain_path(block_size, switch)


_FAMILIES: tuple[Callable[[int], Iterator[Scenario]], ...] = (
    _door,
    _prompts,
    _cache,
    _resets_and_aborts,
    _preemptions,
    _choices,
    _overlap,
    _in_flight,
)


def odd_hash_stories(hasher: str, copies: int) -> Iterator[Scenario]:
    """The stories about the index, under a hash that collides."""
    for block_size, extra in product((1, 2, 4), range(copies)):
        for at_once in (False, True):
            yield same_prompt(block_size, 2 * block_size + 1 + extra, at_once=at_once, hasher=hasher)
        yield duplicates(block_size, 1 + extra % 3, hasher)
        yield trap(block_size + 1, 1 + extra % 3, 2, hasher)
        yield preempted(block_size, 2 + extra % 3, 3 * block_size, 0, hasher)
        yield other_media(block_size + 1, hasher)


def refusal_bases(copies: int) -> Iterator[Scenario]:
    """Small worlds, each short enough to refuse every block of it in turn."""
    bases = (preempted(2, 2, 5), forked(2, 4, 2, is_aborted=False), duplicates(2, 2))
    deep = (overlapped(2, depth, 0) for depth in (0, 1, 2)[: max(1, copies - 1)])
    yield from map(without_drains, (*bases, *deep))
