"""What goes wrong on purpose in a run, and who suffers from it: memory that says no, logits that are no numbers, lost plans.

Owns the double of the seam `Memory`, weights with such tokens, and the rule of who is to end with an error. Never a comparison
of tokens or logits (`compare.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional

from differential.compare import Divergence, Emitted
from differential.setting import Setting
from engine_under_test.model.llama import Product
from engine_under_test.model.weights import LlamaWeights
from engine_under_test.seams import Space
from engine_under_test.types import FinishReason, Plan
from properties.invariants.catalogue import CATALOGUE
from properties.verdict import Violation

OF_MEMORY, OF_NUMBERS = "memory", "NaN"  # words of the reasons
_SPARE = 16.0  # what a token after which a logit overflows has in the spare unit; a norm leaves above 2 of it
_HUGE = 3e38  # near the end of float32 and bfloat16, but a number


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

    def admit(self, num_bytes: int, space: Space = Space.DEVICE) -> bool:
        """See `seams.Memory`."""
        del num_bytes, space
        if not self.asked:
            return True
        self.asked[-1] += 1
        number = len(self.asked) - 1
        is_refused = number < len(self._refuses) and self._refuses[number] == self.asked[-1]
        self.refused[-1] |= is_refused  # an older plan may ask again before the next launch
        return not is_refused


def with_sick_tokens(weights: LlamaWeights, setting: Setting) -> LlamaWeights:
    """The embeddings of some tokens are NaN; or numbers that a row of the head, of numbers too, turns into an infinite logit.
    The rest of the head, tied or not, stays as it is, and so does every logit after other tokens."""
    if not setting.sick_tokens:
        return weights
    embedding, head = weights.embedding.clone(), weights.head.clone()
    embedding[list(setting.nan_tokens)] = torch.nan
    if setting.overflow_tokens:
        embedding[list(setting.overflow_tokens), 0] = _SPARE
        head[setting.overflow_column, 0] = -_HUGE if setting.overflows_down else _HUGE
    return replace(weights, embedding=embedding, head=head)


def sick_product(weights: LlamaWeights, setting: Setting) -> Product | None:
    """Products of which one number is NaN where it would overflow: no weights of numbers do that in every order of a sum."""
    if not setting.overflows_to_nan:
        return None

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        found = functional.linear(x, w)
        if w is weights.head:
            found[:, setting.overflow_column].masked_fill_(found[:, setting.overflow_column].isinf(), torch.nan)
        return found

    return product


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
        """How many tokens come before the first row whose logits are not numbers; None: there is no such row."""
        sick, prompt = self.setting.sick_tokens, run.request.prompt
        if set(prompt).intersection(self.setting.nan_tokens) or prompt[-1] in sick:
            return 0
        fed = run.tokens[: run.request.sampling.max_tokens - 1]
        return next((place + 1 for place, token in enumerate(fed) if token in sick), None)


def due_of(setting: Setting, plans: Sequence[Plan], refused: Sequence[bool], gone: Sequence[tuple[int, int]] = ()) -> Due:
    """A step that failed is tried once more, with at most half its rows; if that fails, these rows end.

    ``gone``: each plan that the engine gave up, with the number of plans launched by then, in order; of several at once the
    oldest, which has failed, comes last. Every step allocates: so where the first allocation of a launch is to be refused, the
    memory was asked for it.
    """
    for number, plan in enumerate(plans):
        if not refused[number] and number < len(setting.refuses) and setting.refuses[number] == 1:
            return Due(setting, violation=_ran_without_memory(plan))
    lost: set[str] = set()
    by_id = {plan.plan_id: plan for plan in plans}
    failed = {launched: by_id[plan_id] for plan_id, launched in gone}  # by the number of the launch that comes next
    second_tries: set[int] = set()
    for launched, plan in failed.items():
        if setting.sick_tokens:  # the rows to blame have ended instead
            break
        if plan.plan_id in second_tries:
            lost.update(request.request_id for request in plan.requests)
        elif launched < len(plans):
            second_tries.add(plans[launched].plan_id)
            if (violation := _no_half(plan, plans[launched])) is not None:
                return Due(setting, frozenset(lost), violation)
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
