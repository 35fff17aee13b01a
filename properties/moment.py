"""The evidence that a predicate judges: one instant of a run, as plain values.

World makes one `Moment` for each thing that happened (a plan, a landing, an abort, ...) and hands it to every predicate. A
predicate reads it and returns a `Violation` or None; it keeps no state between moments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from engine_under_test.caps import Caps
from engine_under_test.events import Counters, Event, Misdeclared, Race
from engine_under_test.types import (
    Adapter,
    FinishReason,
    Output,
    PlannedStep,
    PrefixEntry,
    Request,
    RowId,
    Snapshot,
    StepResult,
)

if TYPE_CHECKING:
    from properties.invariants.view import View


@dataclass(frozen=True, slots=True, eq=False)
class Content:
    """What the model says a committed full block holds. Interned: equal contents are the same object."""

    namespace: bytes
    parent: Content | None
    tokens: tuple[int, ...]
    media: tuple[tuple[str, int, int], ...] = ()


@dataclass(slots=True)
class ChoiceFacts:
    """What the harness knows of one choice of one life of a request. Owned by the request model."""

    request: Request
    choice: int
    incarnation: int
    emitted: list[int]
    finish_reason: FinishReason | None = None
    epoch: int = 0


@dataclass(slots=True, eq=False)
class AdapterFacts:
    """What the harness knows of adapters. Owned by the adapter model.

    ``listed``: requests may name these. ``content``: slot -> what the loads of launched plans have put there, if nothing was
    lost. ``in_flight``: plan that has not settled -> slots that its rows read. ``used``: slot -> the last launched plan whose
    rows read it. ``lacking``: those that wait and could not enter
    with the latest plan for want of a slot; ``overtaken``: how many later ones entered while it was so.
    """

    listed: set[Adapter] = field(default_factory=set)
    content: dict[int, Adapter] = field(default_factory=dict)
    in_flight: dict[int, frozenset[int]] = field(default_factory=dict)
    used: dict[int, int] = field(default_factory=dict)
    lacking: set[tuple[str, int, int]] = field(default_factory=set)
    overtaken: dict[tuple[str, int, int], int] = field(default_factory=dict)


class Facts(Protocol):
    """What the reference models know, read-only. They learn it from plans, results and outputs alone."""

    @property
    def content_by_block(self) -> Mapping[int, Content]:
        """Each block that holds a committed full block of tokens, whether or not it can be found."""

    @property
    def hittable(self) -> Mapping[int, Content]:
        """Those of `content_by_block` that a look-up must be able to find (KV-15)."""

    @property
    def outdated(self) -> Collection[int]:
        """Those of `content_by_block` whose content was computed by a choice that began before the last reset of the cache."""

    @property
    def adapters(self) -> AdapterFacts: ...

    def translate(self, entry: PrefixEntry) -> Content | None:
        """The model's content for an entry of the target's index; None if the model never saw such content committed."""

    def expected_key(self, entry: PrefixEntry) -> bytes | None:
        """The key of the entry by docs/prefix-key.md, from its own tokens, media and namespace and its parent's key. None:
        the target's hash function is not known."""

    def prompt_contents(self, request: Request, tokens: tuple[int, ...]) -> tuple[Content, ...]:
        """The chain of contents of the full blocks of `tokens`, as far as the model has seen them committed."""

    def released_at(self, block: int) -> int | None:
        """When the last holder let go of the block: a number that rises with every release; None if it is held."""

    @property
    def owed_hits(self) -> Mapping[tuple[str, int, int], int]:
        """For each row of the latest plan that begins its epoch, how many blocks a look-up had to find (KV-15)."""

    @property
    def retried(self) -> Collection[tuple[str, int, int]]:
        """The rows of a plan that was lost, and for the first time, just before the latest plan was asked for."""

    @property
    def perhaps_retried(self) -> Collection[tuple[str, int, int]]:
        """The same of a plan of which nobody outside knows whether it was a first try: behind a refused block it may be either,
        lost or undone."""

    @property
    def lost_twice(self) -> Collection[tuple[str, int, int]]:
        """The live rows of the plan that was abandoned last, if it was their second try."""

    def choice(self, row: RowId) -> ChoiceFacts | None:
        """The choice with this request, choice and incarnation, live or ended."""

    def live(self) -> Mapping[tuple[str, int, int], ChoiceFacts]:
        """Accepted and not ended, by (request_id, choice, incarnation), in order of acceptance."""

    def overtaken(self) -> Mapping[tuple[str, int, int], int]:
        """For each waiting choice, how many that came later (in the declared order: by acceptance) were first planned
        while it waited since it last began to wait."""

    def came_of_age(self) -> Collection[tuple[str, int, int]]:
        """Live choices that may have been overtaken as often as the target states, and so may go first for good. Generous:
        every entry of a later one counts, at any time of the choice's life."""

    def of_age(self) -> Collection[tuple[str, int, int]]:
        """Live choices that were surely overtaken as often as the target states, before the latest plan. Sparing: of entries
        whose plans were lost, none counts twice."""

    def preemptions_in_a_row(self) -> Mapping[tuple[str, int, int], int]:
        """For each live choice that was preempted since it last emitted a token, how often."""

    def iterations_without_token(self) -> Mapping[tuple[str, int, int], int]:
        """For each live choice, plans made since it last emitted a token or began its epoch (while it waits: since any
        choice emitted one), counted while no fault was active."""

    def iterations_past_deadline(self) -> Mapping[tuple[str, int, int], int]:
        """For each live choice whose deadline has passed, plans asked for since it passed (SC-15)."""

    def polls_past_load_bound(self) -> Mapping[RowId, int]:
        """For each choice that waits for a load, and has done so for longer than the target states, polls since then."""

    def now(self) -> float:
        """The target's clock."""


class NoiseAddress(NamedTuple):
    seed: int
    choice: int
    position: int
    purpose: int


class Lawful(Protocol):
    """What the law says of a plan. May be worked out only when somebody asks, for many plans at once."""

    @property
    def cells(self) -> npt.NDArray[np.uint64]:
        """[n, 2]: what its rows must read."""

    @property
    def tokens(self) -> tuple[tuple[int, ...], ...]:
        """What each row samples."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What the law says, as values."""

    cells: npt.NDArray[np.uint64]
    tokens: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Execution:
    """What one launched plan did to the store, seen by the harness's device, against the law of docs/fingerprint.md."""

    step: PlannedStep
    result: StepResult
    cells: npt.NDArray[np.uint64]  # [n, 2] read through the tables after the plan's writes, rows one after the other
    row_ends: tuple[int, ...]  # end of each row in the two arrays
    lawful: Lawful
    changed_slots: frozenset[int]  # every slot of the store (padding included) whose content is not what it was
    stale_slots: frozenset[int]  # slots of the plan's new blocks that it does not write and that do not hold poison
    addresses: tuple[NoiseAddress, ...]  # each address drawn for a token of this plan


class Happening(StrEnum):
    """What a moment is about."""

    ADDED = "added"
    ABORTED = "aborted"
    PLANNED = "planned"  # a plan was reserved and launched, or the target said that nothing may run
    ROLLED_BACK = "rolled_back"  # reserve, then rollback
    LANDED = "landed"  # a plan was executed and its result handed in
    STALE = "stale"  # a result that should be dropped was handed in
    ABANDONED = "abandoned"
    DELIVERED = "delivered"
    POLLED = "polled"
    RESET = "reset"
    RESTARTED = "restarted"
    DRAINED = "drained"  # nothing is live and everything has settled
    OTHER = "other"


class _Viewed:
    """`Moment.view`: made when somebody first asks for it; from then on it is the moment's own."""

    _make: Callable[[Moment], View] | None = None

    def __set_name__(self, _owner: type, name: str) -> None:
        self._name = name

    def __get__(self, moment: Moment, _kind: type) -> View:
        if self._make is None:
            from properties.invariants.view import view_of  # which imports this module

            self._make = view_of
        found = self._make(moment)
        setattr(moment, self._name, found)
        return found


@dataclass(eq=False)
class Moment:
    """Before, what happened, after. Columns that do not apply stand at their defaults.

    A value like the others, and nobody assigns to it; not frozen, since a frozen one of 26 columns takes four times as long
    to make, several times in each step.

    ``in_flight``: plans launched before this happening, neither committed nor lost then, oldest first.
    ``uses``: for each unsettled plan (launched, fence not passed; without fences: in flight) the blocks that its rows read
    or write and its copies touch. ``writes``: likewise the slots written. Both as they were *before* this happening.
    ``is_audit``: check whole structures (every 16th step and at drains), not only what was touched.
    """

    caps: Caps
    happening: Happening
    op_index: int
    before: Snapshot
    after: Snapshot
    facts: Facts
    planned: PlannedStep | None = None
    landed: PlannedStep | None = None  # with LANDED, ABANDONED (the oldest) and STALE: the plan in question, if known
    kept_drafts: Mapping[RowId, int] | None = None  # how many tokens a proposer keeps of a row, drafts and all; None: no look
    strange_drafts: tuple[str, ...] = ()  # what it was asked or told that does not fit together, so far
    abandoned: tuple[PlannedStep, ...] = ()
    execution: Execution | None = None
    result: StepResult | None = None
    request: Request | None = None  # with ADDED and ABORTED
    is_accepted: bool = False  # with ADDED and ABORTED: what the target answered
    outputs: tuple[Output, ...] = ()
    events: tuple[Event, ...] = ()
    counters: Counters | None = None
    recount: Counters | None = None  # what the events of the run add up to so far (`properties.recount`)
    told_tables: Mapping[RowId, tuple[int, ...]] | None = None  # what each row owns by the events so far, likewise
    in_flight: tuple[PlannedStep, ...] = ()
    uses: Mapping[int, frozenset[int]] = field(default_factory=dict)
    writes: Mapping[int, frozenset[int]] = field(default_factory=dict)
    races: tuple[Race, ...] | None = None  # seen since the moment before; None: nobody watches the order of accesses
    misdeclared: tuple[Misdeclared, ...] | None = None  # likewise; None: nobody watches what operations touch
    has_fault: bool = False  # a fault is active (a refused block, held fences, ...): liveness is not judged
    is_audit: bool = False

    view = _Viewed()  # what changed from before to after, and what there is to look at (`properties.invariants.view`)
