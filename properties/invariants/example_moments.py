"""The example run in moments: each valid in every column. Hand-made from the states of `examples`; only tests read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from engine_under_test.caps import DeclaredOrder
from engine_under_test.events import Counters, Event, EventKind
from engine_under_test.types import AdapterLoad, FinishReason, Output, Plan, PlannedStep, Reservation, RowId, Status
from properties.invariants.examples import (
    CACHED,
    CAPS,
    COMMITTED,
    EXECUTION,
    HELD,
    IDLE,
    IN_FLIGHT,
    KNOWN,
    KNOWN_AFTER,
    RESULT,
    STEP,
    USES,
    USES_BEFORE,
    A,
    B,
    C,
    counted,
    seen,
)
from properties.moment import AdapterFacts, ChoiceFacts, Expected, Happening, Moment

# ---- moments ---------------------------------------------------------------------------------------------------------

PLANNED = Moment(
    CAPS, Happening.PLANNED, 4, IDLE, IN_FLIGHT, KNOWN, planned=STEP, uses=USES_BEFORE, writes={3: frozenset({28})}
)
LANDED = Moment(
    CAPS,
    Happening.LANDED,
    5,
    replace(IN_FLIGHT, plans=(5, 6)),
    replace(COMMITTED, plans=(6,)),
    KNOWN_AFTER,
    landed=STEP,
    execution=EXECUTION,
    result=RESULT,
    events=(Event(EventKind.OWNED, RowId("b", 0, 1, 0), 5, (12, 11, 8)), Event(EventKind.COMMITTED, plan_id=5)),
    uses=USES,
    counters=Counters(scheduled_tokens=4, finished={FinishReason.STOP: 1}),
    recount=Counters(scheduled_tokens=4, finished={FinishReason.STOP: 1, FinishReason.ABORT: 0}),
    told_tables={s.row_id: s.table for s in COMMITTED.sequences() if s.table},
)
DELIVERED = Moment(
    CAPS,
    Happening.DELIVERED,
    6,
    COMMITTED,
    COMMITTED,
    replace(
        KNOWN_AFTER,
        choices={
            **KNOWN_AFTER.choices,
            ("d", 0, 1): ChoiceFacts(replace(B, request_id="d"), 0, 1, [30, 31, 63], FinishReason.STOP),
            ("e", 0, 1): ChoiceFacts(replace(A, request_id="e"), 0, 1, [30] * 8, FinishReason.LENGTH),
            ("f", 0, 1): ChoiceFacts(replace(C, request_id="f", deadline_s=9.0), 0, 1, [], FinishReason.DEADLINE),
        },
    ),
    outputs=(
        Output("a", 0, 1, 2, (12,)),
        Output("d", 0, 1, 0, (30,)),
        Output("d", 0, 1, 1, (31, 63), FinishReason.STOP),
        Output("e", 0, 1, 0, (30,) * 8, FinishReason.LENGTH),
        Output("f", 0, 1, 0, (), FinishReason.DEADLINE),
    ),
    uses=USES,
)
SETTLED = replace(COMMITTED, free=(5, 7), quarantined={}, unsettled=(), ref_counts=counted(1, 2, 3, 6, 8, 9, 10, 11, 12, _4=2))
POLLED = Moment(
    CAPS,
    Happening.POLLED,
    7,
    COMMITTED,
    SETTLED,
    KNOWN_AFTER,
    uses=USES,
    events=(Event(EventKind.SETTLED, plan_id=5), Event(EventKind.FREED, blocks=(7,)), Event(EventKind.FREED, blocks=(5,))),
)
ENDED = replace(
    SETTLED,
    free=(3, 5, 7, 2, 1),
    running=SETTLED.running[1:],
    ref_counts=counted(6, 8, 9, 10, 11, 12, _4=2),
)
ABORTED = Moment(
    CAPS,
    Happening.ABORTED,
    8,
    SETTLED,
    ENDED,
    replace(KNOWN_AFTER, choices={k: v for k, v in KNOWN_AFTER.choices.items() if k[0] != "a"}),
    request=A,
    is_accepted=True,
)
ROLLED_BACK = Moment(CAPS, Happening.ROLLED_BACK, 3, IDLE, IDLE, KNOWN, planned=STEP, uses=USES_BEFORE)
_FULL = replace(
    IDLE,
    free=(),
    reservations={},
    unsettled=(),
    quarantined={},
    pinned=(6, 7, 8, 9, 10, 11, 12),
    ref_counts=counted(1, 2, 3, 6, 7, 8, 9, 10, 11, 12, _4=2, _5=2),
)
NOTHING = Moment(CAPS, Happening.PLANNED, 3, _FULL, replace(_FULL), KNOWN)
ABANDONED = Moment(
    CAPS,
    Happening.ABANDONED,
    5,
    replace(IN_FLIGHT, plans=(5, 6)),
    replace(
        IDLE,
        free=(),
        quarantined={7: 3, 9: 5, 10: 5, 8: 5, 11: 5, 12: 5},
        unsettled=(3, 5),
        waiting=(),
        running=(*IDLE.running, seen(B)),
    ),
    KNOWN,
    landed=STEP,
    abandoned=(STEP,),
    uses=USES,
)
_AGAIN = replace(RESULT, plan_id=2)
STALE = Moment(
    CAPS,
    Happening.STALE,
    6,
    COMMITTED,
    replace(COMMITTED),
    KNOWN_AFTER,
    result=_AGAIN,
    uses=USES,
    events=(Event(EventKind.RESULT_DROPPED, plan_id=2),),
)
DRAINED = Moment(
    CAPS,
    Happening.DRAINED,
    9,
    IDLE,
    replace(
        IDLE,
        free=(3, 5, 6, 7, 8, 9, 10, 11, 12, 4, 2, 1),
        ref_counts=(0,) * 13,
        pinned=(),
        quarantined={},
        unsettled=(),
        waiting=(),
        running=(),
    ),
    replace(KNOWN, choices={}),
    is_audit=True,
)
_HELD = (8, 9)
LOADING = Moment(
    CAPS,
    Happening.POLLED,
    4,
    IDLE,
    replace(IDLE, free=(10, 11, 12), pinned=(6, *_HELD), ref_counts=counted(1, 2, 3, 6, *_HELD, _4=2, _5=2)),
    KNOWN,
    events=(Event(EventKind.CLAIMED, blocks=_HELD),),
)
STORING = replace(
    LANDED,
    after=replace(LANDED.after, pinned=(6, 12, 11), ref_counts=counted(1, 2, 3, 6, 8, 9, 10, _4=2, _11=2, _12=2)),
    events=(*LANDED.events, Event(EventKind.PINNED, blocks=(12, 11))),
)

# ---- variations on the theme -----------------------------------------------------------------------------------------

_HUNGRY = replace(A, prompt=tuple(range(1, 13)))
_FULL_TABLE = seen(_HUNGRY, table=(1, 2, 3), committed_len=12, visible_len=13)
_TAKING_ONE = seen(_HUNGRY, table=(1, 2, 3), reserved=(11,), committed_len=12, scheduled_len=13, visible_len=13, plans=(5,))
_TIGHT = replace(
    IDLE,
    free=(11, 12),
    quarantined={7: 3, 8: 3, 9: 3, 10: 3},
    waiting=(),
    running=(_FULL_TABLE, *IDLE.running[1:]),
)
_TAKING = PlannedStep(
    replace(
        STEP.plan,
        requests=(_HUNGRY,),
        choices=(0,),
        incarnations=(1,),
        epochs=(0,),
        starts=(12,),
        num_tokens=(1,),
        token_ids=(30,),
        num_pending=(0,),
        samples=(True,),
        hit_blocks=((),),
    ),
    Reservation(5, ((1, 2, 3, 11),), (44,), ((11,),), fills=(11,), evicted=(11,)),
)
_TAKEN = replace(
    _TIGHT,
    free=(12,),
    cached={block: entry for block, entry in CACHED.items() if block != 11},
    ref_counts=counted(1, 2, 3, 6, 11, _4=2, _5=2),
    reservations={5: (11,)},
    plans=(5,),
    unsettled=(3, 5),
    running=(
        _TAKING_ONE,
        *IDLE.running[1:],
    ),
)
_WITHOUT_11 = {block: content for block, content in HELD.items() if block != 11}
_KNOWN_WITHOUT_11 = replace(
    KNOWN,
    content_by_block=_WITHOUT_11,
    hittable=_WITHOUT_11,
    choices={**KNOWN.choices, ("a", 0, 1): ChoiceFacts(_HUNGRY, 0, 1, [30])},
)
EVICTING = Moment(
    CAPS,
    Happening.PLANNED,
    4,
    _TIGHT,
    _TAKEN,
    _KNOWN_WITHOUT_11,
    planned=_TAKING,
    uses=USES_BEFORE,
)
ON_DEMAND = replace(
    EVICTING,
    caps=replace(CAPS, evicts_on_demand=True),
    facts=replace(_KNOWN_WITHOUT_11, releases={12: 9, 11: 3, 1: 1}),
)

# Everything but a quarantined block is held, and both choices of c want to write into the block that they share.
_PREEMPTED = seen(C, 1, epoch=1, status=Status.WAITING)
_TRANSFERS = (6, 8, 9, 10, 11, 12)
PREEMPTING = replace(
    PLANNED,
    before=replace(IDLE, free=(), pinned=_TRANSFERS, ref_counts=counted(1, 2, 3, *_TRANSFERS, _4=2, _5=2)),
    after=replace(
        IN_FLIGHT,
        free=(),
        pinned=_TRANSFERS,
        ref_counts=counted(1, 2, 3, 4, 5, *_TRANSFERS),
        reservations={5: ()},
        waiting=(_PREEMPTED, *IDLE.waiting),
        running=IN_FLIGHT.running[:2],
    ),
    planned=PlannedStep(
        Plan(
            plan_id=5,
            generation=0,
            requests=(A, C),
            choices=(0, 0),
            incarnations=(1, 1),
            epochs=(0, 0),
            starts=(10, 7),
            num_tokens=(1, 1),
            token_ids=(11, 47),
            num_pending=(0, 0),
            samples=(True, True),
            hit_blocks=((), ()),
        ),
        Reservation(plan_id=5, tables=((1, 2, 3), (4, 5)), slots=(14, 23), new_blocks=((), ())),
        preempted=(RowId("c", 1, 1, 0),),
    ),
)
# b had been preempted before, and enters now; or an urgent request waits on, since b has come of age.
_RESUMED = replace(STEP.plan, epochs=(0, 0, 0, 1))
RESUMED = replace(
    PLANNED,
    before=replace(IDLE, waiting=(IDLE.waiting[0]._replace(epoch=1),)),
    after=replace(IN_FLIGHT, running=(*IN_FLIGHT.running[:3], IN_FLIGHT.running[3]._replace(epoch=1))),
    planned=replace(STEP, plan=_RESUMED),
)
_URGENT = replace(A, request_id="u", priority=-1)
_WAITS = seen(_URGENT, incarnation=2, status=Status.WAITING)
BY_PRIORITY = replace(
    PLANNED,
    caps=replace(CAPS, order=DeclaredOrder.PRIORITY, overtake_bound=1),
    before=replace(IDLE, waiting=(_WAITS, *IDLE.waiting)),
    after=replace(IN_FLIGHT, waiting=(_WAITS,)),
    facts=replace(KNOWN, choices={**KNOWN.choices, ("u", 0, 2): ChoiceFacts(_URGENT, 0, 2, [])}, aged=frozenset({("b", 0, 1)})),
)

# b and c have adapters: c's lies in slot 1, where plan 4 left it, and b's is loaded into slot 2 by plan 5.
LORA_1, LORA_2 = CAPS.adapters
_WITH_LORA = {"b": replace(B, adapter=LORA_2), "c": replace(C, adapter=LORA_1)}
_TUNED = {key: replace(each, request=_WITH_LORA.get(key[0], each.request)) for key, each in KNOWN.choices.items()}
_TUNED_FACTS = replace(
    KNOWN,
    choices=_TUNED,
    adapters=AdapterFacts({LORA_1, LORA_2}, {1: LORA_1}, {4: frozenset({1})}, overtaken={("b", 0, 1): 2}),
)
_TUNED_STEP = PlannedStep(
    replace(STEP.plan, requests=tuple(_WITH_LORA.get(each.request_id, each) for each in STEP.plan.requests)),
    replace(STEP.reservation, adapter_slots=(0, 1, 1, 2), adapter_loads=(AdapterLoad(2, LORA_2),)),
)
WITH_ADAPTERS = replace(
    PLANNED,
    caps=replace(CAPS, adapter_overtake_bound=2, max_active_adapters=2),
    before=replace(IDLE, adapters=CAPS.adapters, adapter_slots=(LORA_1, None), unsettled=(3, 4)),
    after=replace(IN_FLIGHT, adapters=CAPS.adapters, adapter_slots=(LORA_1, LORA_2), unsettled=(3, 4, 5)),
    facts=_TUNED_FACTS,
    planned=_TUNED_STEP,
)
ADAPTERS_UNDONE = replace(
    ROLLED_BACK, before=WITH_ADAPTERS.before, after=replace(WITH_ADAPTERS.before), facts=_TUNED_FACTS, planned=_TUNED_STEP
)
ADAPTER_UNLOADED = Moment(
    CAPS,
    Happening.OTHER,
    5,
    WITH_ADAPTERS.before,
    replace(WITH_ADAPTERS.before),
    replace(_TUNED_FACTS, adapters=AdapterFacts({LORA_2}, {1: LORA_1})),
    uses=USES_BEFORE,
)

# b was preempted while plan 5 was in flight: its row comes late.
_B_AGAIN = seen(B, epoch=1, status=Status.WAITING)
_LATE_BEFORE = replace(
    IN_FLIGHT,
    ref_counts=counted(1, 2, 3, 6, 9, 10, _4=2, _5=2),
    reservations={5: (9, 10)},
    quarantined={7: 3, 8: 5, 11: 5, 12: 5},
    waiting=(_B_AGAIN,),
    running=IN_FLIGHT.running[:3],
)
LATE = replace(
    LANDED,
    before=_LATE_BEFORE,
    after=replace(
        COMMITTED,
        ref_counts=counted(1, 2, 3, 6, 9, 10, _4=2),
        quarantined={7: 3, 8: 5, 11: 5, 12: 5, 5: 5},
        waiting=(_B_AGAIN,),
        running=COMMITTED.running[:3],
    ),
    events=(Event(EventKind.ROW_DROPPED, RowId("b", 0, 1, 0), 5), Event(EventKind.COMMITTED, plan_id=5)),
    told_tables={s.row_id: s.table for s in COMMITTED.running[:3] if s.table},
)
# b was aborted and its identifier bears another life.
_B_REBORN = seen(B, incarnation=2, status=Status.WAITING)
REBORN = replace(
    LATE,
    before=replace(_LATE_BEFORE, waiting=(_B_REBORN,)),
    after=replace(LATE.after, waiting=(_B_REBORN,)),
    facts=replace(KNOWN_AFTER, choices={**KNOWN_AFTER.choices, ("b", 0, 2): ChoiceFacts(B, 0, 2, [])}),
)
# The row of a has one draft, which stands: it yields two tokens.
_DRAFTING = replace(
    STEP,
    plan=replace(
        STEP.plan,
        num_tokens=(2, 1, 1, 1),
        token_ids=(11, 12, 47, 47, 28),
        num_drafts=(1, 0, 0, 0),
    ),
    reservation=replace(STEP.reservation, slots=(14, 15, 39, 43, 32)),
)
_DRAFTED = replace(IN_FLIGHT, running=(IN_FLIGHT.running[0]._replace(scheduled_len=12), *IN_FLIGHT.running[1:]))
_KEPT = {RowId("a", 0, 1, 0): 12, RowId("c", 0, 1, 0): 8, RowId("c", 1, 1, 0): 8}
WITH_DRAFTS = replace(PLANNED, after=_DRAFTED, planned=_DRAFTING, kept_drafts=_KEPT)
_VERIFIED = replace(RESULT, tokens=((12, 13), *RESULT.tokens[1:]))
VERIFIED = replace(
    LANDED,
    before=replace(_DRAFTED, plans=(5, 6)),
    after=replace(
        COMMITTED,
        plans=(6,),
        running=(COMMITTED.running[0]._replace(committed_len=12, scheduled_len=12, visible_len=13), *COMMITTED.running[1:]),
    ),
    facts=replace(KNOWN_AFTER, choices={**KNOWN_AFTER.choices, ("a", 0, 1): ChoiceFacts(A, 0, 1, [10, 11, 12, 13])}),
    landed=_DRAFTING,
    result=_VERIFIED,
    execution=replace(
        EXECUTION,
        step=_DRAFTING,
        result=_VERIFIED,
        cells=np.arange(74, dtype=np.uint64).reshape(37, 2),
        lawful=Expected(np.arange(74, dtype=np.uint64).reshape(37, 2), _VERIFIED.tokens),
        row_ends=(12, 20, 28, 37),
        changed_slots=EXECUTION.changed_slots | {15},
    ),
    kept_drafts={},
)
RADIX = Moment(
    replace(CAPS, evicts_on_demand=True, has_padding=True),
    Happening.OTHER,
    4,
    replace(IDLE, free=(8, 9, 10)),
    replace(IDLE, free=(8, 9, 10)),
    KNOWN,
)
GOOD: Mapping[str, Moment] = {
    "planned": PLANNED,
    "evicting": EVICTING,
    "on demand": ON_DEMAND,
    "preempting": PREEMPTING,
    "resumed": RESUMED,
    "by priority": BY_PRIORITY,
    "landed": LANDED,
    "with drafts": WITH_DRAFTS,
    "verified": VERIFIED,
    "landed on streams": replace(LANDED, races=(), misdeclared=()),
    "late": LATE,
    "reborn": REBORN,
    "delivered": DELIVERED,
    "polled": POLLED,
    "polled before a remote pool": replace(POLLED, caps=replace(POLLED.caps, has_remote=True, load_bound_s=2.0)),
    "a load begins": LOADING,
    "a store begins": STORING,
    "aborted": ABORTED,
    "rolled back": ROLLED_BACK,
    "nothing planned": NOTHING,
    "abandoned": ABANDONED,
    "stale": STALE,
    "drained": DRAINED,
    "a radix tree": RADIX,
    "planned with adapters": WITH_ADAPTERS,
    "rolled back with adapters": ADAPTERS_UNDONE,
    "an adapter unloaded": ADAPTER_UNLOADED,
}
