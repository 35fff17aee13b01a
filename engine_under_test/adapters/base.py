"""The target protocol: what models, machines, generator and checkers know of an engine, whichever engine it is.

The harness drives a target with the verbs below and never sees more of it than they return. The harness is the device: it
takes a `PlannedStep`, executes it (now, late, or never) and hands the tokens back with `commit`.

One iteration of a synchronous target is `poll`, `plan`, `commit`, `take_outputs`. A target with
``caps.max_plans_in_flight`` of 2 or 3 may be asked for the next plan before the last one is committed; `plan` returns None
when there is nothing that may run now. Between verbs the target is at rest: `snapshot` may be called at any time and changes
nothing.

Not promised by a target, hence not to be relied upon: whether equal blocks are kept, merged or freed; whether content becomes
visible to look-ups at once or later (but never before it is committed); whether evicted-later blocks stand in the free list;
which free block is taken. What a target can not show is "not observable", which is never the same as passed.

Optional verbs are present exactly when `engine_under_test.caps.Caps` says so: call them only then.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from engine_under_test.caps import Caps, LinkFault
from engine_under_test.events import Event
from engine_under_test.execution.runner import Mover
from engine_under_test.types import Adapter, Admission, Output, PlannedStep, Request, Snapshot, StepResult


class Target(Protocol):
    """The verbs that every target offers."""

    @property
    def caps(self) -> Caps: ...

    def add(self, request: Request) -> Admission:
        """Offers a request. A refused one leaves no trace but its reason. An identifier may be used again after every
        choice of its earlier life has ended; it then gets a higher incarnation."""

    def abort(self, request_id: str) -> bool:
        """The user wants no more of the request. False, and nothing else, if it is not live. True: each of its live choices
        ends with FinishReason.ABORT at once, no later plan names it, and results for it still in flight are dropped."""

    def plan(self) -> PlannedStep | None:
        """Decides and reserves the next step and counts it as launched. None: nothing may run now. The harness owes one
        `commit` (or `abandon`) for each step it was given."""

    def commit(self, result: StepResult) -> None:
        """Hands in the tokens of a plan. Results may come in any order, late, or twice: one for a plan that is no longer in
        flight is dropped whole, one that comes early waits for the plans launched before it, and rows whose choice was
        aborted, preempted or ended since launch are dropped."""

    def take_outputs(self) -> tuple[Output, ...]:
        """What users are to be told since the last call: tokens and ends, from whichever verb they came."""

    def poll(self) -> int:
        """Lets fences, transfers and the clock advance; the number of plans in flight. Plans whose work the harness has
        finished are settled by it unless their fence is held (see `hold_fences` of targets with fences)."""

    def snapshot(self) -> Snapshot: ...

    def advance_clock(self, seconds: float) -> None:
        """Moves the target's clock forward by hand."""


class TransactionalTarget(Target, Protocol):
    """With ``has_transaction``, ``has_fences``, ``has_restart``, ``has_reset``, ``has_lookup``, ``has_adapter_loads`` and
    ``has_events``."""

    def reserve(self) -> PlannedStep | None:
        """The first half of `plan`: decided and reserved, not launched. Must be followed by `launch` or `rollback`."""

    def launch(self, step: PlannedStep) -> None:
        """The second half of `plan`."""

    def rollback(self, step: PlannedStep) -> None:
        """Undoes `reserve` as if it had not been; preemptions that made room for it stay."""

    def abandon(self, plan_id: int, reason: str, to_blame: Collection[int] = (), *, distrusts: bool = True) -> bool:
        """The device lost this plan: it and every later one in flight are abandoned. False if it is not in flight.

        ``to_blame``: its rows that alone made it fail, if that is known: their requests end, nobody else's.
        ``distrusts``: what they read may be the cause; otherwise that stays what it is for everybody else.
        """

    def refuse_block(self, kth: int | None) -> None:
        """The k-th block (from 1) taken from the free queue from now on is refused, once. None: none is."""

    def hold_fences(self, held: bool) -> None:
        """While held, `poll` settles no plan."""

    def reset_cache(self) -> None:
        """Empties the prefix index. Results in flight stay valid but publish nothing."""

    def restart(self) -> None:
        """A new generation: pool, index and fences start anew, plans in flight are void, live requests begin again and
        keep what they emitted."""

    def load_adapter(self, adapter: Adapter) -> bool:
        """From now on requests may name it, and no older version of its name. False, and nothing else, if it is refused."""

    def unload_adapter(self, adapter: Adapter) -> bool:
        """From now on no request may name it; those that did go on with it. False if it was not loaded."""

    def lookup(self, request: Request) -> tuple[int, ...]:
        """The blocks that the request would find in the prefix cache if it were admitted now."""

    def take_events(self) -> tuple[Event, ...]:
        """Events since the last call, in order."""


class RemoteTarget(TransactionalTarget, Protocol):
    """With ``has_remote``: its prefix cache goes on in a remote pool."""

    def attach(self, mover: Mover) -> None:
        """The harness plays the device: blocks are read and written there. Before anything else."""

    def disturb(self, fault: LinkFault) -> bool:
        """The link, or the pool behind it, fails or is healed. False: nothing has changed by that."""
