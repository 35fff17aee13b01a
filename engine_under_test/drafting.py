"""Drafts in the engine: who is asked for some, when, and who is told what became of them.

Owns the proposer's side of a step. Never: which drafts still fit (`scheduling/scheduler.py`), their slots
(`kv/transaction.py`), or whether they stand (the runner verifies them).

When. Just before a plan is made, every running choice is asked whose tokens are all known, once for each state of them: what
was proposed stays until a token comes, however often the choice is passed over, so that drafts depend on its text alone and not
on what else ran. A choice with a token on its way waits for it, as long as anything is proposed for it at all: nobody knows
where the token behind verified drafts will stand. If nothing was proposed, it runs ahead of one plan, as without speculation.
So with overlap, plans take turns between choices with drafts. The rows of a failed step are tried again without drafts.

What is told. `repair` follows each landing of a choice that was asked, and says how much of it stands. When a choice ends, is
preempted or begins again, it is told that nothing does: so a proposer keeps nothing of a choice that is not there any more.

How many. As many as the proposer may name, or what a `WidthController` says before each asking; it is told of each plan that
landed. At width 0 nobody is asked, and whoever was asked before has been told of its last landing: nothing is left behind.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Items
from functools import partial
from typing import Protocol

from engine_under_test.clock import SystemClock
from engine_under_test.config import EngineConfig
from engine_under_test.errors import ProtocolError, RunnerError
from engine_under_test.sampling.controller import Conditions, Seconds, Trial, WidthController
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.speculation import Ask, Proposal, Proposer, Repair, check_proposal
from engine_under_test.seams import Clock, Grammars, Noise
from engine_under_test.sequence import Sequence
from engine_under_test.types import Plan, RowId


class Drafted(Protocol):
    """Whom to ask: the running choices in order, and those alone that may be planned (None: all)."""

    @property
    def running(self) -> Items[Sequence]: ...
    @property
    def only(self) -> Collection[Sequence] | None: ...
    @property
    def waiting(self) -> Items[Sequence]: ...
    @property
    def num_free(self) -> int: ...
    @property
    def config(self) -> EngineConfig: ...


class _Pace:
    """A controller with the clock that it needs: what stages of plans take. Behind other plans in flight a plan begins when the
    one before it has landed."""

    def __init__(self, controller: WidthController, clock: Clock) -> None:
        self.controller = controller
        self._clock = clock
        self._propose_s = 0.0  # of the plan that is being made
        self._launched: dict[int, tuple[float, float]] = {}  # when, and how long its drafts took
        self._landed_s = 0.0

    def width(self, book: Drafted) -> int:
        running = book.running
        return self.controller.choose(Conditions(len(running), book.num_free, book.config.block_size, len(book.waiting)))

    def timed(self, propose: Callable[[], Proposal]) -> Proposal:
        began = self._clock.now()
        proposal = propose()
        self._propose_s = self._clock.now() - began
        return proposal

    def launched(self, plan_id: int) -> None:
        self._launched[plan_id] = self._clock.now(), self._propose_s
        self._propose_s = 0.0

    def landed(self, plan: Plan, tokens: Items[Items[int]]) -> None:
        now = self._clock.now()
        for lost in [plan_id for plan_id in self._launched if plan_id < plan.plan_id]:
            del self._launched[lost]
        began, propose_s = self._launched.pop(plan.plan_id, (now, 0.0))
        widths = plan.num_drafts or (0,) * plan.num_rows
        trials = [Trial(width, len(found) - 1) for width, found in zip(widths, tokens, strict=True) if width]
        self.controller.observe(plan.num_rows, trials, Seconds(propose_s, now - max(began, self._landed_s)))
        self._landed_s = now


class Drafting:
    """A proposer in the hands of an engine. ``most``: drafts for a row and step, if fewer than the proposer may name.
    ``controller``: says how many of these, plan by plan, by ``clock``."""

    def __init__(
        self,
        proposer: Proposer,
        *,
        most: int | None = None,
        noise: Noise | None = None,
        controller: WidthController | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.proposer = proposer
        self._pace = None if controller is None else _Pace(controller, SystemClock() if clock is None else clock)
        self._noise: Noise = PhiloxNoise() if noise is None else noise
        declared = proposer.declaration.max_drafts
        self.max_drafts = declared if most is None else min(most, declared)
        self.num_proposed = 0  # drafts of plans that landed
        self.num_accepted = 0  # those of them that were verified to stand
        self.num_failed = 0  # askings that came to nothing, since the proposer failed

    def ask(self, book: Drafted, grammars: Grammars | None = None) -> None:
        """Has drafts proposed for everybody who may be asked now and was not yet; none that a grammar forbids."""
        if book.only is not None:
            return
        seqs = [seq for seq in book.running if seq.drafted_at != len(seq.tokens) and _is_ready(seq)]
        if not seqs:
            return
        most = self.max_drafts if self._pace is None else min(self.max_drafts, self._pace.width(book))
        asks = []
        for seq in seqs:
            seq.drafted_at, seq.drafts, seq.draft_laws = len(seq.tokens), (), None
            params = seq.request.sampling
            width = min(most, params.max_tokens - (len(seq.tokens) - seq.prompt_len) - 1)
            asks.append(Ask(seq.row_id, seq.tokens, params, width, seq.prompt_len))
        wanted = [number for number, ask in enumerate(asks) if ask.width > 0]
        if not wanted:
            return
        asks = [asks[number] for number in wanted]
        for number in wanted:
            seqs[number].was_asked = True
        try:
            proposal = self._propose(asks) if self._pace is None else self._pace.timed(partial(self._propose, asks))
        except ProtocolError:  # a proposer that breaks its contract
            raise
        except Exception:  # drafts are never needed, whatever its device has failed in: these states of the rows go on without
            self.num_failed += 1
            return
        end = 0
        for number, ask, drafts in zip(wanted, asks, proposal.drafts, strict=True):
            if proposal.probabilities is None:
                seqs[number].drafts = drafts[: _num_grammatical(ask, drafts, grammars)]
            elif drafts:  # each must be judged, whatever it is: to leave one out for what it is would favour others
                end += len(drafts)
                seqs[number].drafts = drafts
                seqs[number].draft_laws = proposal.probabilities[end - len(drafts) : end]

    def _propose(self, asks: list[Ask]) -> Proposal:
        proposal = self.proposer.propose(asks, self._noise)
        check_proposal(self.proposer.declaration, asks, proposal)
        return proposal

    def launched(self, plan_id: int) -> None:
        """A plan is on its way."""
        if self._pace is not None:
            self._pace.launched(plan_id)

    def plan_landed(self, plan: Plan, tokens: Items[Items[int]]) -> None:
        """With its results, row by row. Plans that were launched before it and have not landed never will."""
        if plan.num_drafts:
            self.num_proposed += sum(plan.num_drafts)
            self.num_accepted += sum([len(found) - 1 for num, found in zip(plan.num_drafts, tokens, strict=True) if num])
        if self._pace is not None:
            self._pace.landed(plan, tokens)

    def landed(self, seq: Sequence, num_accepted: int) -> None:
        """A step of a choice that goes on has landed."""
        if seq.was_asked:
            self.proposer.repair((Repair(seq.row_id, num_accepted, len(seq.tokens)),))

    def forget(self, seq: Sequence, row: RowId) -> None:
        """The choice is over under this identity: ended, preempted, or void."""
        if seq.was_asked:
            seq.was_asked = False
            self.proposer.repair((Repair(row, 0, 0),))


def _num_grammatical(ask: Ask, drafts: Items[int], grammars: Grammars | None) -> int:
    """How many of the drafts the row's grammar allows, if it has one."""
    spec = ask.params.grammar
    if spec is None or grammars is None:
        return len(drafts)
    try:
        return grammars.num_allowed(spec, ask.tokens[ask.prompt_len :], drafts, ask.params.stop_token_ids)
    except RunnerError:  # more work than a step may be: the runner says so of the token that is really wanted
        return 0


def _is_ready(seq: Sequence) -> bool:
    """All its tokens are known, and the next row computes the last of them alone."""
    if seq.pending_forks or any(row.samples for row in seq.rows):
        return False
    return len(seq.tokens) - seq.scheduled_len == 1
