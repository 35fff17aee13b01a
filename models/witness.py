"""Counts what a run reached from the moments of a World: answers, plans, snapshots before and after.

The second of two counts (see `models.reach`): it reads no event, keeps no table of its own, and works for a target without
events. Feed it each `Moment` with `see`, read `counts`.
"""

from __future__ import annotations

from collections import Counter

from engine_under_test.caps import DeclaredOrder
from engine_under_test.types import FinishReason, PlannedStep, Request, RowId, SequenceSnapshot
from models.reach import Reach, is_diverging, is_reload, prompt_names, trap_names
from properties.moment import Happening, Moment

COUNTED_BY_BOTH = (
    Reach.PROMPT_ONE,
    Reach.PROMPT_BLOCK_LESS,
    Reach.PROMPT_BLOCK,
    Reach.PROMPT_BLOCK_MORE,
    Reach.PROMPT_BLOCKS,
    Reach.PROMPT_BUDGET_LESS,
    Reach.PROMPT_BUDGET,
    Reach.PROMPT_BUDGET_MORE,
    Reach.SAME_PROMPT_TWICE,
    Reach.SAME_PROMPT_THRICE,
    Reach.REUSED_IDENTIFIER,
    Reach.ADAPTER_RELOADED,
    Reach.DIVERGING_HIT,
    Reach.RESET_IDLE,
    Reach.RESET_IN_FLIGHT,
    Reach.ABORT_UNPLANNED,
    Reach.ABORT_WAITING,
    Reach.ABORT_BETWEEN_CHUNKS,
    Reach.ABORT_LAUNCHED,
    Reach.FORK_PARTIAL,
    Reach.ABANDONED,
    Reach.RESTARTED,
)


class Witness:
    """The count. Sees moments in order, from the first one of a world on."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._accepted: list[Request] = []
        self._latest: dict[str, Request] = {}  # by identifier, the one accepted last
        self._times: Counter[tuple[object, ...]] = Counter()  # how often what would be cached was accepted
        self._forked: set[tuple[str, int, int]] = set()
        self._put_out: set[RowId] = set()  # preempted, by the identity under which they come back

    def see(self, moment: Moment) -> None:
        """One moment. Happenings that are not counted are passed over."""
        match moment.happening:
            case Happening.ADDED:
                self._added(moment)
            case Happening.ABORTED:
                self._aborted(moment)
            case Happening.PLANNED:
                self._trap(moment)
                if moment.planned is not None:
                    self._plan(moment, moment.planned)
            case Happening.LANDED:
                self._forks(moment)
            case Happening.RESET:
                self._count(Reach.RESET_IN_FLIGHT if moment.before.plans else Reach.RESET_IDLE)
            case Happening.RESTARTED:
                self._count(Reach.RESTARTED)
            case Happening.ABANDONED:
                self._count(Reach.ABANDONED, len(moment.abandoned))
            case _:
                pass
        if moment.outputs:
            self._count(Reach.DEADLINE, sum(output.finish_reason is FinishReason.DEADLINE for output in moment.outputs))

    def _count(self, name: Reach, times: int = 1) -> None:
        if times:
            self.counts[name.value] += times

    def _added(self, moment: Moment) -> None:
        request, caps = moment.request, moment.caps
        if request is None:
            return
        if not moment.is_accepted:
            is_above = len(request.prompt) > caps.num_blocks * caps.block_size
            self._count(Reach.PROMPT_ABOVE_POOL if is_above else Reach.REFUSED_OTHERWISE)
            return
        longest = len(request.prompt) + request.sampling.max_tokens - 1
        self._count(Reach.OUTGREW, longest > caps.num_blocks * caps.block_size)
        for name in prompt_names(len(request.prompt), caps.block_size, caps.max_tokens_per_step):
            self._count(name)
        self._count(Reach.REUSED_IDENTIFIER, request.request_id in self._latest)
        content = _what_is_cached(request)
        same = self._times[content]
        self._count(Reach.SAME_PROMPT_TWICE, same == 1)
        self._count(Reach.SAME_PROMPT_THRICE, same == 2)
        self._count(Reach.ADAPTER_RELOADED, is_reload(request, self._accepted))
        self._accepted.append(request)
        self._latest[request.request_id] = request
        self._times[content] = same + 1

    def _aborted(self, moment: Moment) -> None:
        if moment.request is None or not moment.is_accepted:
            return
        name = moment.request.request_id
        mine = [sequence for sequence in moment.before.sequences() if sequence.request_id == name]
        phase = self._phase(min(mine, key=lambda sequence: sequence.choice)) if mine else None
        if phase is not None:
            self._count(phase)

    def _phase(self, sequence: SequenceSnapshot) -> Reach | None:
        if sequence.plans:
            return Reach.ABORT_LAUNCHED
        if not sequence.table and sequence.committed_len == 0:
            return Reach.ABORT_WAITING if sequence.epoch else Reach.ABORT_UNPLANNED
        return Reach.ABORT_BETWEEN_CHUNKS if sequence.committed_len < sequence.prompt_len - 1 else None

    def _trap(self, moment: Moment) -> None:
        waiting, caps = moment.before.waiting, moment.caps
        if not waiting or caps.order is not DeclaredOrder.FIRST_COME:
            return
        head = self._latest.get(waiting[0].request_id)
        if head is not None:
            for name in trap_names(moment.before.free, _hits(moment, head), head, caps):
                self._count(name)

    def _forks(self, moment: Moment) -> None:
        for sequence in moment.after.running:
            life = (sequence.request_id, sequence.choice, sequence.incarnation)
            if sequence.choice and life not in self._forked and not sequence.plans:
                self._forked.add(life)
                self._count(Reach.FORK_PARTIAL, (sequence.prompt_len - 1) % moment.caps.block_size != 0)

    def _plan(self, moment: Moment, step: PlannedStep) -> None:
        plan, caps = step.plan, moment.caps
        self._put_out.update(row._replace(epoch=row.epoch + 1) for row in step.preempted)
        self._count(Reach.DEPTH_ONE, len(moment.before.plans) == 1)
        self._count(Reach.DEPTH_TWO, len(moment.before.plans) == 2)
        for row, request in enumerate(plan.requests):
            num_cached = len(plan.hit_blocks[row]) * caps.block_size
            if plan.row_id(row) in self._put_out:
                self._put_out.discard(plan.row_id(row))
                is_swapped = plan.starts[row] > num_cached
                self._count(Reach.RESUMED_SWAPPED if is_swapped else Reach.RESUMED_ANEW)
            if num_cached and plan.epochs[row] == 0:
                earlier = [other for other in self._accepted if other is not request]
                self._count(Reach.DIVERGING_HIT, is_diverging(request, num_cached, earlier, caps))
        self._count(Reach.COPIED, len(step.reservation.copies))


def _what_is_cached(request: Request) -> tuple[object, ...]:
    return (request.tenant, request.cache_salt, request.adapter, request.media, request.prompt)


def _hits(moment: Moment, request: Request) -> list[int]:
    """The blocks whose cached content is a prefix of the prompt, cut to whole blocks below the last token."""
    size, tokens = moment.caps.block_size, request.prompt
    num_whole = (len(tokens) - 1) // size
    pieces = {tokens[index * size : (index + 1) * size] for index in range(num_whole)}
    by_prefix = {entry.prefix(): block for block, entry in moment.before.cached.items() if entry.tokens in pieces}
    found = []
    for index in range(num_whole):
        block = by_prefix.get(tokens[: (index + 1) * size])
        if block is None:
            break
        found.append(block)
    return found
