"""The states of a small valid run, for tests: right in every column, so that changing one makes one sentence wrong.

Owns hand-made values only; no engine and no model stands behind them. Pool of 12 blocks of 4 slots:

    a       decodes: 9 prompt tokens, 2 emitted; blocks 1 2 3 (1 and 2 indexed)
    b       waits with a prompt whose first 8 tokens are cached in the free blocks 12 (head) and 11 (tail)
    c       two choices, forked behind 7 of 8 prompt tokens: both own block 4 (indexed) and the partly filled block 5
    6       pinned by a transfer; 7 quarantined until plan 3, which an aborted request used; 8 9 10 empty
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from engine_under_test.caps import Caps, VictimSet
from engine_under_test.types import (
    Adapter,
    BlockCopy,
    Plan,
    PlannedStep,
    PrefixEntry,
    Request,
    Reservation,
    RowId,
    SamplingParams,
    SequenceSnapshot,
    Snapshot,
    Status,
    StepResult,
)
from properties.moment import AdapterFacts, ChoiceFacts, Content, Execution, Expected, NoiseAddress

Key = tuple[str, int, int]
SIZE = 4
CAPS = Caps(
    name="example",
    block_size=SIZE,
    num_blocks=12,
    max_tokens_per_step=16,
    max_num_seqs=8,
    max_drafts=2,
    vocab_size=64,
    progress_bound=5,
    overtake_bound=0,
    preemption_bound=2,
    max_stored_blocks=4,
    max_held_blocks=6,
    adapters=(Adapter("lora", 1), Adapter("lora", 2)),
    num_adapter_slots=2,
    has_adapter_loads=True,
    victims=VictimSet.LAST_IN_ORDER,
    is_closed_behind_victims=True,
    max_plans_in_flight=2,
    has_lookup=True,
    has_choices=True,
    has_deadlines=True,
    has_reset=True,
    has_transaction=True,
    has_fences=True,
    has_restart=True,
    has_events=True,
)


@dataclass(frozen=True, slots=True)
class Known:
    """What the models would know: `properties.moment.Facts` as plain columns."""

    content_by_block: Mapping[int, Content]
    hittable: Mapping[int, Content]
    contents: Mapping[PrefixEntry, Content]
    keys: Mapping[PrefixEntry, bytes]
    chains: Mapping[str, tuple[Content, ...]]
    choices: Mapping[Key, ChoiceFacts]
    outdated: frozenset[int] = frozenset()
    owed_hits: Mapping[Key, int] = field(default_factory=lambda: {("b", 0, 1): 2})
    retried: tuple[Key, ...] = ()
    perhaps_retried: tuple[Key, ...] = ()
    lost_twice: frozenset[Key] = frozenset()
    releases: Mapping[int, int] = field(default_factory=dict)
    overtakes: Mapping[Key, int] = field(default_factory=dict)
    aged: frozenset[Key] = frozenset()
    first: frozenset[Key] = frozenset()
    in_a_row: Mapping[Key, int] = field(default_factory=dict)
    idle: Mapping[Key, int] = field(default_factory=dict)
    late: Mapping[Key, int] = field(default_factory=dict)
    loads: Mapping[RowId, int] = field(default_factory=dict)
    time: float = 10.0
    adapters: AdapterFacts = field(default_factory=AdapterFacts)

    def translate(self, entry: PrefixEntry) -> Content | None:
        return self.contents.get(entry)

    def expected_key(self, entry: PrefixEntry) -> bytes | None:
        return self.keys.get(entry)

    def prompt_contents(self, request: Request, tokens: tuple[int, ...]) -> tuple[Content, ...]:
        return self.chains.get(request.request_id, ())[: len(tokens) // SIZE]

    def released_at(self, block: int) -> int | None:
        return self.releases.get(block)

    def choice(self, row: RowId) -> ChoiceFacts | None:
        return self.choices.get(row[:3])

    def live(self) -> Mapping[Key, ChoiceFacts]:
        return {key: choice for key, choice in self.choices.items() if choice.finish_reason is None}

    def overtaken(self) -> Mapping[Key, int]:
        return self.overtakes

    def came_of_age(self) -> Collection[Key]:
        return self.aged

    def of_age(self) -> Collection[Key]:
        return self.first

    def preemptions_in_a_row(self) -> Mapping[Key, int]:
        return self.in_a_row

    def iterations_without_token(self) -> Mapping[Key, int]:
        return self.idle

    def iterations_past_deadline(self) -> Mapping[Key, int]:
        return self.late

    def polls_past_load_bound(self) -> Mapping[RowId, int]:
        return self.loads

    def now(self) -> float:
        return self.time


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """``value`` with the one thing at ``path`` (columns, places, keys) replaced by ``new``, or by what it makes of it."""
    if not path:
        return new(value) if callable(new) else new
    step, rest = path[0], path[1:]
    if isinstance(value, Mapping):
        return {**value, step: changed(value.get(step), rest, new)}
    if isinstance(step, str):
        if isinstance(value, tuple):
            return value._replace(**{step: changed(getattr(value, step), rest, new)})  # type: ignore[attr-defined]  # a NamedTuple
        return replace(value, **{step: changed(getattr(value, step), rest, new)})
    return (*value[:step], changed(value[step], rest, new), *value[step + 1 :])


# ---- requests, entries, what is known --------------------------------------------------------------------------------

A = Request("a", tuple(range(1, 10)), SamplingParams(max_tokens=8))
B = Request(
    "b", tuple(range(20, 29)), SamplingParams(max_tokens=4, temperature=1.0, seed=7, min_tokens=1, stop_token_ids=(63,))
)
C = Request("c", tuple(range(40, 48)), SamplingParams(max_tokens=3, temperature=1.0, seed=7, n=2), deadline_s=60.0)


def _chain(name: str, tokens: tuple[int, ...]) -> tuple[list[PrefixEntry], list[Content]]:
    entries: list[PrefixEntry] = []
    contents: list[Content] = []
    for start in range(0, len(tokens) - SIZE + 1, SIZE):
        piece = tokens[start : start + SIZE]
        key = f"{name}{start}".encode()
        entries.append(PrefixEntry(key, b"ns", entries[-1] if entries else None, piece))
        contents.append(Content(b"ns", contents[-1] if contents else None, piece))
    return entries, contents


A_ENTRIES, A_CONTENTS = _chain("a", A.prompt)
B_ENTRIES, B_CONTENTS = _chain("b", B.prompt)
C_ENTRIES, C_CONTENTS = _chain("c", C.prompt)
FOREIGN = Content(b"another namespace", None, B.prompt[:SIZE])

CACHED = {1: A_ENTRIES[0], 2: A_ENTRIES[1], 4: C_ENTRIES[0], 12: B_ENTRIES[0], 11: B_ENTRIES[1]}
HELD = {1: A_CONTENTS[0], 2: A_CONTENTS[1], 4: C_CONTENTS[0], 12: B_CONTENTS[0], 11: B_CONTENTS[1]}


def _choices() -> dict[Key, ChoiceFacts]:
    return {
        ("a", 0, 1): ChoiceFacts(A, 0, 1, [10, 11]),
        ("c", 0, 1): ChoiceFacts(C, 0, 1, []),
        ("c", 1, 1): ChoiceFacts(C, 1, 1, []),
        ("b", 0, 1): ChoiceFacts(B, 0, 1, []),
    }


_ALL_ENTRIES, _ALL_CONTENTS = [*A_ENTRIES, *B_ENTRIES, *C_ENTRIES], [*A_CONTENTS, *B_CONTENTS, *C_CONTENTS]
KNOWN = Known(
    content_by_block=HELD,
    hittable=HELD,
    contents=dict(zip(_ALL_ENTRIES, _ALL_CONTENTS, strict=True)),
    keys={entry: entry.key for entry in _ALL_ENTRIES},
    chains={"a": tuple(A_CONTENTS), "b": tuple(B_CONTENTS), "c": tuple(C_CONTENTS)},
    choices=_choices(),
)


def seen(request: Request, choice: int = 0, **columns: Any) -> SequenceSnapshot:
    """A choice as a snapshot shows it; lengths follow from what is given."""
    table, reserved = columns.get("table", ()), columns.get("reserved", ())
    committed = columns.get("committed_len", 0)
    defaults: dict[str, Any] = {
        "incarnation": 1,
        "epoch": 0,
        "status": Status.RUNNING,
        "prompt_len": len(request.prompt),
        "visible_len": len(request.prompt),
        "committed_len": committed,
        "scheduled_len": committed,
        "allocated_len": (len(table) + len(reserved)) * SIZE,
        "table": table,
        "reserved": reserved,
    }
    return SequenceSnapshot(request.request_id, choice, **{**defaults, **columns})


def counted(*blocks: int, **twice: int) -> tuple[int, ...]:
    """Reference counts of the pool: 1 for each of ``blocks``, and ``_5=2`` for block 5 held twice."""
    counts = [0] * 13
    for block in blocks:
        counts[block] += 1
    for name, count in twice.items():
        counts[int(name[1:])] = count
    return tuple(counts)


# ---- the state before and behind plan 5 ------------------------------------------------------------------------------

IDLE = Snapshot(
    block_size=SIZE,
    num_blocks=12,
    generation=0,
    cache_generation=0,
    free=(8, 9, 10, 11, 12),
    cached=CACHED,
    ref_counts=counted(1, 2, 3, 6, _4=2, _5=2),
    reservations={},
    pinned=(6,),
    quarantined={7: 3},
    plans=(),
    unsettled=(3,),
    waiting=(seen(B, status=Status.WAITING),),
    running=(
        seen(A, table=(1, 2, 3), committed_len=10, visible_len=11),
        seen(C, 0, table=(4, 5), committed_len=7),
        seen(C, 1, table=(4, 5), committed_len=7),
    ),
)
STEP = PlannedStep(
    Plan(
        plan_id=5,
        generation=0,
        requests=(A, C, C, B),
        choices=(0, 0, 1, 0),
        incarnations=(1, 1, 1, 1),
        epochs=(0, 0, 0, 0),
        starts=(10, 7, 7, 8),
        num_tokens=(1, 1, 1, 1),
        token_ids=(11, 47, 47, 28),
        num_pending=(0, 0, 0, 0),
        samples=(True, True, True, True),
        hit_blocks=((), (), (), (12, 11)),
    ),
    Reservation(
        plan_id=5,
        tables=((1, 2, 3), (4, 9), (4, 10), (12, 11, 8)),
        slots=(14, 39, 43, 32),
        new_blocks=((), (9,), (10,), (8,)),
        copies=(BlockCopy(5, 9, 3), BlockCopy(5, 10, 3)),
    ),
)


def _launched(s: SequenceSnapshot, scheduled_len: int) -> SequenceSnapshot:
    found: SequenceSnapshot = changed(changed(s, ("scheduled_len",), scheduled_len), ("plans",), (5,))
    return found


IN_FLIGHT = replace(
    IDLE,
    free=(),
    ref_counts=counted(1, 2, 3, 6, 8, 9, 10, 11, 12, _4=2, _5=2),
    reservations={5: (9, 10, 12, 11, 8)},
    plans=(5,),
    unsettled=(3, 5),
    waiting=(),
    running=(
        _launched(IDLE.running[0], 11),
        _launched(IDLE.running[1], 8),
        _launched(IDLE.running[2], 8),
        seen(B, reserved=(12, 11, 8), committed_len=8, scheduled_len=9, plans=(5,)),
    ),
)
RESULT = StepResult(5, 0, tuple(STEP.plan.row_ids()), ((12,), (50,), (51,), (52,)))
COMMITTED = replace(
    IN_FLIGHT,
    cached={**CACHED, 9: C_ENTRIES[1], 10: C_ENTRIES[1]},
    ref_counts=counted(1, 2, 3, 6, 8, 9, 10, 11, 12, _4=2),
    reservations={},
    quarantined={7: 3, 5: 5},
    plans=(),
    running=(
        seen(A, table=(1, 2, 3), committed_len=11, visible_len=12),
        seen(C, 0, table=(4, 9), committed_len=8, visible_len=9),
        seen(C, 1, table=(4, 10), committed_len=8, visible_len=9),
        seen(B, table=(12, 11, 8), committed_len=9, visible_len=10),
    ),
)
USES_BEFORE: dict[int, frozenset[int]] = {3: frozenset({7})}
USES = {**USES_BEFORE, 5: frozenset({1, 2, 3, 4, 5, 8, 9, 10, 11, 12})}
_HELD_AFTER = {**HELD, 9: C_CONTENTS[1], 10: C_CONTENTS[1]}
KNOWN_AFTER = replace(
    KNOWN,
    content_by_block=_HELD_AFTER,
    hittable=_HELD_AFTER,
    choices={
        key: replace(choice, emitted=[*choice.emitted, token])
        for (key, choice), token in zip(_choices().items(), (12, 50, 51, 52), strict=True)
    },
)
_CELLS = np.arange(72, dtype=np.uint64).reshape(36, 2)
EXECUTION = Execution(
    step=STEP,
    result=RESULT,
    cells=_CELLS,
    row_ends=(11, 19, 27, 36),
    lawful=Expected(_CELLS.copy(), RESULT.tokens),
    changed_slots=frozenset({14, 39, 43, 32, 36, 37, 38, 40, 41, 42}),
    stale_slots=frozenset(),
    addresses=(NoiseAddress(7, 0, 8, 0), NoiseAddress(7, 1, 8, 0), NoiseAddress(7, 0, 9, 0)),
)
