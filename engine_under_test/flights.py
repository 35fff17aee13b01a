"""Owns the plans in flight and the pairing of results with them (SC-1, AS-4). Never applies a result."""

from __future__ import annotations

from collections import deque
from itertools import chain

from engine_under_test.errors import ProtocolError
from engine_under_test.execution.runner import Launch
from engine_under_test.sequence import Sequence
from engine_under_test.types import Logprobs, Plan, PlannedStep, StepResult


class InFlight:
    """A reserved or launched step, with the sequences of its rows and those that it admitted."""

    __slots__ = ("admitted", "is_second_try", "launch", "plan_id", "seqs", "step")

    def __init__(self, step: PlannedStep, seqs: list[Sequence], admitted: list[Sequence], is_second_try: bool) -> None:
        self.step = step
        self.plan_id = step.plan.plan_id
        self.seqs = seqs
        self.admitted = admitted
        self.is_second_try = is_second_try
        self.launch: Launch | None = None

    def current(self) -> list[Sequence]:
        """The sequences whose identity is still the one that the plan names."""
        rows = self.step.plan.row_ids()
        return [seq for seq, row in zip(self.seqs, rows, strict=True) if seq.row_id == row]


class Flights:
    """Launched plans, oldest first, and the results that came before their turn."""

    __slots__ = ("_early", "_plans")

    def __init__(self) -> None:
        self._plans: deque[InFlight] = deque()
        self._early: dict[int, StepResult] = {}

    def __len__(self) -> int:
        return len(self._plans)

    @property
    def oldest(self) -> InFlight | None:
        return self._plans[0] if self._plans else None

    @property
    def oldest_id(self) -> int | None:
        return self._plans[0].plan_id if self._plans else None

    def has_second_try(self) -> bool:
        return bool(self._plans) and any(flight.is_second_try for flight in self._plans)

    def add(self, flight: InFlight) -> None:
        self._plans.append(flight)

    def pop_newest(self) -> InFlight:
        """The newest plan is lost, and its result, should it have come."""
        flight = self._plans.pop()
        self._early.pop(flight.plan_id, None)
        return flight

    def clear(self) -> None:
        self._plans.clear()
        self._early.clear()

    def accept(self, result: StepResult, generation: int, vocab_size: int) -> bool:
        """Takes a result in. False if no such plan of this generation is in flight: it is to be dropped whole.

        Raises ProtocolError if it is not what its plan asked for.
        """
        flight = next((each for each in self._plans if each.plan_id == result.plan_id), None)
        if flight is None or result.generation != generation:
            return False
        _require_fit(flight.step.plan, result, vocab_size)
        self._early.setdefault(result.plan_id, result)
        return True

    def pop_due(self) -> tuple[InFlight, StepResult] | None:
        """The oldest plan with its result, if that has come."""
        if not self._plans or self._plans[0].plan_id not in self._early:
            return None
        flight = self._plans.popleft()
        return flight, self._early.pop(flight.plan_id)


def _require_fit(plan: Plan, result: StepResult, vocab_size: int) -> None:
    if result.rows != plan.row_ids():
        raise ProtocolError(f"the result of plan {plan.plan_id} must name the plan's rows in their order, found {result.rows}")
    if result.logprobs or result.prompt_logprobs or plan.outputs:
        _require_told(plan, result)
    if plan.num_drafts:
        _require_verified(plan, result)
    fits = bool(plan.num_drafts) or list(map(len, result.tokens)) == list(plan.samples)
    sampled = list(chain.from_iterable(result.tokens))
    if not fits or (sampled and not 0 <= min(sampled) <= max(sampled) < vocab_size):
        raise ProtocolError(
            f"each sampling row of plan {plan.plan_id} must yield one token of the vocabulary and the others none, "
            f"found {result.tokens}"
        )


def _require_verified(plan: Plan, result: StepResult) -> None:
    """A row that samples yields its first drafts, as far as they stand, and one token more."""
    for row, (tokens, drafts, samples) in enumerate(zip(result.tokens, plan.drafts(), plan.samples, strict=True)):
        kept = tokens[:-1]
        if bool(tokens) is not samples or len(kept) > len(drafts) or kept != drafts[: len(kept)]:
            raise ProtocolError(
                f"row {row} of plan {plan.plan_id} must yield drafts that stand and one token more, or none if it does not "
                f"sample, found {tokens} behind the drafts {drafts}"
            )


def _require_told(plan: Plan, result: StepResult) -> None:
    """Log-probabilities come for the rows that ask, and for no other."""
    params = [request.sampling for request in plan.requests]
    due = [0 if each.logprobs is None else len(tokens) for each, tokens in zip(params, result.tokens, strict=False)]
    found = list(map(len, result.logprobs)) or [0] * len(due)
    of_prompts = result.prompt_logprobs or ((),) * len(due)
    asks = [each.prompt_logprobs is not None for each in params]
    if found != due or len(of_prompts) != len(asks) or any(map(_is_uncalled_for, of_prompts, asks)):
        raise ProtocolError(
            f"the result of plan {plan.plan_id} must have log-probabilities for each token of the rows that ask, {due}, and "
            f"for no other, found {found} and {list(map(len, of_prompts))} for prompt tokens"
        )


def _is_uncalled_for(told: tuple[Logprobs, ...], asks: bool) -> bool:
    return bool(told) and not asks
