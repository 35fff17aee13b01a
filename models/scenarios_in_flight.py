"""Directed stories in which two things line up in time: a release, a return or a preemption against plans in flight.

Like `models.scenarios`, whose words they use; `models.stories` says in how many shapes they are told.
"""

from __future__ import annotations

from typing import Any

from engine_under_test.types import Adapter
from models.reach import Reach
from models.scenarios import DRAIN, HOLD, LET_GO, PLAN, POLL, RESTART, ROLLBACK, STEP, Scenario, abort, add, land, spec
from properties.op import Op, OpKind


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


def preempted_again(block_size: int, depth: int) -> Scenario:
    """Three grow together; the last one is preempted, comes back when the first one ends, and is preempted again by what the
    second one still grows."""
    num_blocks = 24 // block_size
    ops = (
        add("a", 2, 8),
        add("b", 2, 20, leaves_at=0, variant=1),
        add("c", 2, 20, leaves_at=0, variant=2),
        *(STEP,) * 40,
        DRAIN,
    )
    return Scenario(
        f"preempted-again-{block_size}-{depth}",
        spec(num_blocks, block_size, max_plans_in_flight=1 + depth, prefix_cache=False),
        ops,
    )


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


def lost(block_size: int, times: int, depth: int) -> Scenario:
    """A step is lost, and perhaps its second try: half of its rows are tried again, then they end, the others unharmed."""
    loss = (PLAN,) * (depth + 1), (Op(OpKind.ABANDON),)
    ops = (
        *(add("a", 5, 6), add("b", 5, 6, leaves_at=0, variant=1), add("c", 3, 6, leaves_at=0, variant=2), STEP),
        *(*loss[0], *loss[1]) * times,
        *(STEP,) * 4,
        DRAIN,
    )
    world = spec(24, block_size, max_plans_in_flight=depth + 1)
    return Scenario(f"lost-{block_size}-{times}-{depth}", world, ops, (Reach.ABANDONED,))


def lost_once_and_on(num_rows: int) -> Scenario:
    """Behind a second try that came back everybody goes on, for long."""
    ops = (
        *(add(f"r{number}", 3, 40, leaves_at=0, variant=number) for number in range(num_rows)),
        *(STEP, PLAN, Op(OpKind.ABANDON), *(STEP,) * 30, DRAIN),
    )
    return Scenario(f"lost-once-and-on-{num_rows}", spec(32 * num_rows, 2), ops, (Reach.ABANDONED,))


def lost_in_between(max_tokens: int) -> Scenario:
    """Plans are lost in a tight pool, and one of those who wait for them is aborted: the rest is preempted and goes on."""
    ops = (
        *(add("a", 4, max_tokens), add("b", 4, max_tokens), STEP, PLAN, PLAN, PLAN),
        *(Op(OpKind.ABANDON), abort("a"), *(STEP,) * 4, DRAIN),
    )
    world = spec(5, 2, max_plans_in_flight=3)
    return Scenario(f"lost-in-between-{max_tokens}", world, ops, (Reach.ABANDONED,))


def lost_with_its_result(depth: int) -> Scenario:
    """A later plan's result has come before its turn when the plan before it is lost, and it with it."""
    ops = (add("a", 3, 8), *(PLAN,) * (depth + 1), land(depth), Op(OpKind.ABANDON), *(STEP,) * 2, DRAIN)
    world = spec(24, 2, max_plans_in_flight=depth + 1)
    return Scenario(f"lost-with-its-result-{depth}", world, ops, (Reach.ABANDONED,))


def lost_copy(block_size: int, n: int) -> Scenario:
    """Choices copy the block that they share, are aborted, and the copying plan is lost: the shared block comes back."""
    ops = (add("a", 2 * block_size - 1, 4, n=n), STEP, PLAN, abort("a"), Op(OpKind.ABANDON), STEP, DRAIN)
    return Scenario(f"lost-copy-{block_size}-{n}", spec(12, block_size), ops, (Reach.ABANDONED,))


def never_run(block_size: int, depth: int) -> Scenario:
    """Plans are lost before the device began them: nothing of theirs was filled, also where they do not write themselves."""
    ended = (add(f"a{number}", block_size - 1, leaves_at=0, variant=number) for number in range(4))
    later = (add(f"c{number}", 1, 2, leaves_at=0, variant=number) for number in range(3))
    ops = (
        *(*ended, *(STEP,) * 3, add("b", 1, 2), *(PLAN,) * (depth + 1), Op(OpKind.ABANDON, on=True)),
        *(*later, *(STEP,) * 4, DRAIN),
    )
    world = spec(9, block_size, max_plans_in_flight=depth + 1)
    return Scenario(f"never-run-{block_size}-{depth}", world, ops, (Reach.ABANDONED,))


def restarted_as_it_was(block_size: int) -> Scenario:
    """A restart leaves in memory what was there: who begins again reads none of it."""
    length = 3 * block_size + 1
    again = Op(OpKind.RESTART, on=True)
    ops = (
        *(add("a", length, 6), add("b", length, 6, leaves_at=0, variant=1), *(STEP,) * 3, again, *(STEP,) * 3),
        *(add("c", length, 2), PLAN, again, DRAIN),
    )
    return Scenario(f"restarted-as-it-was-{block_size}", spec(12, block_size), ops, (Reach.RESTARTED,))


def undone_from_quarantine(block_size: int) -> Scenario:
    """A plan that would hit blocks in quarantine is undone: they are in quarantine as before."""
    length = 2 * block_size + 1
    ops = (
        *(add("a", length, 4), STEP, HOLD, PLAN, abort("a"), add("c", length, 2), ROLLBACK),
        *(LET_GO, land(), POLL, STEP, DRAIN),
    )
    world = spec(12, block_size, max_plans_in_flight=2)
    return Scenario(f"undone-from-quarantine-{block_size}", world, ops, (Reach.ROLLED_BACK, Reach.QUARANTINED))


def settled_while_reserved(block_size: int, is_undone: bool) -> Scenario:
    """The fence that blocks wait for passes between the reservation of a plan and its launch, or its undoing."""
    length = 2 * block_size + 1
    kind = OpKind.ROLLBACK if is_undone else OpKind.PLAN
    ops = (
        *(add("a", length, 4), add("b", length, 4, leaves_at=0, variant=1), STEP, HOLD, PLAN, abort("a"), land()),
        *(add("c", 2 * length, 2, leaves_at=0, variant=2), Op(kind, on=True), STEP, POLL, STEP, DRAIN),
    )
    world = spec(16, block_size, max_plans_in_flight=2)
    return Scenario(f"settled-while-reserved-{block_size}-{is_undone}", world, ops, (Reach.QUARANTINED,))


def blamed_behind_one_who_left(num_rows: int, culprit: int) -> Scenario:
    """Of a plan one row comes to no number, and by then one before it was aborted: that row's request ends, nobody else's."""
    names = [f"r{number}" for number in range(num_rows)]
    adds = [add(name, 3, 5, leaves_at=0, variant=number) for number, name in enumerate(names)]
    ops = (*adds, STEP, PLAN, Op(OpKind.SICK_ROW, k=culprit), abort(names[0]), land(), *(STEP,) * 3, DRAIN)
    return Scenario(f"blamed-behind-one-who-left-{num_rows}-{culprit}", spec(24, 2), ops, (Reach.ABANDONED,))


def long_prompt_beside(block_size: int, budget: int) -> Scenario:
    """A prompt that does not fit beside who runs waits for its turn, and is not begun, preempted and begun again."""
    num_blocks, running = 72, 10 * block_size
    whole = (num_blocks - 10) * block_size + 1
    ops = (add("a", running, 60 * block_size), STEP, add("b", whole, 2, leaves_at=0, variant=1), DRAIN)
    world = spec(num_blocks, block_size, max_tokens_per_step=budget, prefix_cache=False)
    return Scenario(f"long-prompt-beside-{block_size}-{budget}", world, ops)


def coming_home(extra: int) -> Scenario:
    """Blocks of an aborted request are on their way home: enough for who runs, so that nobody is preempted."""
    ops = (
        add("a", 1, 5),
        add("b", 1, 5, leaves_at=0, variant=1),
        add("c", 2 + extra, 4, leaves_at=0, variant=2),
        PLAN,
        land(),
        PLAN,
        abort("c"),
        PLAN,
        land(),
        POLL,
        DRAIN,
    )
    return Scenario(f"coming-home-{extra}", spec(7 + extra, 1, max_plans_in_flight=2, max_num_seqs=3), ops)


def of_age_within_a_plan(num_urgent: int) -> Scenario:
    """One plan has room for everybody: the patient one, overtaken once, goes before the next urgent one."""
    urgent = tuple(add(f"u{number}", 3, 1, leaves_at=0, variant=number) for number in range(1, num_urgent + 1))
    ops = (add("patient", 3, 2, priority=3), *urgent, STEP, DRAIN)
    world = spec(32, 2, max_num_seqs=num_urgent, order="priority", max_overtakes=1)
    return Scenario(f"of-age-within-a-plan-{num_urgent}", world, ops)


def of_age_for_good(block_size: int) -> Scenario:
    """One that is of age runs, and begins anew when memory does; another of its kind then holds the only slot for adapters.

    "two" is overtaken while "one" has the slot; a restart lets it in before "one", which "urgent" overtakes in its turn.
    Behind the second restart "one" is first, "two" is next and has no slot: nobody enters before it.
    """
    ops = (
        *(add("one", 3, 8, priority=2, adapter=Adapter("y", 1)), STEP),
        *(add("two", 3, 8, priority=2, leaves_at=0, variant=1, adapter=Adapter("x", 1)), STEP),
        *(add("urgent", 3, 8, priority=0, leaves_at=0, variant=2), STEP, RESTART, STEP, RESTART, STEP, STEP, DRAIN),
    )
    bounds: dict[str, Any] = {
        "max_overtakes": 1,
        "max_adapter_overtakes": 1,
        "max_active_adapters": 1,
        "adapters": [["x", 1], ["y", 1]],
    }
    return Scenario(f"of-age-for-good-{block_size}", spec(64, block_size, order="priority", **bounds), ops)


def refused_behind_a_victim(block_size: int, length: int, growing: int) -> Scenario:
    """A plan of "a" alone is lost while the prompt is under way that two choices share. They part, and one of them makes room
    for the second try of "a", which is refused a block, and ends: what it leaves is not for one who waits, however urgent."""
    ops = (
        *(add("a", growing, 12), STEP, STEP, add("f", length, 6, n=2, leaves_at=0, variant=1), PLAN, PLAN),
        *(Op(OpKind.ABANDON, k=1), land(), add("urgent", 1, 2, leaves_at=0, variant=2, priority=-1)),
        *(Op(OpKind.REFUSE_BLOCK, k=1), PLAN, land(), STEP, DRAIN),
    )
    world = spec(-(-(length + 6) // block_size) + 2, block_size, order="priority", max_num_seqs=6, max_plans_in_flight=2)
    return Scenario(f"refused-behind-a-victim-{block_size}-{length}-{growing}", world, ops)


def looked_up_before_an_eviction(later: int) -> Scenario:
    """Who waits for room was told of blocks that one block's worth of growth evicts, though equal ones live on, and nobody
    publishes anything until there is room for it."""
    ops = (
        *(add("a", 7, 1), add("b", 7, 24), STEP, add("c", 5 + later, 24, leaves_at=0, variant=1), STEP),
        *(add("waits", 10, 2), *(STEP,) * (4 + later), abort("c"), STEP, DRAIN),
    )
    return Scenario(f"looked-up-before-an-eviction-{later}", spec(10, 3), ops, (Reach.DUPLICATE_EVICTED,))
