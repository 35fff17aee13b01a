"""Whether an engine makes use of its remote pool: asks for what it lacks, stores what it has computed, drops what nobody wants.

Owns the second account of that, kept from what travels, from events and from snapshots; safety is `models.link_account` and
`properties.kv_wire`. Never: which requests wait, or what they hold, which the target shows.

    DI-5  whoever waits and lacks blocks is asked for in the first poll in which the link has room; what a commit made visible
          is stored with it, if the link and the stated share have room; a load goes on only while its request waits
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from engine_under_test.caps import Caps
from engine_under_test.distributed.connector import Connector
from engine_under_test.distributed.protocol import State
from engine_under_test.events import Event, EventKind
from engine_under_test.types import RowId, SequenceSnapshot, Snapshot
from models.facts import ModelFacts
from properties.invariants.predicate import blocks_named, row_named, violation
from properties.verdict import Violation


class LinkUse:
    """``is_up``: there is a connection."""

    def __init__(self, connector: Connector, is_up: Callable[[], bool]) -> None:
        self._connector = connector
        self._is_up = is_up
        self._asked: set[RowId] = set()  # since its memory began, and its cache was emptied
        self._stored: set[int] = set()  # blocks of the stores that began since the last look

    def began_anew(self) -> None:
        """The engine's memory, or its prefix cache: who waits may be asked for once more."""
        self._asked.clear()

    def asked(self, row: RowId) -> None:
        self._asked.add(row)

    def store_began(self, blocks: Collection[int]) -> None:
        self._stored.update(blocks)

    def polled(self, after: Snapshot, facts: ModelFacts, waits: Collection[int]) -> Violation | None:
        """``waits``: the loads for which somebody waits."""
        self._stored.clear()
        for each in self._connector.transfers.values():
            if not each.opened.is_store and each.state is not State.ABORTING and each.number not in waits:
                return violation(
                    "DI-5", f"load {each.number}", "goes on, and nobody waits for it", "an end with its request's wait"
                )
        if not self._has_room(is_store=False):
            return None
        for sequence in after.waiting[: facts.caps.num_sought]:
            if (row := sequence.row_id) not in self._asked and _lacks_blocks(sequence, facts):
                found = "waits, lacks blocks, and was not asked for while the link has room"
                return violation("DI-5", row_named(row), found, "one question within the poll")
        return None

    def landed(self, events: tuple[Event, ...], before: Snapshot, after: Snapshot, caps: Caps) -> Violation | None:
        """A commit: what it made visible is stored."""
        stored, self._stored = self._stored, set()
        if not self._has_room(is_store=True):
            return None
        most = caps.max_stored_blocks - len(set(after.pinned))
        tables = {each.row_id: (*each.table, *each.reserved) for each in before.sequences()}
        for event in events:
            if event.kind is not EventKind.PUBLISHED or event.row is None or stored.issuperset(event.blocks):
                continue
            table = tables.get(event.row, ())
            if event.blocks[-1] in table and table.index(event.blocks[-1]) < most:
                found = f"{blocks_named(event.blocks)} visible, and no store of it while the link and the share have room"
                return violation("DI-5", row_named(event.row), found, "a store with the commit")
        return None

    def _has_room(self, *, is_store: bool) -> bool:
        connector = self._connector
        most = connector.config.max_stores if is_store else connector.config.max_loads
        under_way = sum(each.opened.is_store is is_store for each in connector.transfers.values())
        return self._is_up() and connector.session is State.OPEN and under_way < most


def _lacks_blocks(sequence: SequenceSnapshot, facts: ModelFacts) -> bool:
    """Whether it could find more than the engine itself holds. Whoever is told of its whole prompt looks for nothing."""
    choice = facts.choice(sequence.row_id)
    return choice is not None and choice.request.sampling.prompt_logprobs is None and facts.prefix.lacks_blocks(choice)
