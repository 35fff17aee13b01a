"""Directed stories: fixed operations that lead to a chosen state whatever chance does, in worlds of many shapes.

Owns what one story is; which of them are told is in `models.stories`. Never owns how they are run or judged: each is a pure
value, run through the same World with every predicate (`models.machines.directed`). A story names what it must reach; that
is counted, not believed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from engine_under_test.types import Adapter, Media, Request, SamplingParams
from models.prompts import prompt
from models.reach import Reach
from properties.op import Op, OpKind

VOCAB_SIZE = 16

STEP, PLAN, POLL, DELIVER, DRAIN = (Op(kind) for kind in (OpKind.STEP, OpKind.PLAN, OpKind.POLL, OpKind.DELIVER, OpKind.DRAIN))
ROLLBACK, RESET, RESTART = (Op(kind) for kind in (OpKind.ROLLBACK, OpKind.RESET_CACHE, OpKind.RESTART))
HOLD, LET_GO = Op(OpKind.HOLD_FENCES, on=True), Op(OpKind.HOLD_FENCES, on=False)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A world to build, operations to apply, and what they must reach at least once."""

    name: str
    spec: dict[str, Any]
    ops: tuple[Op, ...]
    reaches: tuple[Reach, ...] = ()


def spec(num_blocks: int, block_size: int, *, hasher: str = "blake2b", **config: Any) -> dict[str, Any]:
    """A world of our engine: roomy but for the pool, unless said otherwise."""
    fields = {"num_blocks": num_blocks, "block_size": block_size, "max_num_seqs": 4, "vocab_size": VOCAB_SIZE}
    fields |= {"max_tokens_per_step": max(4, num_blocks * block_size), **config}
    return {"target": "assay", "config": fields, "hasher": hasher}


def add(name: str, length: int, max_tokens: int = 1, *, leaves_at: int | None = None, variant: int = 0, **fields: Any) -> Op:
    """A request for `length` tokens of the text (or of a variant of it), greedy."""
    tokens = prompt(length, VOCAB_SIZE, leaves_at=leaves_at, variant=variant)
    sampling = SamplingParams(max_tokens=max_tokens, n=fields.pop("n", 1))
    return Op(OpKind.ADD, request=Request(name, tokens, sampling, **fields))


def abort(name: str) -> Op:
    return Op(OpKind.ABORT, request_id=name)


def land(k: int = 0) -> Op:
    return Op(OpKind.LAND, k=k)


# ---- at the door ---------------------------------------------------------------------------------------------------------


def door(block_size: int, budget: int, variant: int) -> Scenario:
    """A prompt of every edge length, each run to its end; then one that can not be served."""
    pool = max(budget + 1, 3 * block_size)
    num_blocks = -(-pool // block_size) + 1
    lengths = (1, block_size - 1, block_size, block_size + 1, 3 * block_size, budget - 1, budget, budget + 1)
    ops: list[Op] = []
    for number, length in enumerate(lengths):
        if length >= 1:
            ops += [add(f"r{number}", length, 2 if length < pool else 1, variant=variant, leaves_at=0), STEP, STEP, STEP]
    ops += [add("long", num_blocks * block_size + 1), Op(OpKind.ADD, request=Request("empty", ()))]
    ops += [Op(OpKind.ADD, request=Request("odd", (VOCAB_SIZE,))), DRAIN]
    edges = (Reach.PROMPT_ONE, Reach.PROMPT_BLOCK, Reach.PROMPT_BLOCK_MORE, Reach.PROMPT_BLOCKS, Reach.PROMPT_BUDGET)
    reaches: tuple[Reach, ...] = (
        *edges,
        Reach.PROMPT_BUDGET_LESS,
        Reach.PROMPT_BUDGET_MORE,
        Reach.PROMPT_ABOVE_POOL,
        Reach.REFUSED_OTHERWISE,
    )
    if block_size > 1:
        reaches = (*reaches, Reach.PROMPT_BLOCK_LESS)
    world = spec(num_blocks, block_size, max_tokens_per_step=budget, max_num_seqs=min(2, budget))
    return Scenario(f"door {block_size=} {budget=} {variant=}", world, tuple(ops), reaches)


def same_prompt(block_size: int, length: int, *, at_once: bool, hasher: str = "blake2b") -> Scenario:
    """One prompt three times, one after the other or all at once; then its identifiers come back."""
    between = () if at_once else (STEP, STEP, STEP)
    ops: list[Op] = []
    for name in ("a", "b", "c"):
        ops += [add(name, length, 2), *between]
    ops += [DRAIN, add("a", length, 2), add("b", length + 1, 2), DRAIN]
    world = spec(4 * (length // block_size + 2), block_size, hasher=hasher)
    reaches = (Reach.SAME_PROMPT_TWICE, Reach.SAME_PROMPT_THRICE, Reach.REUSED_IDENTIFIER, Reach.WORK_AFTER_DRAIN)
    return Scenario(f"same prompt {block_size=} {length=} {at_once=} {hasher=}", world, tuple(ops), reaches)


def reloaded_adapter(block_size: int, length: int) -> Scenario:
    """One name, two versions, the same prompt: what the first computed is no hit for the second."""
    one, two = Adapter("x", 1), Adapter("x", 2)
    ops = [
        op
        for name, adapter in (("a", one), ("b", two), ("c", one), ("d", None), ("e", two))
        for op in (add(name, length, 2, adapter=adapter), STEP, STEP, STEP)
    ]
    world = spec(6 * (length // block_size + 2), block_size, adapters=[["x", 1], ["x", 2]])
    return Scenario(f"adapter reloaded {block_size=} {length=}", world, (*ops, DRAIN), (Reach.ADAPTER_RELOADED,))


def odd_requests() -> Scenario:
    """What no engine can serve, each wrong in one thing: infinite, of another type, or laid over each other."""
    good = Request("odd", (0, 1, 2, 3), SamplingParams(max_tokens=2))
    infinite = [replace(good, deadline_s=math.inf), replace(good, deadline_s=math.nan), replace(good, arrival_s=math.inf)]
    beyond = [replace(good, priority=2**31 + 1), replace(good, priority=-(2**31) - 1), replace(good, prompt=(0, True))]
    typed: list[dict[str, Any]] = [{"max_tokens": 2.0}, {"min_tokens": True}, {"n": True}, {"seed": 0.5}, {"temperature": True}]
    typed += [{"top_k": 1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": math.nan}, {"min_p": True}, {"min_p": 1.5}]
    media = [(Media("m", 0, 2), Media("m", 1, 1)), (Media("m", 1, 1), Media("m", 0, 4)), (Media("m", 3, 2),)]
    wrong = [
        *(*infinite, *beyond),
        *(replace(good, sampling=replace(good.sampling, **fields)) for fields in typed),
        *(replace(good, media=items) for items in media),
    ]
    right = replace(good, media=(Media("m", 2, 2), Media("m", 0, 2)), priority=2**31 - 1, deadline_s=1e300)
    ops = tuple(Op(OpKind.ADD, request=request) for request in (*wrong, right))
    return Scenario("odd requests", spec(12, 2), (*ops, STEP, DRAIN), (Reach.REFUSED_OTHERWISE,))


# ---- the prefix cache ----------------------------------------------------------------------------------------------------


def diverging(block_size: int, leaves_at: int, extra: int) -> Scenario:
    """Two prompts that part inside a block: a hit up to the last whole block that they share."""
    length = leaves_at + extra
    ops = (
        add("a", length, 2),
        *(STEP,) * 3,
        add("b", length, 2, leaves_at=leaves_at, variant=1),
        *(STEP,) * 3,
        add("c", length, 2, leaves_at=leaves_at, variant=2),
        DRAIN,
    )
    world = spec(4 * (length // block_size + 2), block_size)
    return Scenario(f"diverging {block_size=} {leaves_at=} {extra=}", world, ops, (Reach.DIVERGING_HIT,))


def duplicates(block_size: int, num_full: int, hasher: str = "blake2b") -> Scenario:
    """Two equal prompts computed in one plan; the first ends and its blocks are evicted while the second lives on."""
    length = num_full * block_size + 1
    num_blocks = 2 * (num_full + 1) + 3
    spare = 0 if block_size > 1 else 1  # what b still grows by
    others = (num_blocks - num_full - 1 - spare) * block_size  # everything but what b holds
    ops = (
        add("a", length, 1),
        add("b", length, max(block_size, 3 * spare)),
        STEP,
        add("c", others, 1, leaves_at=0, variant=1),
        STEP,
        add("d", length, 1),
        DRAIN,
    )
    world = spec(num_blocks, block_size, hasher=hasher)
    return Scenario(f"duplicates {block_size=} {num_full=} {hasher=}", world, ops, (Reach.DUPLICATE_EVICTED,))


def trap(block_size: int, num_free: int, need: int, hasher: str = "blake2b") -> Scenario:
    """The free queue is `num_free` blocks that the next request is about to hit, and it needs `need` more."""
    num_cached = num_free + 1
    num_blocks = num_cached + max(4, need)
    held = (num_blocks - num_free) * block_size
    ops = (
        add("x", num_cached * block_size + 1),
        STEP,
        # "a" evicts the tail of what x left and holds everything but the first `num_free` blocks of the text.
        add("a", held - block_size + 1, min(3, block_size), leaves_at=0, variant=1),
        STEP,
        add("c", (num_free + need) * block_size, 1),
        STEP,
        STEP,
        DRAIN,
    )
    reaches = {Reach.FREE_ONE: num_free == 1, Reach.FREE_NEED_LESS: num_free == need - 1, Reach.FREE_NEED: num_free == need}
    world = spec(num_blocks, block_size, hasher=hasher)
    name = f"trap {block_size=} {num_free=} {need=} {hasher=}"
    return Scenario(name, world, ops, tuple(reach for reach, holds in reaches.items() if holds))


def nothing_free(block_size: int, num_blocks: int, lacking: int) -> Scenario:
    """Everything is held by a request whose prefix the next one would hit; `lacking` slots of it are not written yet."""
    length = num_blocks * block_size - lacking
    ops = (add("a", length, lacking + 1), STEP, add("c", length, 2), STEP, STEP, DRAIN)
    return Scenario(
        f"nothing free {block_size=} {num_blocks=} {lacking=}", spec(num_blocks, block_size), ops, (Reach.FREE_NONE,)
    )


def reset(block_size: int, length: int, depth: int) -> Scenario:
    """The cache is reset while a prompt is in flight, and again with nothing in flight."""
    world = spec(
        3 * (length // block_size + 2), block_size, max_plans_in_flight=depth + 1, max_tokens_per_step=max(4, length // 2)
    )
    ops = (
        add("a", length, 3),
        *(PLAN,) * (depth + 1),
        RESET,
        add("b", length, 3),
        *(land(),) * (depth + 1),
        STEP,
        RESET,
        add("c", length, 3),
        DRAIN,
        RESET,
        add("a", length, 1),
        DRAIN,
    )
    return Scenario(f"reset {block_size=} {length=} {depth=}", world, ops, (Reach.RESET_IN_FLIGHT, Reach.RESET_IDLE))


def reset_before_first(block_size: int, length: int) -> Scenario:
    """The cache is reset while it is empty and the first prompt in flight: its result is good, and nobody may hit it."""
    world = spec(3 * (length // block_size + 2), block_size, max_plans_in_flight=2)
    ops = (add("a", length, 6), PLAN, RESET, land(), add("b", length, 2), STEP, DRAIN)
    return Scenario(f"reset before first {block_size=} {length=}", world, ops, (Reach.RESET_IN_FLIGHT,))


def reset_before_fork(block_size: int, num_chunks: int) -> Scenario:
    """The cache is reset between two chunks of a prompt that several choices share: what they compute is found by nobody."""
    length = num_chunks * 2 * block_size + 1
    world = spec(12 * num_chunks, block_size, max_tokens_per_step=2 * block_size)
    again = add("b", length, 2)
    ops = (add("a", length, 3 * block_size, n=2), STEP, RESET, *(STEP,) * (num_chunks + 4 * block_size), again, DRAIN)
    return Scenario(f"reset before fork {block_size=} {num_chunks=}", world, ops)


# ---- aborts --------------------------------------------------------------------------------------------------------------


def aborts(block_size: int, length: int, depth: int) -> Scenario:
    """One abort in every phase, a twin of each request living on."""
    world = spec(
        6 * (length // block_size + 2), block_size, max_tokens_per_step=max(4, length // 2), max_plans_in_flight=depth + 1
    )
    ops = (
        *(add("a", length, 3), abort("a"), add("a", length, 3), STEP),
        *(abort("a"), add("a", length, 3), PLAN, abort("a"), add("twin", length, 3), add("a", length, 3), land()),
        *(DRAIN, add("b", 1, 1), PLAN, land(), abort("b"), abort("b"), DELIVER),
        *(add("c", length, 3), PLAN, PLAN, abort("c"), land(1), land(), Op(OpKind.LAND_AGAIN), DRAIN),
        *(add("d", length, 3, n=2), abort("d"), add("d", length, 3, n=3), STEP, abort("d"), DRAIN),  # before they are forked
    )
    reaches = (Reach.ABORT_UNPLANNED, Reach.ABORT_BETWEEN_CHUNKS, Reach.ABORT_LAUNCHED, Reach.ABORT_UNSENT)
    return Scenario(f"aborts {block_size=} {length=} {depth=}", world, ops, reaches)


# ---- preemption ----------------------------------------------------------------------------------------------------------


def preempted(block_size: int, num_full: int, num_tokens: int, extra: int = 0, hasher: str = "blake2b") -> Scenario:
    """Two requests fill the pool; the later one is preempted when the earlier one grows, and resumes when that has ended.

    The longer the earlier one goes on (`num_tokens`), the more it evicts of the other's prefix, from the tail on: nothing,
    a part, or all of it. Which of the three is counted, not computed here.
    """
    num_blocks = 2 * num_full + 2 + extra + 2 * (block_size < 3)
    ops = (*_two_fill_the_pool(block_size, num_full, num_tokens), DRAIN)
    name = f"preempted {block_size=} {num_full=} {num_tokens=} {extra=} {hasher=}"
    return Scenario(name, spec(num_blocks, block_size, hasher=hasher), ops)


def aborted_waiting(block_size: int, num_full: int) -> Scenario:
    """The preempted one is aborted before it resumes."""
    num_blocks = 2 * num_full + 2 + 2 * (block_size < 3)
    ops = (
        *_two_fill_the_pool(block_size, num_full, (num_full + 1) * block_size),
        *(STEP,) * (2 * block_size),
        abort("b"),
        DRAIN,
    )
    name = f"aborted waiting {block_size=} {num_full=}"
    return Scenario(name, spec(num_blocks, block_size), ops, (Reach.ABORT_WAITING,))


def _two_fill_the_pool(block_size: int, num_full: int, num_tokens: int) -> tuple[Op, ...]:
    length = num_full * block_size + 1
    first = add("a", length + (block_size > 1), num_tokens, leaves_at=0, variant=1)
    return (first, add("b", length, 2 * block_size + 2), *(STEP,) * (block_size + 1))


def urgent_beside(block_size: int, num_blocks: int) -> Scenario:
    """An urgent request comes to one that is not, and both grow beyond the pool: who came first goes."""
    length = (num_blocks - 2) // 2 * block_size - 1
    ops = (
        *(add("low", length, 4 * block_size, priority=3), STEP),
        *(add("hi", length, 4 * block_size, leaves_at=0, variant=1, priority=0), *(STEP,) * 3 * block_size, DRAIN),
    )
    world = spec(num_blocks, block_size, order="priority", max_num_seqs=3)
    return Scenario(f"urgent beside {block_size=} {num_blocks=}", world, ops)


# ---- choices -------------------------------------------------------------------------------------------------------------


def forked(block_size: int, length: int, n: int, *, is_aborted: bool) -> Scenario:
    """Choices that share a partly filled block and write on."""
    ops: tuple[Op, ...] = (add("a", length, 4, n=n), add("b", length, 2), STEP, STEP)
    ops = (*ops, *(STEP,) * (length // 4), abort("a")) if is_aborted else ops
    world = spec((n + 2) * (length // block_size + 3), block_size, max_tokens_per_step=max(n + 1, 4 + length // 2))
    reaches = (Reach.FORK_PARTIAL, Reach.COPIED) if (length - 1) % block_size else ()
    return Scenario(f"forked {block_size=} {length=} {n=} {is_aborted=}", world, (*ops, DRAIN), reaches)


def no_room_to_copy(block_size: int, num_blocks: int, n: int) -> Scenario:
    """Choices share the last block of the pool, partly filled, and each wants to write on: all but the first make way."""
    ops = (add("a", num_blocks * block_size, 1, n=n), DRAIN)
    return Scenario(
        f"no room to copy {block_size=} {num_blocks=} {n=}", spec(num_blocks, block_size), ops, (Reach.FORK_PARTIAL,)
    )


# ---- overlap and faults --------------------------------------------------------------------------------------------------


def overlapped(block_size: int, depth: int, variant: int) -> Scenario:
    """Plans launched ahead, results early, late and twice, fences held over an abort, a plan lost, a restart."""
    length = 3 * block_size + 1 + variant % block_size
    world = spec(20, block_size, max_plans_in_flight=depth + 1, max_tokens_per_step=max(4, block_size))
    launch = (PLAN,) * (depth + 1)
    again = (Op(OpKind.LAND_AGAIN), Op(OpKind.LAND_AGAIN, k=1))
    ops = (
        *(add("a", length, 5), add("b", length, 4), *launch, land(depth), *again, *(land(),) * depth),
        *(HOLD, *launch, abort("a"), *(land(),) * (depth + 1), add("c", length, 3), POLL, STEP, LET_GO, POLL),
        *(*launch, Op(OpKind.ABANDON, k=depth // 2), STEP, *again, STEP, DRAIN),
        *(add("d", length, 3), ROLLBACK, *launch, RESTART, *again, STEP, DRAIN, add("a", length, 2), DRAIN),
    )
    reaches = (Reach.ABANDONED, Reach.RESTARTED, Reach.STALE_RESULT, Reach.ROLLED_BACK, Reach.QUARANTINED, Reach.ROW_DROPPED)
    deep = (Reach.DEPTH_ONE, Reach.DEPTH_TWO)[:depth]
    return Scenario(f"overlapped {block_size=} {depth=} {variant=}", world, ops, (*reaches, *deep))


def lost_chunk(block_size: int, num_blocks: int) -> Scenario:
    """The second chunk of a prompt is lost after the first one was committed; then all of it is evicted, then asked for."""
    length = num_blocks * block_size
    world = spec(num_blocks + 1, block_size, max_plans_in_flight=2, max_tokens_per_step=max(4, -(-length // 2)))
    ops = (
        *(add("a", length), PLAN, PLAN, land(), Op(OpKind.ABANDON), *(STEP,) * 6),
        *(add("b", length + block_size, leaves_at=0, variant=1), *(STEP,) * 6, add("c", length), DRAIN),
    )
    return Scenario(f"lost chunk {block_size=} {num_blocks=}", world, ops, (Reach.ABANDONED, Reach.SAME_PROMPT_TWICE))


def late(block_size: int, variant: int) -> Scenario:
    """Deadlines pass before dispatch, between chunks and while decoding."""
    ops = (
        *(add("a", 2 * block_size + 1, 6, deadline_s=1.0), add("b", 3, 6, deadline_s=2.0 + variant), STEP),
        *(Op(OpKind.ADVANCE, seconds=1.5), STEP, add("c", 5, 3, deadline_s=3.0 + variant), STEP),
        *(Op(OpKind.ADVANCE, seconds=3.0 + variant), STEP, add("d", 3, 2), DRAIN),
    )
    return Scenario(f"late {block_size=} {variant=}", spec(12, block_size, max_tokens_per_step=4), ops, (Reach.DEADLINE,))


def late_together(number: int) -> Scenario:
    """Many requests share one deadline: all of them end when it has passed."""
    adds = (add(f"r{each}", 3, 6, deadline_s=1.0) for each in range(number))
    ops = (*adds, STEP, Op(OpKind.ADVANCE, seconds=2.0), *(PLAN, land()) * 2, *(STEP,) * 3, DRAIN)
    return Scenario(f"late together {number=}", spec(3 * number, 2, max_num_seqs=number), ops, (Reach.DEADLINE,))


def late_in_turn(number: int) -> Scenario:
    """Deadlines a little apart, the last ones asked for first: each ends with its own, whoever came before it."""
    adds = (add(f"r{each}", 3, 9, deadline_s=1.0 + (number - each) / 16) for each in range(number))
    passing = (op for _ in range(number) for op in (Op(OpKind.ADVANCE, seconds=1 / 16), *(PLAN, land()) * 2))
    ops = (*adds, Op(OpKind.ADVANCE, seconds=1.0 - 1 / 32), *passing, DRAIN)
    return Scenario(f"late in turn {number=}", spec(6 * number, 2, max_num_seqs=number), ops, (Reach.DEADLINE,))


def other_media(block_size: int, hasher: str = "blake2b") -> Scenario:
    """The same tokens with another item, or with another second one in the same block: no hit."""
    one, other, third = (Media(digest, 0, block_size - 1) for digest in ("cat", "dog", "cow"))
    behind, beside = (Media(digest, block_size - 1, 1) for digest in ("cat", "dog"))
    kinds = ((one,), (other,), (third, behind), (third, beside), (other, behind), ())
    ops = [
        op
        for number, media in enumerate((*kinds, *kinds))
        for op in (add(f"r{number}", 2 * block_size + 1, 2, media=media), *(STEP,) * 3)
    ]
    return Scenario(f"other media {block_size=} {hasher=}", spec(80, block_size, hasher=hasher), (*ops, DRAIN))


def plain_path(block_size: int, switch: str) -> Scenario:
    """A switch is off; requests share prefixes all the same."""
    media = (Media("m", 1, 2),)
    ops = (
        add("a", 5, 3),
        add("b", 7, 3),
        add("c", 6, 3, media=media),
        *(STEP,) * 3,
        add("d", 7, 2, leaves_at=4, variant=2),
        DRAIN,
    )
    return Scenario(f"plain path {block_size=} {switch}", _without(switch, spec(10, block_size)), ops)


def _without(switch: str, world: dict[str, Any]) -> dict[str, Any]:
    return {**world, "config": {**world["config"], switch: False}}


def without_drains(base: Scenario) -> Scenario:
    """`base` with enough steps for everything to end instead of each drain: a drain heals, so that nothing is refused in it."""
    ops = tuple(each for op in base.ops for each in ((STEP,) * 9 if op == DRAIN else (op,)))
    return replace(base, name=f"{base.name} without drains", ops=ops)


def refused_block(base: Scenario, k: int) -> Scenario:
    """`base` once more, where the k-th block is refused; drained in the end."""
    ops = (Op(OpKind.REFUSE_BLOCK, k=k), *base.ops, DRAIN)
    return replace(base, name=f"{base.name} refuse {k=}", ops=ops, reaches=(Reach.REFUSED_BLOCK,))
