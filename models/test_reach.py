"""The counter of each floor counts a hand-made history rightly, and a history that differs in one thing not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from engine_under_test.caps import Caps
from engine_under_test.events import Event, EventKind
from engine_under_test.types import Adapter, FinishReason, RefusalReason, Request, RowId
from models.event_reach import EventReach
from models.prompts import edge_lengths, prompt
from models.reach import Reach, disagreements, missed, prompt_names
from models.scenarios import RESET, RESTART, STEP, abort, add, land
from properties.op import Op, OpKind
from properties.suite import Profile

CAPS = Caps("hand-made", 4, 6, 10, 4, 16, progress_bound=10, overtake_bound=0, adapters=(Adapter("x", 1), Adapter("x", 2)))
PLAN = Op(OpKind.PLAN)
LAND_AGAIN = Op(OpKind.LAND_AGAIN)

Blocks = tuple[int, ...]
Story = Sequence[tuple[Op, Sequence[Event]]]


def row(name: str, epoch: int = 0, choice: int = 0, incarnation: int = 1) -> RowId:
    return RowId(name, choice, incarnation, epoch)


def accept(op: Op, incarnation: int = 1) -> tuple[Op, list[Event]]:
    assert op.request is not None
    at = row(op.request.request_id, incarnation=incarnation)
    return op, [Event(EventKind.ACCEPTED, at, tokens=len(op.request.prompt))]


def refuse(op: Op, reason: RefusalReason) -> tuple[Op, list[Event]]:
    assert op.request is not None
    return op, [Event(EventKind.REFUSED, row(op.request.request_id, incarnation=0), reason=reason.value)]


def planned(name: str, plan: int, tokens: int, blocks: Blocks, *, hits: Blocks = (), epoch: int = 0) -> list[Event]:
    at = row(name, epoch)
    found = [Event(EventKind.HIT, at, plan, hits, len(hits) * CAPS.block_size)] if hits else []
    taken = [Event(EventKind.RESERVED, at, plan, blocks)] if blocks else []
    return [*found, *taken, Event(EventKind.SCHEDULED, at, plan, tokens=tokens)]


def launched(plan: int) -> Event:
    return Event(EventKind.LAUNCHED, plan_id=plan, tokens=1)


def committed(plan: int) -> Event:
    return Event(EventKind.COMMITTED, plan_id=plan)


def published(name: str, *blocks: int) -> Event:
    return Event(EventKind.PUBLISHED, row(name), blocks=blocks)


def finished(name: str, reason: FinishReason = FinishReason.LENGTH) -> Event:
    return Event(EventKind.FINISHED, row(name), reason=reason.value)


def ran(name: str, length: int, plan: int, blocks: tuple[int, ...]) -> Story:
    """A request that computes its prompt in one step, publishes its full blocks and ends."""
    full = blocks[: length // CAPS.block_size]
    events = [*planned(name, plan, length, blocks), launched(plan), committed(plan), published(name, *full), finished(name)]
    return (accept(add(name, length)), (STEP, [*events, Event(EventKind.FREED, blocks=tuple(reversed(blocks)))]))


HELD = (
    accept(add("a", 9, 4)),
    (PLAN, [*planned("a", 1, 9, (1, 2, 3)), launched(1)]),
)
LANDED = (*HELD, (land(), [committed(1), published("a", 1, 2)]))
DUPLICATES: Story = (
    accept(add("a", 5)),
    accept(add("b", 5, 4)),
    (
        STEP,
        [*planned("a", 1, 5, (1, 2)), *planned("b", 1, 5, (3, 4)), launched(1), committed(1), published("a", 1), finished("a")],
    ),
    (STEP, [Event(EventKind.FREED, blocks=(2, 1)), Event(EventKind.EVICTED, plan_id=2, blocks=(1,))]),
)
PREEMPTED: Story = (*LANDED, (STEP, [Event(EventKind.PREEMPTED, row("a")), Event(EventKind.FREED, blocks=(3, 2, 1))]))


def resumed(*hits: int) -> Story:
    return (*PREEMPTED, (STEP, planned("a", 2, 9, (3,), hits=hits, epoch=1)))


def trap(num_held: int, prompt_len: int) -> Story:
    """Blocks 1 and 2 hold the text and are free; others are held by "h"; the next one asks for `prompt_len` of the text."""
    held = tuple(range(3, 3 + num_held))
    return (
        *ran("a", 9, 1, (1, 2, 3)),
        accept(add("h", 4 * num_held, 4, leaves_at=0, variant=1)),
        (STEP, [*planned("h", 2, 4 * num_held, held), launched(2), committed(2)]),
        accept(add("c", prompt_len)),
        (STEP, []),
    )


GOOD_AND_BAD: dict[Reach, tuple[Story, Story]] = {
    Reach.PROMPT_ABOVE_POOL: (
        [refuse(add("a", 25), RefusalReason.TOO_LONG)],
        [refuse(add("a", 24, 2), RefusalReason.TOO_LONG)],
    ),
    Reach.REFUSED_OTHERWISE: (
        [refuse(add("a", 24, 2), RefusalReason.TOO_LONG)],
        [refuse(add("a", 25), RefusalReason.TOO_LONG)],
    ),
    Reach.SAME_PROMPT_TWICE: ([accept(add("a", 5)), accept(add("b", 5))], [accept(add("a", 5)), accept(add("b", 6))]),
    Reach.SAME_PROMPT_THRICE: (
        [accept(add("a", 5)), accept(add("b", 5)), accept(add("c", 5))],
        [accept(add("a", 5)), accept(add("b", 5)), accept(add("c", 5, tenant="t"))],
    ),
    Reach.REUSED_IDENTIFIER: ([accept(add("a", 5)), accept(add("a", 5), 2)], [accept(add("a", 5)), accept(add("b", 5), 2)]),
    Reach.ADAPTER_RELOADED: (
        [accept(add("a", 5, adapter=Adapter("x", 1))), accept(add("b", 5, adapter=Adapter("x", 2)))],
        [accept(add("a", 5, adapter=Adapter("x", 1))), accept(add("b", 5, adapter=Adapter("x", 1)))],
    ),
    Reach.DIVERGING_HIT: (
        [
            *ran("a", 9, 1, (1, 2, 3)),
            accept(add("b", 9, leaves_at=6, variant=1)),
            (STEP, planned("b", 2, 5, (3, 4), hits=(1,))),
        ],
        [
            *ran("a", 9, 1, (1, 2, 3)),
            accept(add("b", 9, leaves_at=4, variant=1)),
            (STEP, planned("b", 2, 5, (3, 4), hits=(1,))),
        ],
    ),
    Reach.DUPLICATE_EVICTED: (DUPLICATES, [DUPLICATES[0], accept(add("b", 5, 4, cache_salt="s")), *DUPLICATES[2:]]),
    Reach.FREE_NEED: (trap(4, 16), trap(3, 16)),
    Reach.FREE_NEED_LESS: (trap(4, 20), trap(4, 16)),
    Reach.RESET_IN_FLIGHT: (
        [*HELD, (RESET, [Event(EventKind.CACHE_RESET)])],
        [*LANDED, (RESET, [Event(EventKind.CACHE_RESET)])],
    ),
    Reach.RESET_IDLE: (
        [*LANDED, (RESET, [Event(EventKind.CACHE_RESET)])],
        [*HELD, (RESET, [Event(EventKind.CACHE_RESET)])],
    ),
    Reach.ABORT_UNPLANNED: ([accept(add("a", 9)), (abort("a"), [])], [*HELD, (abort("a"), [])]),
    Reach.ABORT_LAUNCHED: ([*HELD, (abort("a"), [])], [*LANDED, (abort("a"), [])]),
    Reach.ABORT_BETWEEN_CHUNKS: (
        [accept(add("a", 9)), (STEP, [*planned("a", 1, 7, (1, 2)), launched(1), committed(1)]), (abort("a"), [])],
        [accept(add("a", 9)), (STEP, [*planned("a", 1, 9, (1, 2, 3)), launched(1), committed(1)]), (abort("a"), [])],
    ),
    Reach.ABORT_WAITING: ([*PREEMPTED, (abort("a"), [])], [*resumed(1, 2), (abort("a"), [])]),
    Reach.ABORT_UNSENT: (
        [*HELD, (land(), [committed(1), finished("a")]), (abort("a"), [])],
        [*HELD, (land(), [committed(1), finished("a")]), (Op(OpKind.DELIVER), []), (abort("a"), [])],
    ),
    Reach.RESUMED_CACHED: (resumed(1, 2), resumed(1)),
    Reach.RESUMED_PARTLY: (resumed(1), resumed()),
    Reach.RESUMED_EVICTED: (resumed(), resumed(1, 2)),
    Reach.FORK_PARTIAL: (
        [accept(add("a", 6, n=2)), (STEP, [Event(EventKind.FORKED, row("a", choice=1), blocks=(1, 2))])],
        [accept(add("a", 5, n=2)), (STEP, [Event(EventKind.FORKED, row("a", choice=1), blocks=(1,))])],
    ),
    Reach.COPIED: (
        [*LANDED, (STEP, [Event(EventKind.COPIED, plan_id=2, blocks=(3, 4))])],
        [*LANDED, (STEP, [Event(EventKind.RESERVED, row("a"), 2, blocks=(3, 4))])],
    ),
    Reach.DEPTH_ONE: ([*HELD, (PLAN, [launched(2)])], [*LANDED, (PLAN, [launched(2)])]),
    Reach.DEPTH_TWO: (
        [*HELD, (PLAN, [launched(2)]), (PLAN, [launched(3)])],
        [*HELD, (PLAN, [launched(2)]), (land(), [committed(1)]), (PLAN, [launched(3)])],
    ),
    Reach.QUARANTINED: (
        [*HELD, (abort("a"), [Event(EventKind.QUARANTINED, blocks=(3,), plan_id=1)])],
        [*HELD, (abort("a"), [Event(EventKind.FREED, blocks=(3,))])],
    ),
    Reach.EARLY_RESULT: (
        [*HELD, (PLAN, [launched(2)]), (land(1), [])],
        [*HELD, (PLAN, [launched(2)]), (land(), [committed(1)])],
    ),
    Reach.STALE_RESULT: (
        [*LANDED, (LAND_AGAIN, [Event(EventKind.RESULT_DROPPED, plan_id=1)])],
        [*LANDED, (LAND_AGAIN, [])],
    ),
    Reach.ROW_DROPPED: (
        [*HELD, (abort("a"), []), (land(), [Event(EventKind.ROW_DROPPED, row("a"), 1)])],
        [*HELD, (abort("a"), []), (land(), [committed(1)])],
    ),
    Reach.ROLLED_BACK: (
        [*HELD, (Op(OpKind.ROLLBACK), [Event(EventKind.ROLLED_BACK, plan_id=2)])],
        [*HELD, (Op(OpKind.ROLLBACK), [])],
    ),
    Reach.ABANDONED: (
        [*HELD, (Op(OpKind.ABANDON), [Event(EventKind.ABANDONED, plan_id=1)])],
        [*HELD, (Op(OpKind.ABANDON), [])],
    ),
    Reach.RESTARTED: (
        [*HELD, (RESTART, [])],
        [*HELD, (RESET, [])],
    ),
    Reach.REFUSED_BLOCK: (
        [*HELD, (Op(OpKind.REFUSE_BLOCK, k=1), []), (PLAN, [Event(EventKind.ROLLED_BACK, plan_id=2, reason="refused")])],
        [*HELD, (Op(OpKind.REFUSE_BLOCK, k=0), []), (PLAN, [Event(EventKind.ROLLED_BACK, plan_id=2, reason="refused")])],
    ),
    Reach.DEADLINE: (
        [*HELD, (STEP, [finished("a", FinishReason.DEADLINE)])],
        [*HELD, (STEP, [finished("a", FinishReason.ABORT)])],
    ),
    Reach.WORK_AFTER_DRAIN: (
        [accept(add("a", 5)), (Op(OpKind.DRAIN), []), accept(add("b", 5))],
        [accept(add("a", 5)), (STEP, []), accept(add("b", 5))],
    ),
}


def count(story: Story, caps: Caps = CAPS, hasher: str = "blake2b") -> dict[str, int]:
    fold = EventReach(caps, hasher)
    for op, events in story:
        fold.see(op, events)
    return fold.counts


@pytest.mark.parametrize("name", GOOD_AND_BAD, ids=lambda name: f"{name.value} is counted once")
def test_a_history_that_reaches_it_counts_once(name: Reach) -> None:
    good, _ = GOOD_AND_BAD[name]
    assert count(good)[name.value] == 1


@pytest.mark.parametrize("name", GOOD_AND_BAD, ids=lambda name: f"not quite {name.value} is not counted")
def test_a_history_that_differs_in_one_thing_does_not_count(name: Reach) -> None:
    _, bad = GOOD_AND_BAD[name]
    assert count(bad).get(name.value, 0) == 0


def test_the_other_two_traps_need_their_own_pools() -> None:
    held_by_twin: Story = (
        accept(add("a", 23, 2)),
        (STEP, [*planned("a", 1, 23, (1, 2, 3, 4, 5, 6)), launched(1), committed(1), published("a", 1, 2, 3, 4, 5)]),
        accept(add("c", 23, 2)),
        (STEP, []),
    )
    assert count(held_by_twin)[Reach.FREE_NONE.value] == 1
    one_left = trap(5, 12)  # block 2 was taken by "h" as well: it holds 3 to 7, so the pool must have 7 blocks
    assert count(one_left, replace(CAPS, num_blocks=7))[Reach.FREE_NEED.value] == 0


@pytest.mark.parametrize("hasher", ["two_bit", "constant", "blake2b"])
def test_a_published_block_counts_for_the_hash_it_was_published_under(hasher: str) -> None:
    counts = count(LANDED, hasher=hasher)
    assert counts.get(Reach.HASH_TWO_BIT.value, 0) == (hasher == "two_bit")
    assert counts.get(Reach.HASH_CONSTANT.value, 0) == (hasher == "constant")


@pytest.mark.parametrize(
    ("length", "expected"),
    [
        pytest.param(1, {Reach.PROMPT_ONE}, id="one token"),
        pytest.param(3, {Reach.PROMPT_BLOCK_LESS}, id="one less than a block"),
        pytest.param(4, {Reach.PROMPT_BLOCK}, id="one block"),
        pytest.param(5, {Reach.PROMPT_BLOCK_MORE}, id="one more than a block"),
        pytest.param(8, {Reach.PROMPT_BLOCKS}, id="two blocks"),
        pytest.param(9, {Reach.PROMPT_BUDGET_LESS}, id="one less than the budget"),
        pytest.param(10, {Reach.PROMPT_BUDGET}, id="the budget"),
        pytest.param(11, {Reach.PROMPT_BUDGET_MORE}, id="one more than the budget"),
        pytest.param(7, set(), id="no edge at all"),
    ],
)
def test_a_prompt_stands_on_the_edges_of_its_length(length: int, expected: set[Reach]) -> None:
    assert set(prompt_names(length, CAPS.block_size, CAPS.max_tokens_per_step)) == expected
    assert set(count([accept(add("a", length))])) == {name.value for name in expected}


def test_a_floor_is_missed_by_one() -> None:
    assert missed({Reach.COPIED.value: 50}, [Reach.COPIED], Profile.PR) == ()
    assert missed({Reach.COPIED.value: 49}, [Reach.COPIED], Profile.PR) == ("copy on write: 49 of 50",)
    assert missed({}, [Reach.COPIED], Profile.QUICK) == ("copy on write: 0 of 5",)


def test_two_counts_that_differ_by_one_are_told_apart() -> None:
    assert disagreements({"restart": 2}, {"restart": 2}, [Reach.RESTARTED]) == ()
    assert len(disagreements({"restart": 2}, {"restart": 1}, [Reach.RESTARTED])) == 1


def test_prompts_share_exactly_the_prefix_that_they_were_asked_to_share() -> None:
    text = prompt(12, 16)
    for leaves_at in range(12):
        variants = [prompt(12, 16, leaves_at=leaves_at, variant=variant) for variant in (1, 2, 3)]
        for variant in variants:
            assert variant[:leaves_at] == text[:leaves_at]
            assert variant[leaves_at] != text[leaves_at]
        assert len({variant[leaves_at] for variant in variants}) == 3
    assert edge_lengths(CAPS)["pool+1"] == 25
    assert Request("a", text).prompt == text
