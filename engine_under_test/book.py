"""Owns the live requests: which choices exist, who waits, who runs, in the declared order. Never decides who moves.

It is also the scheduler's view: read-only through `scheduling.scheduler.View`, changed by `engine.py` alone and, for
it, by `results.py` and `ends.py`.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection
from collections.abc import Sequence as Items

from engine_under_test.adapter_book import AdapterBook
from engine_under_test.config import EngineConfig, Order
from engine_under_test.kv.prefix_index import namespace_of
from engine_under_test.kv.transaction import KvTransaction
from engine_under_test.scheduling.policy import key_for
from engine_under_test.sequence import Sequence
from engine_under_test.types import Adapter, Request, Status


class LiveRequest:
    """One life of an identifier: its choices that exist, and those that have not ended (unforked ones included)."""

    __slots__ = ("choices", "incarnation", "open_choices", "request")

    def __init__(self, request: Request, incarnation: int) -> None:
        self.request = request
        self.incarnation = incarnation
        self.choices: dict[int, Sequence] = {}
        self.open_choices = set(range(request.sampling.n))


class Book:
    """See the module. `waiting` and `running` are sorted by the policy's key."""

    __slots__ = (
        "_key",
        "_kv",
        "adapters",
        "by_row",
        "config",
        "deadlines",
        "generation",
        "live",
        "max_drafts",
        "may_admit",
        "next_plan_id",
        "num_loading",
        "oldest_in_flight",
        "only",
        "running",
        "waiting",
    )

    def __init__(self, config: EngineConfig, kv: KvTransaction) -> None:
        self.config = config
        self.generation = 0
        self.next_plan_id = 1
        self.num_loading = 0
        self.oldest_in_flight: int | None = None
        self.only: Collection[Sequence] | None = None
        self.may_admit = True
        self.max_drafts = 0
        self._kv = kv
        self.adapters = AdapterBook(config.adapters, config.max_active_adapters)
        self._key = key_for(config.order)
        self.live: dict[str, LiveRequest] = {}
        self.by_row: dict[tuple[str, int], Sequence] = {}
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self.deadlines: list[LiveRequest] = []  # of those that have one, the earliest first

    # ---- the scheduler's view -----------------------------------------------------------------------------------------

    @property
    def num_free(self) -> int:
        return self._kv.num_free

    @property
    def num_quarantined(self) -> int:
        return self._kv.num_quarantined

    @property
    def ref_counts(self) -> Items[int]:
        return self._kv.pool.ref_counts

    @property
    def num_adapter_slots(self) -> int:
        return self.adapters.num_slots

    @property
    def adapters_in_flight(self) -> Collection[Adapter]:
        return self.adapters.in_flight

    def is_free(self, block: int) -> bool:
        return bool(self._kv.pool.is_free[block])

    def hits(self, seq: Sequence) -> tuple[int, ...]:
        if seq.computes_whole_prompt:
            return ()
        version = self._kv.index.version
        found = seq.memoised_hits(version)
        if found is None:
            found = self._kv.lookup(seq.table, (seq.goal_len - 1) // self.config.block_size)
            seq.memoise_hits(version, found)
        return found

    def has_landed(self, seq: Sequence) -> bool:
        return self.oldest_in_flight is None or seq.last_plan < self.oldest_in_flight

    # ---- changes, for the engine only ---------------------------------------------------------------------------------

    def open(self, request: Request, ordinal: int) -> LiveRequest:
        """Enters an accepted request with its first choice, or with all of them if there is no prompt to share."""
        live = LiveRequest(request, ordinal)
        self.live[request.request_id] = live
        if request.adapter is not None:
            self.adapters.began(request.adapter)
        if request.deadline_s is not None:
            insort(self.deadlines, live, key=_deadline)
        namespace = self.namespace(request)
        has_shared_prompt = len(request.prompt) > 1
        for choice in range(1 if has_shared_prompt else request.sampling.n):
            seq = Sequence(request, choice, ordinal, ordinal, namespace)
            self.enter(live, seq)
            self.wait(seq)
        if has_shared_prompt:
            live.choices[0].pending_forks = request.sampling.n - 1
        return live

    def namespace(self, request: Request) -> bytes:
        return namespace_of(request, self.config.model_revision)

    def enter(self, live: LiveRequest, seq: Sequence) -> None:
        live.choices[seq.choice] = seq
        self.by_row[seq.request.request_id, seq.choice] = seq

    def wait(self, seq: Sequence) -> None:
        """Puts a sequence into the queue, in order."""
        insort(self.waiting, seq, key=self._key)

    def run(self, seq: Sequence) -> None:
        """Puts a sequence among the running ones, in order. The last place is the usual one."""
        seq.status = Status.RUNNING
        key = self._key(seq)
        place = len(self.running)
        while place and self._key(self.running[place - 1]) > key:
            place -= 1
        self.running.insert(place, seq)

    def leave(self, seq: Sequence) -> None:
        """Takes a sequence out of whichever list it stands in."""
        if seq.status is Status.RUNNING:
            self.running.remove(seq)
        else:
            self.waiting.remove(seq)

    def count_overtakes(self, admitted: Items[Sequence]) -> None:
        """After `admitted` entered: those that came before one of them were overtaken; some have come of age by it."""
        if not admitted:
            return
        if self.config.order is Order.FIRST_COME:
            self._count_passed(max(seq.ordinal for seq in admitted), admitted)
            return
        for seq in [each for each in self.waiting if each.load is None and self._is_overtaken(each, admitted)]:
            self.waiting.remove(seq)
            seq.is_aged = True
            self.wait(seq)
        for number, seq in enumerate(admitted):
            if self._is_overtaken(seq, admitted[:number]):
                self.running.remove(seq)
                seq.is_aged = True
                self.run(seq)

    def _count_passed(self, newest: int, admitted: Items[Sequence]) -> None:
        """First come, first served, but for those who lack a slot for their adapter."""
        for seq in self.waiting:
            if seq.ordinal >= newest:
                return
            if seq.load is None:
                seq.overtaken += sum(each.ordinal > seq.ordinal for each in admitted)

    def _is_overtaken(self, seq: Sequence, admitted: Items[Sequence]) -> bool:
        """Counts; True if it comes of age now."""
        seq.overtaken += sum(each.ordinal > seq.ordinal for each in admitted)
        return not seq.is_aged and seq.overtaken >= self.config.max_overtakes

    def close_choice(self, live: LiveRequest, choice: int) -> None:
        """The choice has ended; with the last one the identifier is free again."""
        live.open_choices.discard(choice)
        self.by_row.pop((live.request.request_id, choice), None)
        if not live.open_choices:
            del self.live[live.request.request_id]
            if live.request.adapter is not None:
                self.adapters.ended(live.request.adapter)
            if live.request.deadline_s is not None:
                self.deadlines.remove(live)


def _deadline(live: LiveRequest) -> tuple[float, int]:
    assert live.request.deadline_s is not None  # only such requests stand in the list
    return live.request.deadline_s, live.incarnation
