"""The reference models together, as the predicates see them (`properties.moment.Facts`).

Owns which model learns what from one happening, in one place; judges nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from engine_under_test.caps import Caps, DeclaredOrder, ReferenceModel
from engine_under_test.events import Event, EventKind
from engine_under_test.types import (
    FinishReason,
    Plan,
    PlannedStep,
    PrefixEntry,
    Request,
    RowId,
    SequenceSnapshot,
    Snapshot,
    StepResult,
)
from models.adapter_model import AdapterModel
from models.allocator_model import AllocatorModel, Key
from models.prefix_model import PrefixModel
from models.request_model import RequestModel
from models.retry_model import RetryModel
from models.scheduler_model import Landed, SchedulerModel
from properties.moment import ChoiceFacts, Content
from properties.verdict import Violation

# To look a member up in its enumeration takes longer than to compare it.
_FORKED, _PREEMPTED, _FINISHED = EventKind.FORKED, EventKind.PREEMPTED, EventKind.FINISHED
_CLAIMED, _LOADED = EventKind.CLAIMED, EventKind.LOADED
_TELLING = frozenset(map(id, (_FORKED, _PREEMPTED, _FINISHED, _CLAIMED, _LOADED)))


class ModelFacts:
    """Five models and a clock."""

    def __init__(self, caps: Caps, hasher: Callable[[bytes], bytes] | None) -> None:
        self.caps = caps
        self.requests = RequestModel(caps)
        self._is_tree = caps.reference_model is ReferenceModel.PATH_LOCK
        self._path_lengths: dict[Key, int] = {}  # of a live choice, in a tree
        self.allocator = AllocatorModel(self._is_tree)
        self.prefix = PrefixModel(caps, hasher)
        self.slots = AdapterModel(caps, self.requests.live)
        self.adapters = self.slots.facts
        self.requests.adapters = self.adapters.listed
        age = caps.overtake_bound if caps.order is DeclaredOrder.PRIORITY else None
        self.scheduler = SchedulerModel(self.requests, caps.block_size, caps.num_host_blocks > 0, self.slots, age)
        self._put_out: set[Key] = set()  # preempted where there is a swap pool; not seen with content since
        self._restored: set[Key] = set()  # the row in flight begins behind content that came back from the swap pool
        self.retry = RetryModel(self.requests.live)
        self.requests.excused = self.retry.excused
        self.owed_hits: Mapping[Key, int] = {}
        self._seen_waiting: tuple[SequenceSnapshot, ...] | None = None  # of which there is nothing more to learn
        self.clock_s = 0.0
        self.differs_from_law: Callable[[ChoiceFacts, tuple[int, ...], int], int | None] | None = None  # of the device
        self._loading: dict[RowId, float] = {}  # who waits for a load, and since when
        self._late_loads: dict[RowId, int] = {}
        self._barred: frozenset[RowId] = frozenset()  # who waited for one when the cache was reset
        self.generation = 0
        self._merges = caps.reference_model is ReferenceModel.PATH_LOCK
        self.content_by_block: Mapping[int, Content] = self.prefix.content_by_block
        self.hittable: Mapping[int, Content] = self.prefix.hittable
        self.outdated: Collection[int] = self.prefix.outdated
        self.translate: Callable[[PrefixEntry], Content | None] = self.prefix.translate
        self.expected_key: Callable[[PrefixEntry], bytes | None] = self.prefix.expected_key
        self.prompt_contents: Callable[[Request, tuple[int, ...]], tuple[Content, ...]] = self.prefix.prompt_contents
        self.released_at: Callable[[int], int | None] = self.allocator.released_at
        self.choice: Callable[[RowId], ChoiceFacts | None] = self.requests.choice
        self.overtaken: Callable[[], Mapping[Key, int]] = self.scheduler.overtaken
        self.iterations_past_deadline: Callable[[], Mapping[Key, int]] = self.scheduler.iterations_past_deadline
        self.iterations_without_token: Callable[[], Mapping[Key, int]] = self.scheduler.iterations_without_token
        self.preemptions_in_a_row: Callable[[], Mapping[Key, int]] = self.scheduler.preemptions_in_a_row
        self.of_age: Callable[[], Collection[Key]] = self.scheduler.of_age
        self.came_of_age: Callable[[], Collection[Key]] = partial(self.scheduler.came_of_age, caps.overtake_bound)

    def live(self) -> Mapping[Key, ChoiceFacts]:
        return self.requests.live

    def now(self) -> float:
        return self.clock_s

    @property
    def retried(self) -> tuple[Key, ...]:
        return self.retry.retried

    @property
    def perhaps_retried(self) -> tuple[Key, ...]:
        return self.retry.perhaps_retried

    @property
    def lost_twice(self) -> Collection[Key]:
        return self.retry.lost_twice

    # -- learning ----------------------------------------------------------------------------------------------

    def accepted(self, request: Request, incarnation: int) -> None:
        self._seen_waiting = None
        self.scheduler.accepted(self.requests.accept(request, incarnation), request.deadline_s)
        self.scheduler.advanced(self.clock_s)

    def advanced(self, seconds: float) -> None:
        self.clock_s += seconds
        self.scheduler.advanced(self.clock_s)

    def aborted(self, request_id: str, after: Snapshot) -> None:
        keys = self.requests.keys_of(request_id)
        for key in keys:
            self.requests.live[key].epoch += 1
            self.requests.end(key, FinishReason.ABORT)
        self._ended(keys, after)

    def preempted(self, rows: Iterable[RowId], after: Snapshot) -> None:
        for row in rows:
            key = row[:3]
            facts = self.requests.live.get(key)
            if facts is not None and facts.epoch == row.epoch:
                facts.epoch = row.epoch + 1
                self.scheduler.preempted(key)
                if self.caps.num_host_blocks:
                    self._put_out.add(key)
                self.prefix.suspended(key)
                self.prefix.released(self.allocator.release((key,)), after.cached)

    def planned(self, step: PlannedStep, is_counted: bool) -> Violation | None:
        """Everything but who holds what: that changes with `held`, after the plan was judged."""
        self.retry.planned(step.plan)
        found, begun = self.scheduler.planned(step, is_counted, self.retry.perhaps_retried)
        live, prefix = self.requests.live, self.prefix
        # asked while the index is as the plan found it: nothing was taken yet
        self.owed_hits = {key: prefix.owes_hits(key, live[key]) for key in begun} if begun else {}
        for blocks in step.reservation.new_blocks:
            if blocks:
                prefix.taken(blocks)
        for key in begun:
            prefix.began(key)
        if begun and self.caps.num_host_blocks:
            self._restored.update(self._put_out.intersection(begun))
            self._put_out.difference_update(begun)
        return found

    def held(self, step: PlannedStep) -> None:
        self.slots.launched(step)
        plan = step.plan
        allocator, live = self.allocator, self.requests.live
        known = allocator.tables
        columns = (plan.requests, plan.choices, plan.incarnations, step.reservation.tables, plan.starts)
        for request, choice, incarnation, table, start in zip(*columns, strict=True):
            key = (request.request_id, choice, incarnation)
            if key in live:
                if known.get(key) != table:
                    allocator.hold(key, table)
                if self._is_tree:
                    self._path_lengths.setdefault(key, start)

    def committed(self, step: PlannedStep, result: StepResult, after: Snapshot) -> None:
        """A plan is committed: each row whose identity is still the present one counts."""
        plan, copies = step.plan, step.reservation.copies
        if plan.generation != self.generation:
            return
        self.retry.committed(plan.plan_id)
        live, size = self.requests.live, self.caps.block_size
        landed: list[Landed] = []
        identities = plan.requests, plan.choices, plan.incarnations, plan.epochs
        work = plan.starts, plan.num_tokens, plan.samples, step.reservation.tables, result.tokens
        num_drafts = plan.num_drafts or (0,) * plan.num_rows
        advance = self.requests.advance
        verified: dict[Key, bool] = {}  # rows with drafts, and whether their choice ended with what stands
        for request, choice, incarnation, epoch, start, count, samples, table, tokens, drafts in zip(
            *identities, *work, num_drafts, strict=True
        ):
            key = (request.request_id, choice, incarnation)
            facts = live.get(key)
            end = start + count
            if facts is None or facts.epoch != epoch:
                if self.caps.has_late_aborts and facts is None:
                    self._committed_late(key, table, start, end)
                continue
            if drafts:
                verified[key] = advance(key, tokens)
                end = len(request.prompt) + len(facts.emitted) - 1  # what they stand on; the newest is not computed yet
                self._fell(key, table[: -(-end // size)], after)
            if key in self._restored:
                self._restored.discard(key)
                self.prefix.committed(key, facts, table, 0, end)
            elif end // size > start // size:
                self.prefix.committed(key, facts, table, start, end)
            if copies:
                self.prefix.released(self.allocator.landed(key), after.cached)
            landed.append((key, end, samples, tokens))
            if self._is_tree:
                self._path_lengths[key] = end
        if self._put_out:
            self._came_back(after)
        self.scheduler.committed(landed)
        self.scheduler.verified(landed, verified)
        ended = [key for key, _, _, tokens in landed if tokens and (verified[key] if key in verified else advance(key, tokens))]
        if ended:
            self._ended(ended, after)

    def _fell(self, key: Key, table: tuple[int, ...], after: Snapshot) -> None:
        """Behind a step with drafts a choice holds what is confirmed of it, and no more."""
        if len(table) < len(self.allocator.tables.get(key, ())):
            self.prefix.released(self.allocator.shorten(key, table), after.cached)

    def _committed_late(self, key: Key, table: tuple[int, ...], start: int, end: int) -> None:
        """The row of an aborted choice: what it computed may be found by others."""
        ended, size = self.requests.ended.get(key), self.caps.block_size
        if ended is not None and ended.finish_reason is FinishReason.ABORT and end // size > start // size:
            self.prefix.committed(key, ended, table, start, end)
            self.prefix.ended(key)

    def _came_back(self, after: Snapshot) -> None:
        """Who is seen with committed tokens again, without a row of its own, has got its blocks back."""
        for sequence in after.running:
            key = (sequence.request_id, sequence.choice, sequence.incarnation)
            if key in self._put_out and sequence.committed_len:
                self._put_out.discard(key)
                self.prefix.committed(key, self.requests.live[key], sequence.table, 0, sequence.committed_len)

    def _merged(self, table: tuple[int, ...], start: int, end: int, after: Snapshot) -> tuple[int, ...]:
        """A radix tree may free a page whose content it has already and go on with its own: the table after that."""
        full = range(start // self.caps.block_size, end // self.caps.block_size)
        moved = {place: table[place] for place in full if table[place] not in after.cached}
        if not moved:
            return table
        pages = {self.prefix.translate(entry): block for block, entry in after.cached.items()}
        content = self.prefix.content_by_block
        moved = {place: pages.get(content.get(block), block) for place, block in moved.items()}
        return tuple(moved.get(place, block) for place, block in enumerate(table))

    def abandoned(
        self, lost: Sequence[Plan], in_flight: Sequence[Plan], after: Snapshot, to_blame: Collection[int] = ()
    ) -> None:
        """``in_flight``: the plans launched before the lost ones, still on their way. ``to_blame``: rows of the oldest lost."""
        self.retry.abandoned(lost, self.requests.live, to_blame)
        tables = {(s.request_id, s.choice, s.incarnation): s.table + s.reserved for s in after.sequences()}
        ahead: dict[RowId, list[tuple[int, bool]]] = {}
        for plan in in_flight:
            for row, identity in enumerate(plan.row_ids()):
                end = plan.starts[row] + plan.num_tokens[row]
                ahead.setdefault(identity, []).append((end, plan.samples[row]))
        for key in dict.fromkeys(identity[:3] for plan in lost for identity in plan.row_ids()):
            facts = self.requests.live.get(key)
            if facts is not None:
                self.scheduler.abandoned(key, ahead.get(RowId(*key, facts.epoch), ()))
                self.prefix.released(self.allocator.replace(key, tables.get(key, ())), after.cached)

    def doubted(self, blocks: Collection[int], after: Snapshot) -> None:
        """Read by a row that came to no number."""
        tables = {(s.request_id, s.choice, s.incarnation): s.table for s in after.sequences() if s.table}
        self.prefix.doubted(blocks, tables)

    def refused(self) -> None:
        """A block was refused, and the plan that it was for undone."""
        self.retry.refused(self.requests.live)

    def polled(self) -> None:
        """Transfers had their chance to move or to be given up."""
        if self._loading:
            now, most, late = self.clock_s, self.caps.load_bound_s, self._late_loads
            self._late_loads = {row: late.get(row, 0) + 1 for row, since in self._loading.items() if now - since > most}
        elif self._late_loads:
            self._late_loads = {}

    def polls_past_load_bound(self) -> Mapping[RowId, int]:
        return self._late_loads

    def reset(self) -> None:
        """Before the snapshot of it was learnt."""
        self._barred = frozenset(self._loading)
        self.prefix.reset()

    def restarted(self, after: Snapshot) -> None:
        self.generation = after.generation
        self.allocator.clear()
        self.slots.restarted()
        self.prefix.restarted()
        self.retry.restarted()
        for key in self.requests.live:
            self.scheduler.voided(key)
        for sequence in after.sequences():
            facts = self.requests.choice(sequence.row_id)
            if facts is not None:
                facts.epoch = sequence.epoch
                self.scheduler.suspended(sequence.row_id[:3])

    def saw_events(self, events: tuple[Event, ...], after: Snapshot) -> Violation | None:
        """What only events tell: forks, faults, and ends that the target decided."""
        found: Violation | None = None
        for event in events:
            kind = event[0]
            if id(kind) not in _TELLING:  # a member of an enumeration is slow to hash
                continue
            if kind is _CLAIMED:
                self.prefix.taken(event.blocks)
                continue
            row = event.row
            assert row is not None
            if kind is _FORKED:
                self.allocator.hold(row[:3], event.blocks)
                self.prefix.forked(row[:3])
            elif kind is _PREEMPTED:
                self.preempted((row,), after)
            elif kind is _LOADED:
                found = found or self._loaded(row, event.blocks, event.tokens)
            elif row[:3] in self.requests.live:
                wrong = self._own_end(row[:3], FinishReason(event.reason), after)
                found = found or wrong
        self.retry.told()
        return found

    def _loaded(self, row: RowId, blocks: tuple[int, ...], start: int) -> Violation | None:
        """A waiting choice's prefix has come from elsewhere."""
        facts = self.requests.live.get(row[:3])
        if facts is None or start % self.caps.block_size:
            return Violation("DI-3", "transfer", f"a load for {row}", f"from token {start}", "whole blocks of a live choice")
        if row in self._barred:
            return Violation(
                "KV-6",
                "index holds committed only",
                f"the load of {row.request_id}",
                "visible",
                "nothing from before the reset",
            )
        if self.differs_from_law is not None and (place := self.differs_from_law(facts, blocks, start)) is not None:
            block = blocks[(place - start) // self.caps.block_size]
            found = f"block {block} visible with something else at position {place}"
            return Violation("DI-3", "transfer", f"the load of {row.request_id}", found, "what computing it gives")
        self.prefix.loaded(row[:3], facts, blocks, start // self.caps.block_size)
        return None

    def _own_end(self, key: Key, reason: FinishReason, after: Snapshot) -> Violation | None:
        wrong = self.requests.judge_own_end(key, reason, self.clock_s)
        if wrong is None:
            self.requests.end(key, reason)
            self._ended((key,), after)
        return wrong

    def saw_snapshot(self, before: Snapshot, after: Snapshot) -> None:
        """What a target without events shows only at rest: quarantine that ended, and preemptions without a plan."""
        self.slots.saw(after)
        if before.quarantined:
            left = [block for block in before.quarantined if block not in after.quarantined]
            if left:
                self.allocator.let_go_now(left)
                self.prefix.released(left, after.cached)
        if before.loading is not after.loading:
            known, now = self._loading, self.clock_s
            if self._barred:  # who is asked for again waits for another load, begun behind the reset
                self._barred -= set(after.loading) - set(before.loading)
            self._loading = {row: known.get(row, now) for row in after.loading}
            self.scheduler.loading = {row[:3] for row in after.loading}
        if self.caps.evicts_on_demand and before.free != after.free:
            self.prefix.emptied(list(set(after.free).difference(before.free)))
        if after.waiting is self._seen_waiting:
            return
        self._seen_waiting = after.waiting
        for sequence in after.waiting:
            if not sequence.table and not sequence.plans:
                key = (sequence.request_id, sequence.choice, sequence.incarnation)
                facts = self.requests.live.get(key)
                if facts is not None and facts.epoch < sequence.epoch:
                    self.preempted((RowId(*key, facts.epoch),), after)
                    facts.epoch = sequence.epoch

    def told_ends(self, keys: Iterable[Key], after: Snapshot) -> None:
        """Choices whose end came with an output."""
        self._ended(tuple(keys), after)

    def _ended(self, keys: Sequence[Key], after: Snapshot) -> None:
        self.prefix.released(self.allocator.release(keys), after.cached)
        if self._put_out or self._restored:
            self._put_out.difference_update(keys)
            self._restored.difference_update(keys)
        if self._is_tree:
            self._unlocked(keys, after)
        for key in keys:
            self.scheduler.ended(key)
            self.prefix.ended(key)

    def _unlocked(self, keys: Sequence[Key], after: Snapshot) -> None:
        """A tree may go on with its own page instead of the one that a plan computed: what was let go is what holds the same
        content now, as far as the choice had hits or commits."""
        holding = {self.prefix.translate(entry): block for block, entry in after.cached.items()}
        let_go: list[int] = []
        for key in keys:
            facts, length = self.requests.ended[key], self._path_lengths.pop(key, 0)
            tokens = (*facts.request.prompt, *facts.emitted)[:length]
            contents = self.prefix.prompt_contents(facts.request, tokens)
            let_go += [holding[content] for content in contents if content in holding]
        self.allocator.let_go_now(let_go)
