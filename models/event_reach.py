"""Counts what a run reached from the operations and events of its history, and from nothing else.

The fold rebuilds, from events alone, which choice has which table, what each block holds and which blocks are free; it never
sees a plan, a snapshot or a model. Feed it one history record's worth at a time with `see`, read `counts`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine_under_test.caps import Caps
from engine_under_test.events import Event, EventKind
from engine_under_test.types import FinishReason, RefusalReason, Request
from models.reach import Reach, is_diverging, is_reload, prompt_names, trap_names
from properties.op import Op, OpKind

Life = tuple[str, int, int]  # request_id, choice, incarnation
_Content = tuple[object, ...]  # namespace, media and tokens from the start of the prompt


@dataclass(slots=True)
class _Choice:
    """One choice of one life of a request, as the events tell it. `flying`: plan -> tokens planned under this epoch."""

    request: Request
    epoch: int = 0
    hits: list[int] = field(default_factory=list)
    taken: list[tuple[int, int]] = field(default_factory=list)  # plan, block
    copied: dict[int, int] = field(default_factory=dict)  # source -> target
    flying: dict[int, int] = field(default_factory=dict)
    committed: int = 0
    emitted: int = 0
    was_planned: bool = False
    is_forked: bool = False
    blocks_at_preemption: int | None = None
    has_ended: bool = False

    def table(self) -> list[int]:
        targets = set(self.copied.values())
        table = self.hits + [block for _, block in self.taken if block not in targets]
        return [self.copied.get(block, block) for block in table]

    def start_over(self) -> None:
        self.hits, self.taken, self.copied, self.flying = [], [], {}, {}
        self.committed, self.was_planned, self.is_forked = 0, False, False

    def has_computed(self, block_size: int) -> bool:
        return self.is_forked or bool(self.flying) or self.committed > len(self.hits) * block_size


def _content(request: Request, num_tokens: int) -> _Content:
    media = tuple(item for item in request.media if item.start < num_tokens)
    return (request.tenant, request.cache_salt, request.adapter, media, request.prompt[:num_tokens])


class EventReach:
    """The fold. `hasher` is the name of the world's hash function, which no event tells."""

    def __init__(self, caps: Caps, hasher: str = "blake2b") -> None:
        self.counts: Counter[str] = Counter()
        self._caps = caps
        self._hash_reach = {"two_bit": Reach.HASH_TWO_BIT, "constant": Reach.HASH_CONSTANT}.get(hasher)
        self._choices: dict[Life, _Choice] = {}
        self._requests: dict[tuple[str, int], Request] = {}  # accepted, by identifier and incarnation
        self._content: dict[int, _Content] = {}  # block -> what it holds, committed prompt blocks only
        self._indexed: set[int] = set()
        self._free = dict.fromkeys(range(1, caps.num_blocks + 1))
        self._taken_by_plan: dict[int, list[int]] = {}
        self._evicted_by_plan: dict[int, dict[int, _Content]] = {}  # indexed before; comes back with a rollback
        self._flying: list[int] = []
        self._unsent: set[str] = set()
        self._has_drained = False
        self._is_refusing = False

    def see(self, op: Op, events: Iterable[Event]) -> None:
        """One operation and the events that it caused, in order."""
        if op.kind is OpKind.ABORT:
            self._abort(op.request_id)
        batch = _hits_first(events)
        if self._does_plan(op):
            self._trap()
        if op.kind is OpKind.LAND and op.k > 0 and not any(event.kind is EventKind.COMMITTED for event in batch):
            self._count(Reach.EARLY_RESULT if op.k < len(self._flying) else None)
        if op.kind is OpKind.LAND_AGAIN and any(event.kind is EventKind.RESULT_DROPPED for event in batch):
            self._count(Reach.STALE_RESULT)
        for event in batch:
            handler = _HANDLERS.get(event.kind)
            if handler is not None:
                handler(self, event, op)
        if op.kind in _DELIVERING:
            self._unsent.clear()
        if op.kind is OpKind.DRAIN:
            self._has_drained = True
        elif op.kind is OpKind.RESTART:
            self._restart()
        elif op.kind is OpKind.REFUSE_BLOCK:
            self._is_refusing = op.k >= 1

    # Operations.

    @staticmethod
    def _does_plan(op: Op) -> bool:
        return op.kind in (OpKind.PLAN, OpKind.STEP)

    def _abort(self, request_id: str) -> None:
        live = [life for life, choice in self._choices.items() if life[0] == request_id and not choice.has_ended]
        if live:
            self._count(self._phase(self._choices[min(live)]))
        elif request_id in self._unsent:
            self._count(Reach.ABORT_UNSENT)

    def _phase(self, choice: _Choice) -> Reach | None:
        if choice.flying:
            return Reach.ABORT_LAUNCHED
        if not choice.was_planned:
            return Reach.ABORT_UNPLANNED if choice.blocks_at_preemption is None else Reach.ABORT_WAITING
        return Reach.ABORT_BETWEEN_CHUNKS if choice.committed < len(choice.request.prompt) - 1 else None

    def _trap(self) -> None:
        """The free queue holds nothing but blocks that the next request is about to hit: what is free for it is none."""
        waiting = [choice for choice in self._choices.values() if not choice.has_ended and not choice.was_planned]
        if not waiting or self._caps.order.value != "first_come":
            return
        for name in trap_names(tuple(self._free), self._chain(waiting[0].request), waiting[0].request, self._caps):
            self._count(name)

    def _chain(self, request: Request) -> list[int]:
        by_content = {self._content[block]: block for block in self._indexed if block in self._content}
        found: list[int] = []
        for index in range((len(request.prompt) - 1) // self._caps.block_size):
            block = by_content.get(_content(request, (index + 1) * self._caps.block_size))
            if block is None:
                break
            found.append(block)
        return found

    # Events.

    def _count(self, name: Reach | None) -> None:
        if name is not None:
            self.counts[name.value] += 1

    def _life(self, event: Event) -> _Choice | None:
        row = event.row
        if row is None:
            return None
        choice = self._choices.get(row[:3])
        return choice if choice is not None and not choice.has_ended else None

    def _accepted(self, event: Event, op: Op) -> None:
        row, request = event.row, op.request
        if row is None or request is None:
            return
        for name in prompt_names(event.tokens, self._caps.block_size, self._caps.max_tokens_per_step):
            self._count(name)
        self._count(Reach.REUSED_IDENTIFIER if any(key[0] == row.request_id for key in self._requests) else None)
        self._count(Reach.WORK_AFTER_DRAIN if self._has_drained else None)
        earlier = list(self._requests.values())
        same = sum(_content(other, len(other.prompt)) == _content(request, len(request.prompt)) for other in earlier)
        self._count({1: Reach.SAME_PROMPT_TWICE, 2: Reach.SAME_PROMPT_THRICE}.get(same))
        if is_reload(request, earlier):
            self._count(Reach.ADAPTER_RELOADED)
        self._requests[row.request_id, row.incarnation] = request
        for choice in range(request.sampling.n if len(request.prompt) == 1 else 1):  # others begin with their fork
            self._choices[row.request_id, choice, row.incarnation] = _Choice(request, row.epoch)

    def _refused(self, event: Event, op: Op) -> None:
        pool = self._caps.num_blocks * self._caps.block_size
        is_above = event.reason == RefusalReason.TOO_LONG.value and op.request is not None and len(op.request.prompt) > pool
        self._count(Reach.PROMPT_ABOVE_POOL if is_above else Reach.REFUSED_OTHERWISE)

    def _hit(self, event: Event, _op: Op) -> None:
        choice = self._life(event)
        if choice is None:
            return
        choice.hits, choice.committed = list(event.blocks), event.tokens
        for block in event.blocks:
            self._free.pop(block, None)
        if event.plan_id is not None:
            self._taken_by_plan.setdefault(event.plan_id, []).extend(event.blocks)
        if event.tokens and event.row is not None and event.row.epoch == 0:
            earlier = [other for other in self._requests.values() if other is not choice.request]
            self._count(Reach.DIVERGING_HIT if is_diverging(choice.request, event.tokens, earlier, self._caps) else None)

    def _scheduled(self, event: Event, _op: Op) -> None:
        choice = self._life(event)
        if choice is None or event.plan_id is None or event.row is None:
            return
        choice.epoch = event.row.epoch
        if not choice.was_planned and choice.blocks_at_preemption:
            found, had = len(choice.hits), choice.blocks_at_preemption
            self._count(Reach.RESUMED_CACHED if found >= had else Reach.RESUMED_PARTLY if found else Reach.RESUMED_EVICTED)
        choice.was_planned = True
        choice.flying[event.plan_id] = choice.flying.get(event.plan_id, 0) + event.tokens

    def _forked(self, event: Event, _op: Op) -> None:
        row = event.row
        if row is None:
            return
        parent = self._choices.get((row.request_id, 0, row.incarnation))
        if parent is None:
            return
        child = _Choice(parent.request, row.epoch, hits=list(event.blocks), committed=parent.committed)
        child.was_planned = child.is_forked = True
        self._choices[row[:3]] = child
        self._count(Reach.FORK_PARTIAL if (len(parent.request.prompt) - 1) % self._caps.block_size else None)

    def _emitted(self, event: Event, _op: Op) -> None:
        choice = self._life(event)
        if choice is not None:
            choice.emitted += event.tokens
            choice.committed = len(choice.request.prompt) + choice.emitted - 1  # drafts that fell were planned, no more

    def _preempted(self, event: Event, _op: Op) -> None:
        choice = self._life(event)
        if choice is None:
            return
        visible = len(choice.request.prompt) + choice.emitted
        block_size = self._caps.block_size
        choice.blocks_at_preemption = min(choice.committed // block_size, (visible - 1) // block_size)
        choice.start_over()
        choice.epoch += 1

    def _finished(self, event: Event, _op: Op) -> None:
        choice = self._life(event)
        if choice is None or event.row is None:
            return
        choice.has_ended = True
        self._unsent.add(event.row.request_id)
        self._count(Reach.DEADLINE if event.reason == FinishReason.DEADLINE.value else None)

    def _launched(self, event: Event, _op: Op) -> None:
        self._count({1: Reach.DEPTH_ONE, 2: Reach.DEPTH_TWO}.get(len(self._flying)))
        if event.plan_id is not None:
            self._flying.append(event.plan_id)

    def _committed(self, event: Event, _op: Op) -> None:
        plan_id = event.plan_id
        if plan_id is None:
            return
        if plan_id in self._flying:
            self._flying.remove(plan_id)
        self._taken_by_plan.pop(plan_id, None)
        self._evicted_by_plan.pop(plan_id, None)
        for choice in self._choices.values():
            num_tokens = choice.flying.pop(plan_id, 0)
            if num_tokens:
                choice.committed += num_tokens
                self._fill(choice)

    def _fill(self, choice: _Choice) -> None:
        size = self._caps.block_size
        table = choice.table()
        for index in range(min(choice.committed, len(choice.request.prompt)) // size):
            if index < len(table):
                self._content[table[index]] = _content(choice.request, (index + 1) * size)

    def _undone(self, event: Event, op: Op) -> None:
        """Rolled back or abandoned: what was planned is not; an abandoned plan's blocks come back by their own events."""
        plan_id = event.plan_id
        if event.kind is EventKind.ABANDONED:
            self._count(Reach.ABANDONED)
        elif op.kind is OpKind.ROLLBACK and not event.reason:
            self._count(Reach.ROLLED_BACK)
        elif self._is_refusing:  # a reservation that failed says why
            self._count(Reach.REFUSED_BLOCK)
            self._is_refusing = False
        if plan_id is None:
            return
        if plan_id in self._flying:
            self._flying.remove(plan_id)
        taken = self._taken_by_plan.pop(plan_id, [])
        evicted = self._evicted_by_plan.pop(plan_id, {})
        if event.kind is EventKind.ROLLED_BACK:
            self._free.update(dict.fromkeys(taken))
            self._content.update(evicted)
            self._indexed.update(evicted)
        for choice in self._choices.values():
            choice.flying.pop(plan_id, None)
            choice.taken = [(plan, block) for plan, block in choice.taken if plan != plan_id]
            if choice.was_planned and not choice.has_computed(self._caps.block_size):
                choice.start_over()  # its first plan came to nothing: it was never dispatched

    def _reserved(self, event: Event, _op: Op) -> None:
        choice = self._life(event)
        for block in event.blocks:
            self._free.pop(block, None)
        if event.plan_id is not None:
            self._taken_by_plan.setdefault(event.plan_id, []).extend(event.blocks)
        if choice is not None and event.plan_id is not None:
            choice.taken.extend((event.plan_id, block) for block in event.blocks)

    def _copied(self, event: Event, _op: Op) -> None:
        self._count(Reach.COPIED)
        source, target = event.blocks
        for choice in self._choices.values():
            if (event.plan_id, target) in choice.taken:
                choice.copied[source] = target

    def _quarantined(self, event: Event, _op: Op) -> None:
        if event.blocks:
            self._count(Reach.QUARANTINED)

    def _freed(self, event: Event, _op: Op) -> None:
        for block in event.blocks:
            self._free[block] = None
            if block not in self._indexed:
                self._content.pop(block, None)

    def _evicted(self, event: Event, _op: Op) -> None:
        for block in event.blocks:
            self._indexed.discard(block)
            content = self._content.pop(block, None)
            if content is None:
                continue
            if event.plan_id is not None:
                self._evicted_by_plan.setdefault(event.plan_id, {})[block] = content
            if content in self._content.values():
                self._count(Reach.DUPLICATE_EVICTED)

    def _published(self, event: Event, _op: Op) -> None:
        self._indexed.update(event.blocks)
        self._count(self._hash_reach if event.blocks else None)

    def _row_dropped(self, _event: Event, _op: Op) -> None:
        self._count(Reach.ROW_DROPPED)

    def _reset(self, _event: Event, _op: Op) -> None:
        self._indexed.clear()
        self._count(Reach.RESET_IN_FLIGHT if self._flying else Reach.RESET_IDLE)

    def _restart(self) -> None:
        self._count(Reach.RESTARTED)
        self._content.clear()
        self._indexed.clear()
        self._flying.clear()
        self._taken_by_plan.clear()
        self._free = dict.fromkeys(range(1, self._caps.num_blocks + 1))
        for choice in self._choices.values():
            if choice.was_planned:
                choice.blocks_at_preemption = 0  # begins again, and nothing of it is left
            choice.start_over()


def _hits_first(events: Iterable[Event]) -> tuple[Event, ...]:
    """The events with each row's hits and new blocks before its SCHEDULED, whichever order the target tells them in."""
    batch = list(events)
    for kind in (EventKind.RESERVED, EventKind.HIT):
        for event in [each for each in batch if each.kind is kind]:
            ahead = [
                place
                for place, each in enumerate(batch)
                if each.kind is EventKind.SCHEDULED and (each.row, each.plan_id) == (event.row, event.plan_id)
            ]
            if ahead and ahead[0] < batch.index(event):
                batch.remove(event)
                batch.insert(ahead[0], event)
    return tuple(batch)


_DELIVERING = frozenset({OpKind.DELIVER, OpKind.STEP, OpKind.DRAIN})

_HANDLERS = {
    EventKind.ACCEPTED: EventReach._accepted,
    EventKind.REFUSED: EventReach._refused,
    EventKind.HIT: EventReach._hit,
    EventKind.SCHEDULED: EventReach._scheduled,
    EventKind.FORKED: EventReach._forked,
    EventKind.EMITTED: EventReach._emitted,
    EventKind.PREEMPTED: EventReach._preempted,
    EventKind.FINISHED: EventReach._finished,
    EventKind.LAUNCHED: EventReach._launched,
    EventKind.COMMITTED: EventReach._committed,
    EventKind.ROLLED_BACK: EventReach._undone,
    EventKind.ABANDONED: EventReach._undone,
    EventKind.ROW_DROPPED: EventReach._row_dropped,
    EventKind.RESERVED: EventReach._reserved,
    EventKind.QUARANTINED: EventReach._quarantined,
    EventKind.FREED: EventReach._freed,
    EventKind.EVICTED: EventReach._evicted,
    EventKind.PUBLISHED: EventReach._published,
    EventKind.COPIED: EventReach._copied,
    EventKind.CACHE_RESET: EventReach._reset,
}
