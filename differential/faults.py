"""What goes wrong on purpose in a run, and who may suffer from it: memory that says no, and tokens that are not numbers.

Owns the double of the seam `Memory`, weights with such tokens, and the rule of who is to end with an error. Never a comparison
of tokens or logits (`compare.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from differential.compare import Divergence, Emitted
from differential.setting import Setting
from engine_under_test.model.weights import LlamaWeights
from engine_under_test.types import FinishReason, Plan
from properties.invariants.catalogue import CATALOGUE
from properties.verdict import Violation

OF_MEMORY, OF_NUMBERS = "memory", "NaN"  # words of the reasons


class StepwiseMemory:
    """The seam `Memory`: refuses the k-th allocation of the i-th launch where ``refuses[i]`` is k."""

    def __init__(self, refuses: Sequence[int] = ()) -> None:
        self._refuses = refuses
        self.asked: list[int] = []  # allocations, by launch
        self.refused: list[bool] = []  # by launch

    def begin(self) -> None:
        """A launch begins."""
        self.asked.append(0)
        self.refused.append(False)

    def admit(self, num_bytes: int) -> bool:  # noqa: ARG002 - the seam's signature
        """See `seams.Memory`."""
        if not self.asked:
            return True
        self.asked[-1] += 1
        number = len(self.asked) - 1
        self.refused[-1] = number < len(self._refuses) and self._refuses[number] == self.asked[-1]
        return not self.refused[-1]


def with_nan_tokens(weights: LlamaWeights, tokens: Sequence[int]) -> LlamaWeights:
    """The embeddings of these tokens are NaN; the head, tied or not, stays as it is."""
    if not tokens:
        return weights
    embedding = weights.embedding.clone()
    embedding[list(tokens)] = torch.nan
    return replace(weights, embedding=embedding)


@dataclass(frozen=True, slots=True)
class Due:
    """What is to come of the faults. ``lost``: requests that were in a second try which failed too."""

    setting: Setting
    lost: frozenset[str] = frozenset()
    violation: Violation | None = None

    def judge(self, run: Emitted) -> Divergence | None:
        """SC-12: a request that the faults end has ended with an error, where it had to, and says why. Only for those
        of whom `ends` is true."""
        num = self._tokens_before(run)
        reason = OF_MEMORY if num is None else OF_NUMBERS
        is_told = reason in run.message
        if run.end is FinishReason.ERROR and is_told and num in (None, len(run.tokens)):
            return None
        found = f"ended by {run.end.value if run.end else 'nothing'} after {len(run.tokens)} tokens {run.message}".strip()
        after = "" if num is None else f" after {num}"
        what = f"{found}; due: {FinishReason.ERROR.value}{after} that names {reason}"
        index = max(len(run.tokens) - 1, 0)
        token = run.tokens[index] if run.tokens else 0
        position = len(run.request.prompt) + index
        return Divergence("SC-12", what, run.request.request_id, run.choice, index, position, token, token, 1.0, 0.0)

    def ends(self, run: Emitted) -> bool:
        """The request is to end with an error."""
        return run.request.request_id in self.lost or self._tokens_before(run) is not None

    def _tokens_before(self, run: Emitted) -> int | None:
        """How many tokens come before the first row that reads a token which is not a number; None: there is no such row."""
        if set(run.request.prompt).intersection(self.setting.nan_tokens):
            return 0
        fed = run.tokens[: run.request.sampling.max_tokens - 1]
        return next((place + 1 for place, token in enumerate(fed) if token in self.setting.nan_tokens), None)


def due_of(setting: Setting, plans: Sequence[Plan], refused: Sequence[bool]) -> Due:
    """A step that was refused memory is tried once more, with at most half its rows; if that fails, these rows end.

    Every step allocates: so where the first allocation of a launch is to be refused, the memory was asked for it. For launches
    one at a time.
    """
    lost: set[str] = set()
    first_try: Plan | None = None
    for number, plan in enumerate(plans):
        if first_try is not None and (violation := _no_half(first_try, plan)) is not None:
            return Due(setting, frozenset(lost), violation)
        if not refused[number] and number < len(setting.refuses) and setting.refuses[number] == 1:
            return Due(setting, frozenset(lost), _ran_without_memory(plan))
        if not refused[number]:
            first_try = None
        elif first_try is None:
            first_try = plan
        else:
            lost.update(request.request_id for request in plan.requests)
            first_try = None
    return Due(setting, frozenset(lost))


def _ran_without_memory(plan: Plan) -> Violation:
    subject = f"plan {plan.plan_id}, whose first allocation the memory refuses"
    found = f"{plan.num_rows} rows that ran without a question to the memory"
    return Violation("SC-2", CATALOGUE["SC-2"].name, subject, found, "a step that asks for what it allocates, and fails")


def _no_half(plan: Plan, second: Plan) -> Violation | None:
    most = -(-plan.num_rows // 2)
    rows = {row_id[:3] for row_id in plan.row_ids()}
    if second.num_rows <= most and rows.issuperset(row_id[:3] for row_id in second.row_ids()):
        return None
    return Violation(
        "SC-2",
        CATALOGUE["SC-2"].name,
        f"plan {second.plan_id}, the second try of plan {plan.plan_id}, which failed",
        f"{second.num_rows} rows: {_names(second)}",
        f"at most {most} of its {plan.num_rows} rows: {_names(plan)}",
    )


def _names(plan: Plan) -> str:
    return ", ".join(
        f"{request.request_id} choice {choice}" for request, choice in zip(plan.requests, plan.choices, strict=True)
    )


def refusals(setting: Setting, memory: StepwiseMemory) -> Mapping[str, int]:
    """How often each allocation of a step was refused, for what a run has reached."""
    found: dict[str, int] = {}
    for is_refused, k in zip(memory.refused, setting.refuses, strict=False):
        if is_refused:
            found[f"allocation {k} refused"] = found.get(f"allocation {k} refused", 0) + 1
    return found
