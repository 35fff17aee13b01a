"""Batches of rows asked of the sampler, each token and each telling judged by the law; and the smallest batch that goes wrong.

Owns the judgement of one batch, what it decided about, and how a batch is shrunk. Never which batches there are
(`sampler_cases.py`, `adjusted_cases.py`), or a suite's verdict (`sampler_law.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from differential.adjusted_cases import PROCESSORS, highest_token
from differential.adjusted_slips import adjusted_slips, telling_slips, told_values
from differential.sampler_cases import Batch, Case
from differential.sampler_slips import Reach, slips
from differential.sampling_stats import unread
from differential.well_formed import Malformed, answered, whole_numbers
from engine_under_test.sampling.adjustments import Processors
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.sampler import Draws, Sampled
from engine_under_test.seams import Noise
from engine_under_test.types import History, Logprobs, SamplingParams
from models.law_of_adjustments import adjusted, steps_of, wrong_telling
from models.law_of_filters import Address, Drawn, Floats, Kept, Tokens, UniformsAt, drawn, kept, masked, uniforms_at
from models.words import uniforms
from properties.verdict import Violation

_COARSE = 16  # values of the noise of some batches: among equal logits equal scores, which go to the lowest
_ADJUSTING = (
    "allowed_token_ids",
    "bad_words",
    "processors",
    "logit_bias",
    "repetition_penalty",
    "frequency_penalty",
    "presence_penalty",
)
Sample = Callable[[torch.Tensor, Draws, Noise, Processors], Sampled]


class CoarseNoise:
    """The law's noise, on a few values only."""

    def uniform(
        self,
        seeds: npt.NDArray[np.uint64],
        choices: npt.NDArray[np.uint32],
        positions: npt.NDArray[np.uint32],
        purpose: int,
        num_lanes: int,
    ) -> Floats:
        """See `seams.Noise`."""
        addresses = zip(seeds.tolist(), choices.tolist(), positions.tolist(), strict=True)
        rows = [uniforms(seed, choice, np.array([place]), purpose, num_lanes)[0] for seed, choice, place in addresses]
        return coarse(np.stack(rows))

    def uniform_at(self, seed: int, choice: int, position: int, purpose: int, lanes: Tokens) -> Floats:
        """See `seams.Noise`."""
        of_all: Floats = uniforms(seed, choice, np.array([position]), purpose, int(lanes.max(initial=0)) + 1)[0]
        return coarse(of_all[lanes])


def coarse(found: Floats) -> Floats:
    """The middle of the part of the unit interval in which each number lies."""
    return (np.floor(found * _COARSE) + 0.5) / _COARSE


def coarse_at(address: Address, lanes: Tokens) -> Floats:
    """The same for the law."""
    return coarse(uniforms_at(address, lanes))


@dataclass(slots=True)
class Rows:
    """Asks the sampler for the tokens of batches, and judges each."""

    sample: Sample
    noise: Noise = field(default_factory=PhiloxNoise)
    reach: Reach = field(default_factory=lambda: Reach({}))
    num_rows: int = 0
    num_undecided: int = 0
    num_told: int = 0
    num_batches: int = 0

    def judge(self, batch: Batch, *, is_coarse: bool) -> tuple[Violation, Batch] | None:
        """The first row of a batch whose token or telling is not the law's. Counts what the others decided about."""
        found = self._sampled(batch, is_coarse)
        if isinstance(found, Violation):
            return found, batch
        noise = coarse_at if is_coarse else uniforms_at
        logprobs = found.logprobs or (None,) * len(found.tokens)
        for case, token, told in zip(batch.cases, found.tokens, logprobs, strict=True):
            left = left_of(case)
            row = kept(left, case.sampling)
            draw = drawn(row, case.address, noise)
            if token not in draw.allowed:
                return _violation(case, batch, token, row, draw, noise), batch
            if (violation := self._judge_told(case, batch, left, row, token, told)) is not None:
                return violation, batch
            self.num_rows += 1
            self.num_undecided += len(draw.allowed) > 1
            self.reach.take(case, row, draw, noise)
        return None

    def _judge_told(
        self, case: Case, batch: Batch, left: Floats, row: Kept, token: int, told: Logprobs | None
    ) -> Violation | None:
        """SE-3 for one row, and what its telling decided about."""
        count = case.sampling.logprobs
        values = told_values(case, left, row)
        if values is None and count is not None:
            return None
        wrong = wrong_telling(told, left if values is None else values, token, count)
        if wrong is not None:
            facts = _facts(case, row, f"token {token}: {_logit(case, token)}")
            return Violation("SE-3", "log-probabilities", _words(batch), wrong, "what the law tells", facts)
        if count is not None and values is not None:
            self.num_told += 1
            for name, slipped in telling_slips(case, left, row, token):
                if self.reach.counted[name] < 2 * self.reach.floors.get(name, 0):
                    self.reach.count(name, wrong_telling(slipped, values, token, count) is not None)
        return None

    def _sampled(self, batch: Batch, is_coarse: bool) -> Sampled | Violation:
        """What the sampler says, and whether it left the logits as they were."""
        logits = torch.from_numpy(np.stack([case.logits for case in batch.cases]))
        asked = logits.bfloat16() if batch.is_bfloat16 else logits.clone()
        noise, num = CoarseNoise() if is_coarse else self.noise, len(batch.cases)
        try:
            found = answered("the sampler", partial(self.sample, asked, draws_of(batch.cases), noise, PROCESSORS))
            whole_numbers(found.tokens, "token", num, 0, logits.shape[1] - 1)
        except Malformed as error:
            return unread(_words(batch), error)
        if not torch.equal(asked.float(), logits):
            return Violation(
                "SE-3", "log-probabilities", _words(batch), "the sampler changed the logits", "they stay as they are"
            )
        if len(found.logprobs) not in (0, num):
            said = f"{len(found.logprobs)} tellings"
            return Violation("SC-13", "rows", _words(batch), said, f"one for each of {num} rows")
        return found


def draws_of(cases: Sequence[Case]) -> Draws:
    """What the rows ask, as the sampler takes it."""
    return Draws(
        [case.sampling for case in cases],
        [case.choice for case in cases],
        [case.position for case in cases],
        [case.prompt_len for case in cases],
        [case.history if case.sampling.needs_history else None for case in cases] if any(map(_asks, cases)) else (),
    )


def _asks(case: Case) -> bool:
    return case.sampling.needs_history


def left_of(case: Case) -> Floats:
    """The row of a case behind adjustments and mask."""
    logits = case.logits.astype(np.float64)
    if case.history is not None:
        logits = adjusted(logits, steps_of(case.sampling, case.history), PROCESSORS)
    return masked(logits, case.sampling, case.address.index)


def law_of(case: Case, noise: UniformsAt = uniforms_at) -> tuple[Kept, Drawn]:
    """What may come of a row, and what does."""
    row = kept(left_of(case), case.sampling)
    return row, drawn(row, case.address, noise)


# A wrong token


def _violation(case: Case, batch: Batch, token: int, row: Kept, draw: Drawn, noise: UniformsAt) -> Violation:
    name, invariant = _broken(case, token, row)
    behind = draw.behind(token)
    said = f"token {token}, " + (f"whose score is {behind:.4g} lower" if np.isfinite(behind) else "which may not come at all")
    known = slips if case.history is None else adjusted_slips
    explained = [slip for slip, other in known(case, row, noise) if other() == token]
    logits = f"token {token}: {_logit(case, token)}, token {draw.token}: {case.logits[draw.token]:.6g}"
    facts = (
        *_facts(case, row, logits),
        *((f"{'as it would':<13} be with: {', '.join(explained)}",) if explained else ()),
    )
    return Violation(invariant, name, _words(batch), said, f"token {draw.token}", facts)


def _facts(case: Case, row: Kept, logits: str) -> tuple[str, ...]:
    address, history = case.address, case.history
    return (
        f"{'logits':<13} {case.kind}, {len(case.logits):,} tokens; {logits}",
        f"{'parameters':<13} {_told(case.sampling)}",
        f"{'address':<13} seed {address.seed}, choice {address.choice}, position {address.position} (output {address.index})",
        *((f"{'history':<13} prompt {list(history.prompt)}, output {list(history.output)}",) if history else ()),
        f"{'kept':<13} {len(row.tokens):,} tokens" + ("" if row.temperature else " (greedy)"),
    )


def _broken(case: Case, token: int, row: Kept) -> tuple[str, str]:
    """The sentence that a wrong token breaks."""
    sampling = case.sampling
    if sampling.min_tokens > case.address.index and token in sampling.stop_token_ids:
        return "stopping", "SC-12"
    if sampling.temperature == 0:
        return "greedy equality", "SE-1"
    return ("seeded equality", "SE-2") if token in row.tokens else ("sampler", "ST-2")


def _logit(case: Case, token: int) -> str:
    return f"{case.logits[token]:.6g}" if 0 <= token < len(case.logits) else "not in the vocabulary"


def _told(sampling: SamplingParams) -> str:
    plain = SamplingParams()
    names = ("temperature", "min_p", "top_k", "top_p", "min_tokens", "stop_token_ids", *_ADJUSTING, "logprobs")
    told = [f"{name} {getattr(sampling, name)}" for name in names if getattr(sampling, name) != getattr(plain, name)]
    if sampling.logprobs is not None:
        told.append(f"logprobs_mode {sampling.logprobs_mode.value}")
    return ", ".join(told) or "greedy"


def _words(batch: Batch) -> str:
    num = len(batch.cases)
    return f"a batch of {num} row{'s' if num > 1 else ''}{' in bfloat16' if batch.is_bfloat16 else ''}"


def smallest(sample: Sample, violation: Violation, batch: Batch, is_coarse: bool, seconds: float) -> tuple[Violation, Batch]:
    """The same sentence broken in the smallest batch found, each tried with fresh noise: rows, then their parameters, what
    stands in front of them, and the vocabulary."""
    ends_at = time.monotonic() + seconds
    is_better = True
    while is_better and time.monotonic() < ends_at:
        is_better = False
        for smaller in _smaller(batch):
            found = Rows(sample).judge(smaller, is_coarse=is_coarse) if time.monotonic() < ends_at else None
            if found is not None and found[0].invariant == violation.invariant:
                (violation, batch), is_better = found, True
                break
    return violation, batch


def _smaller(batch: Batch) -> Iterator[Batch]:
    cases = batch.cases
    if len(cases) > 1:
        half = len(cases) // 2
        yield from (replace(batch, cases=part) for part in (cases[:half], cases[half:]))
        yield from (replace(batch, cases=cases[:place] + cases[place + 1 :]) for place in range(len(cases)))
    for place, case in enumerate(cases):
        for smaller in _smaller_cases(case):
            yield replace(batch, cases=(*cases[:place], smaller, *cases[place + 1 :]))
    size = len(cases[0].logits)
    for less in (size // 2, size - size // 4, size - 1):
        is_whole = less > max(map(highest_token, cases))
        if 0 < less < size and is_whole and np.isfinite(max(case.logits[:less].max() for case in cases)):
            yield replace(batch, cases=tuple(replace(case, logits=case.logits[:less]) for case in cases))


def _smaller_cases(case: Case) -> Iterator[Case]:
    sampling, plain = case.sampling, SamplingParams()
    for name in (*_ADJUSTING, "logprobs", "min_p", "top_k", "top_p", "stop_token_ids", "seed"):
        if getattr(sampling, name) != getattr(plain, name):
            yield replace(case, sampling=replace(sampling, **{name: getattr(plain, name)}))
    if sampling.temperature not in (0.0, 1.0):
        yield replace(case, sampling=replace(sampling, temperature=1.0))
    if case.choice:
        yield replace(case, choice=0)
    if case.history is not None:
        yield from (_with_history(case, history) for history in _shorter(case.history))
    elif case.prompt_len > 1:
        yield replace(case, prompt_len=1, position=case.address.index + 1)


def _with_history(case: Case, history: History) -> Case:
    prompt_len = len(history.prompt)
    return replace(case, history=history, prompt_len=prompt_len, position=prompt_len + len(history.output))


def _shorter(history: History) -> Iterator[History]:
    """With the first half of prompt or output left out, or its first token; a prompt keeps its last token."""
    prompt, output = history
    for gone in dict.fromkeys((len(prompt) // 2, 1)):
        if 0 < gone < len(prompt):
            yield History(prompt[gone:], output)
    for gone in dict.fromkeys((-(-len(output) // 2), 1)):
        if 0 < gone <= len(output):
            yield History(prompt, output[gone:])
