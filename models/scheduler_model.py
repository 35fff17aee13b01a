"""Whether a plan was allowed: which choice may run, from where, how far, and how long others waited meanwhile.

Owns the coverage of each choice's present epoch, overtakes and iterations without a token. It judges plans and never makes
one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from engine_under_test.types import FinishReason, PlannedStep
from models.adapter_model import AdapterModel
from models.allocator_model import Key
from models.request_model import RequestModel
from properties.moment import ChoiceFacts
from properties.verdict import Violation

Landed = tuple[Key, int, bool, tuple[int, ...]]  # of a row: where it ended, whether it sampled, what it emitted


class SchedulerModel:
    """Coverage, order and progress of choices. ``age``: how often one is overtaken that goes first from then on."""

    def __init__(
        self,
        requests: RequestModel,
        block_size: int,
        may_swap: bool = False,
        adapters: AdapterModel | None = None,
        age: int | None = None,
    ) -> None:
        self._requests = requests
        self._adapters = adapters
        self._block_size = block_size
        self._scheduled: dict[Key, int] = {}  # behind the last planned position, for choices that have begun their epoch
        self._committed: dict[Key, int] = {}
        self._ahead: dict[Key, int] = {}  # tokens that plans in flight will sample
        self._may_swap = may_swap
        self._put_out: set[Key] = set()  # preempted, perhaps with their content kept in a swap pool
        self._forkable: set[tuple[str, int]] = set()  # lives whose prompt was covered but for its last position
        self._begun: dict[Key, int] = {}  # the last epoch of a choice that stood in a plan
        self._waiting: dict[Key, int] = {}  # choice -> overtakes since it began to wait
        self._passed: dict[Key, int] = {}  # choice -> entries of later ones while it waited, in its whole life
        self._age = age
        self._of_age: set[Key] = set()  # before the latest plan
        self._coming_of_age: set[Key] = set()  # by the latest plan
        self._in_a_row: dict[Key, int] = {}  # choice -> preemptions since it last emitted a token
        self.loading: set[Key] = set()  # passed over until their prefix has come from elsewhere
        self._acceptance: dict[Key, int] = {}
        self._accepted = 0
        self._iterations = 0
        self._last_token: dict[Key, int] = {}
        self._any_token = 0
        self._asked = 0  # times that a plan was asked for
        self._deadlines: dict[Key, float] = {}  # still ahead
        self._late_since: dict[Key, int] = {}

    def accepted(self, keys: Iterable[Key], deadline_s: float | None) -> None:
        self._accepted += 1  # the choices of one request came together: none overtakes another
        for key in keys:
            if deadline_s is not None:
                self._deadlines[key] = deadline_s
            self._acceptance[key] = self._accepted
            self._last_token[key] = self._iterations
            if key[1] == 0:  # the other choices wait for a fork, not for a seat
                self._waiting[key] = 0

    # -- judging a plan ----------------------------------------------------------------------------------------

    def planned(
        self, step: PlannedStep, is_counted: bool, tried_again: Collection[Key] = ()
    ) -> tuple[Violation | None, list[Key]]:
        """The first row that was not allowed, and the choices that begin an epoch. ``is_counted``: no fault is active.
        ``tried_again``: perhaps, of a plan that had been undone: they had their turn with that."""
        plan = step.plan
        found: Violation | None = None
        begun: list[Key] = []
        position = 0
        live, scheduled, ahead, token_ids = self._requests.live, self._scheduled, self._ahead, plan.token_ids
        identities = plan.requests, plan.choices, plan.incarnations, plan.epochs
        work = plan.starts, plan.num_tokens, plan.num_pending, plan.samples, plan.hit_blocks
        num_drafts = plan.num_drafts or (0,) * plan.num_rows
        for row, (request, choice, incarnation, epoch, start, count, pending, samples, hits) in enumerate(
            zip(*identities, *work, strict=True)
        ):
            key = (request.request_id, choice, incarnation)
            tokens = token_ids[position : position + count - pending - num_drafts[row]]
            position += count - pending
            facts = live.get(key)
            flying = ahead.get(key, 0)
            is_plain = (  # a decode that goes on: by far the most rows
                count == 1
                and facts is not None
                and facts.epoch == epoch
                and scheduled.get(key) == start
                and samples
                and not hits
                and start + 1 == len(request.prompt) + len(facts.emitted) + flying
                and (not tokens if flying > 0 else bool(tokens and facts.emitted) and tokens[0] == facts.emitted[-1])
            )
            if not is_plain:
                found = found or self._judge_row(key, step, row, tokens)
                if facts is None:
                    continue
                facts.epoch = epoch
                if key not in scheduled:
                    begun.append(key)
                if request.sampling.n > 1 and start + count >= len(request.prompt) - 1:
                    self._forkable.add((key[0], key[2]))
            scheduled[key] = start + count
            ahead[key] = flying + samples
        if begun:
            self._began(begun, tried_again)
        self._iterations += is_counted
        return found, begun

    def _began(self, begun: list[Key], tried_again: Collection[Key]) -> None:
        live = self._requests.live
        if self._coming_of_age:
            self._of_age |= self._coming_of_age
            self._coming_of_age = set()
        self._count_passed(begun)
        if self._adapters is not None:
            running = [key for key in self._scheduled if key not in begun and key in live]
            waiting = [key for key in live if key not in self._scheduled]
            self._adapters.began(begun, running, waiting, self._acceptance.__getitem__)
        self._count_overtakes([key for key in begun if self._begun.get(key) != live[key].epoch and key not in tried_again])
        self._begun.update((key, live[key].epoch) for key in begun)
        for key in begun:
            self._waiting.pop(key, None)
            self._waits_anew(key)
            self._last_token[key] = self._iterations

    def _judge_row(self, key: Key, step: PlannedStep, row: int, tokens: tuple[int, ...]) -> Violation | None:
        plan = step.plan
        facts = self._requests.live.get(key)
        subject = f"plan {plan.plan_id}, request {key[0]}, choice {key[1]}"
        if facts is None:
            ended = self._requests.ended.get(key)
            if ended is not None and ended.finish_reason is FinishReason.ABORT:
                return Violation("SC-6", "abort", subject, "a row", "none: its abort was acknowledged")
            return Violation("SC-4", "lifecycle", subject, "a row", "none: the choice is not live")
        if plan.epochs[row] < facts.epoch:
            return Violation("AS-4", "identity", subject, f"epoch {plan.epochs[row]}", f"epoch {facts.epoch} or later")
        start, end = plan.starts[row], plan.starts[row] + plan.num_tokens[row]
        if plan.num_drafts:
            end -= plan.num_drafts[row]
        return (
            self._judge_start(key, start, len(plan.hit_blocks[row]), subject)
            or self._judge_end(key, start, end, plan.samples[row], subject)
            or _judge_tokens(facts, start, end, tokens, subject)
        )

    def _judge_end(self, key: Key, start: int, end: int, samples: bool, subject: str) -> Violation | None:
        facts = self._requests.live[key]
        total = len(facts.request.prompt) + len(facts.emitted) + self._ahead.get(key, 0)
        if not start < end <= total:
            return Violation(
                "SC-10", "chunks", subject, f"positions {start} to {end}", f"an end above {start}, at most {total}"
            )
        if samples != (end == total):
            told = "samples" if samples else "does not sample"
            return Violation(
                "SC-10", "chunks", subject, f"{start} to {end} {told}", f"only the chunk that ends at {total} samples"
            )
        return None

    def _judge_start(self, key: Key, start: int, hits: int, subject: str) -> Violation | None:
        scheduled = self._scheduled.get(key)
        if scheduled is not None:
            if start == scheduled and not hits:
                return None
            found = f"start {start} with {hits} hit blocks"
            return Violation("SC-10", "chunks", subject, found, f"start {scheduled}, the epoch's scheduled length")
        if start == hits * self._block_size:
            return None
        facts = self._requests.live[key]
        if key in self._put_out and not hits:
            return None  # the cells that it reads show whether what came back is what went
        is_forked = key[1] > 0 and not hits and (key[0], key[2]) in self._forkable
        if is_forked and start == len(facts.request.prompt) - 1:
            return None
        expected = f"start {hits * self._block_size}, behind its hits"
        return Violation("SC-10", "chunks", subject, f"start {start} with {hits} hit blocks", expected)

    def _count_overtakes(self, begun: list[Key]) -> None:
        lacking = () if self._adapters is None else self._adapters.excused
        for_slot = {} if self._adapters is None else self._adapters.facts.overtaken
        for key in begun:
            if key[1] > 0 and key not in self._waiting:
                continue  # a fork takes nobody's turn: its request was admitted before
            place = self._acceptance[key]
            for other in self._waiting:
                if self._acceptance[other] < place and other not in begun and other not in self.loading:
                    if other in lacking:
                        for_slot[other] = for_slot.get(other, 0) + 1
                    else:
                        self._waiting[other] += 1
                        if self._waiting[other] == self._age:
                            self._coming_of_age.add(other)

    def _count_passed(self, begun: list[Key]) -> None:
        acceptance, scheduled, passed = self._acceptance, self._scheduled, self._passed
        stood = [key for key in self._requests.live if key not in scheduled or key in begun]
        for key in begun:
            place = acceptance[key]
            for other in stood:
                if acceptance[other] >= place:
                    break  # they stand in the order of acceptance
                passed[other] = passed.get(other, 0) + 1

    # -- the clock ---------------------------------------------------------------------------------------------

    def asked(self) -> None:
        """A plan was asked for, whatever came of it."""
        self._asked += 1

    def advanced(self, now: float) -> None:
        for key in [key for key, deadline in self._deadlines.items() if deadline <= now]:
            del self._deadlines[key]
            self._late_since[key] = self._asked

    # -- what happens to choices ------------------------------------------------------------------------------

    def committed(self, rows: Iterable[Landed]) -> None:
        committed, ahead, in_a_row, last_token = self._committed, self._ahead, self._in_a_row, self._last_token
        now = self._iterations
        for key, end, sampled, emitted in rows:
            committed[key] = end
            if sampled:
                ahead[key] = ahead.get(key, 0) - 1
            if emitted:
                if key in in_a_row:
                    del in_a_row[key]
                last_token[key] = self._any_token = now

    def verified(self, rows: Iterable[Landed], with_drafts: Collection[Key]) -> None:
        """Rows with drafts landed, and ended for good where `committed` was told: the next ones begin there."""
        if with_drafts:
            self._scheduled.update((key, end) for key, end, _, _ in rows if key in with_drafts)

    def preempted(self, key: Key) -> None:
        self._in_a_row[key] = self._in_a_row.get(key, 0) + 1
        self.suspended(key)
        if self._may_swap:
            self._put_out.add(key)

    def suspended(self, key: Key) -> None:
        """Preempted, or restarted: it waits, and begins a new epoch later."""
        self._forget_epoch(key)
        self._waiting[key] = 0
        self._waits_anew(key)

    def voided(self, key: Key) -> None:
        """A restart took what the choice had; whether it waits (again), or for a fork, shows in the snapshot."""
        self._forget_epoch(key)
        self._waiting.pop(key, None)
        self._in_a_row.pop(key, None)
        self._forkable.discard((key[0], key[2]))

    def abandoned(self, key: Key, ahead: Sequence[tuple[int, bool]]) -> None:
        """Plans of the choice were lost. ``ahead``: end and `samples` of its rows that are still in flight, oldest first. It
        goes on behind those, or from what is committed, or begins its epoch anew."""
        self._ahead[key] = sum(samples for _, samples in ahead)
        scheduled = ahead[-1][0] if ahead else self._committed.get(key)
        if scheduled is not None:
            self._scheduled[key] = scheduled
        else:
            self._scheduled.pop(key, None)
            self._waiting[key] = 0
            self._waits_anew(key)

    def ended(self, key: Key) -> None:
        self._forget_epoch(key)
        for known in (
            self._waiting,
            self._passed,
            self._in_a_row,
            self._last_token,
            self._deadlines,
            self._late_since,
            self._begun,
        ):
            known.pop(key, None)
        self._waits_anew(key)
        self._of_age.discard(key)
        self._coming_of_age.discard(key)
        self._acceptance.pop(key, None)
        self._put_out.discard(key)
        life = key[0], key[2]
        if life in self._forkable and not any((other[0], other[2]) == life for other in self._requests.live):
            self._forkable.discard(life)

    def _waits_anew(self, key: Key) -> None:
        """Or not any more."""
        if self._adapters is not None:
            self._adapters.forget(key)

    def _forget_epoch(self, key: Key) -> None:
        self._scheduled.pop(key, None)
        self._committed.pop(key, None)
        self._ahead.pop(key, None)

    # -- what is known -----------------------------------------------------------------------------------------

    def overtaken(self) -> dict[Key, int]:
        return self._waiting

    def preemptions_in_a_row(self) -> dict[Key, int]:
        return self._in_a_row

    def of_age(self) -> set[Key]:
        """See `properties.moment.Facts`."""
        return self._of_age

    def came_of_age(self, bound: int) -> set[Key]:
        """Those that may have been overtaken so often. A bound of 0 is everybody's age."""
        return {key for key in self._requests.live if self._passed.get(key, 0) >= bound}

    def iterations_past_deadline(self) -> dict[Key, int]:
        return {key: self._asked - since for key, since in self._late_since.items()}

    def iterations_without_token(self) -> dict[Key, int]:
        """Plans since a choice that runs last emitted a token or began its epoch; for one that waits, since anybody emitted
        one: how long others may keep it waiting is a matter of overtakes."""
        now, anybody, running = self._iterations, self._any_token, self._scheduled
        return {key: now - (last if key in running or last > anybody else anybody) for key, last in self._last_token.items()}


def _judge_tokens(facts: ChoiceFacts, start: int, end: int, tokens: tuple[int, ...], subject: str) -> Violation | None:
    """The input tokens that the host knows are those of the prompt and the output at these positions."""
    prompt_len = len(facts.request.prompt)
    known = facts.request.prompt[start:end]
    if end > prompt_len:
        known += tuple(facts.emitted[max(start - prompt_len, 0) : end - prompt_len])
    if tokens != known:
        return Violation("SC-1", "pairing", subject, f"input tokens {list(tokens)}", f"{list(known)} at {start}")
    return None
