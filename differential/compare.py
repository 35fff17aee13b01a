"""Is what the engine computed what an oracle says? Teacher-forced on the engine's own tokens, first divergence named.

Owns the stated tolerances, what counts as a tie, and the value `Divergence`. Never runs an engine (`running.py`).

A tolerance is a share of the spread (standard deviation) of the oracle's logits in a row, so that one figure serves models
whose logits differ in size. Which token follows is asked of `models.law_of_filters`, for greedy, seeded and filtered requests
alike: by the oracle's logits, each of which may be off by the tolerance, so that what can not be told apart ties; and apart
from that by the engine's own logits, exactly.

Measured with oracle one in float64, as shares of the spread (worst logit of a row):

    model     type      rows                     median    1 in 1,000   worst     stated
    tiny      float32   8,736 x 3 seeds          1.2e-6    -            7.1e-6    1e-4
    tiny      bfloat16  7,800, of 150 models     0.030     0.141        0.256     1.0
    SmolLM2   float32   296 under 4 settings     9e-6      -            2.7e-5    3e-4

A row whose queries are turned one position too far is off by 1.2 (median) on tiny models and by 1.9 at least on SmolLM2. The
tail of bfloat16 is long, hence its wide bound for a single row; the median over a run has a narrow one, `TYPICAL`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from differential.made_media import spell_out
from engine_under_test.types import FinishReason, History, Logprobs, LogprobsMode, Request
from models.law_of_adjustments import adjusted, steps_of, wrong_telling
from models.law_of_filters import Address, Drawn, kept, masked, next_token, told_of
from properties.invariants.catalogue import CATALOGUE
from properties.verdict import Violation

# Largest share of the spread by which a logit of the engine may differ, by the type in which the engine computes.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1.0}
TOLERANCES_OF_MODELS = {("smollm2", torch.float32): 3e-4}
# The same for the median over the rows of a run, of at least so many.
TYPICAL = {torch.float32: 2e-5, torch.bfloat16: 0.1}
TYPICAL_OF_MODELS = {("smollm2", torch.float32): 5e-5}
LEAST_ROWS = 16


def typical_of(dtype: torch.dtype, model: str = "tiny") -> float:
    """What the median may come to."""
    return TYPICAL_OF_MODELS.get((model, dtype), TYPICAL[dtype])


def tolerance_of(dtype: torch.dtype, model: str = "tiny") -> float:
    """The share for a model; deep ones have their own."""
    return TOLERANCES_OF_MODELS.get((model, dtype), TOLERANCES[dtype])


class Oracle(Protocol):
    """Whoever knows the logits of a token sequence."""

    @property
    def name(self) -> str: ...

    def logits(self, tokens: tuple[int, ...], begin: int) -> torch.Tensor:
        """[len(tokens) - begin, vocab] float64: row ``i`` is what follows position ``begin + i``."""


class CachedOracle:
    """Remembers what it was asked: most settings lead to the same tokens."""

    def __init__(self, name: str, ask: Callable[[tuple[int, ...], int], torch.Tensor], most: int = 256) -> None:
        self.name = name
        self._ask = ask
        self._most = most
        self._known: dict[tuple[tuple[int, ...], int], torch.Tensor] = {}

    def logits(self, tokens: tuple[int, ...], begin: int) -> torch.Tensor:
        """See `Oracle`."""
        key = tokens, begin
        if key not in self._known:
            if len(self._known) >= self._most:
                del self._known[next(iter(self._known))]
            self._known[key] = self._ask(tokens, begin).double()
        return self._known[key]


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """One choice of a request as an engine ran it: its tokens, the raw logits behind each [tokens, vocab], how it ended, and
    the log-probabilities that its user was told of tokens and prompt."""

    request: Request
    choice: int
    tokens: tuple[int, ...]
    logits: torch.Tensor
    end: FinishReason | None
    message: str = ""
    logprobs: tuple[Logprobs, ...] = ()
    prompt_logprobs: tuple[Logprobs, ...] = ()

    @property
    def forced(self) -> tuple[int, ...]:
        """What a teacher hands to an oracle: everything that stood before the last token, media spelled out."""
        return spell_out(self.request, self.request.prompt + self.tokens[:-1])


@dataclass(frozen=True, slots=True)
class Seen:
    """The logits of both candidates, as one of the parties sees them."""

    by: str
    of_token: float
    of_other: float


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where a run is not what it should be.

    ``token`` is the engine's; ``other`` the candidate against it: the token that should have come, or, if that is the same
    one, the token whose logit is off the most. ``position`` is the index of the token in prompt + output, ``index`` that in
    the output. ``error``: how far off, and ``allowed``: how far it may be, both in logits.
    """

    invariant: str
    what: str
    request_id: str
    choice: int
    index: int
    position: int
    token: int
    other: int
    error: float
    allowed: float
    seen: tuple[Seen, ...] = ()

    def violation(self, facts: tuple[str, ...] = ()) -> Violation:
        """The same for a report."""
        told = tuple(
            f"{each.by:<13} token {self.token}: {each.of_token:.6f}   token {self.other}: {each.of_other:.6f}"
            for each in self.seen
        )
        return Violation(
            self.invariant,
            CATALOGUE[self.invariant].name,
            f"request {self.request_id}, choice {self.choice}, token {self.index} (position {self.position})",
            f"{self.what}: off by {self.error:.4g}",
            f"at most {self.allowed:.4g}",
            (*told, *facts),
        )


def law_of(run: Emitted, index: int, row: torch.Tensor, slack: float = 0.0) -> Drawn:
    """What may follow the first ``index`` tokens by the law if each logit of a row is off by at most ``slack``."""
    request = run.request
    address = Address(request.sampling.seed, run.choice, len(request.prompt) + index, index)
    history = History(request.prompt, run.tokens[:index])
    return next_token(row.double().numpy(), request.sampling, address, slack, history=history)


def against_oracle(run: Emitted, oracle: Oracle, share: float) -> Divergence | None:
    """SE-3: each row of logits equals the oracle's within `share` of its spread. SE-1, and SE-2 for seeded requests: each token
    is the law's, or ties with it; SC-12 where it is a stop token before `min_tokens`. The first row that breaks one of them,
    the token's claim before the logits'."""
    if not run.tokens:
        return None
    truth = oracle.logits(run.forced, len(run.request.prompt) - 1)
    allowed = share * truth.std(dim=1)
    errors = (run.logits.double() - truth).abs()
    worst = errors.amax(dim=1)
    if (told := wrongly_told(run, oracle, share)) is not None:
        return told
    for index, token in enumerate(run.tokens):
        found = _not_of_its_own(run, index) or _wrong_token(run, oracle, index, truth[index], float(allowed[index]))
        if found is not None:
            return found
        if not worst[index] <= allowed[index]:  # also where it is not a number
            best = int(truth[index].argmax())
            other = best if best != token else _worst_but(errors[index], token)
            return _divergence(
                "SE-3", f"a logit is not {oracle.name}'s", run, index, other, float(worst[index]), float(allowed[index]),
                _seen(run, index, other, oracle.name, truth[index]),
            )  # fmt: skip
    return None


def wrongly_told(run: Emitted, oracle: Oracle, share: float) -> Divergence | None:
    """SE-3: what the user was told of each token is the log-softmax of the engine's own logits, exactly; and what was told of
    the prompt, whose logits nobody shows, that of the oracle's within `share` of their spread."""
    sampling = run.request.sampling
    due = 0 if sampling.logprobs is None else len(run.tokens)
    if len(run.logprobs) != due and run.tokens:
        what = f"log-probabilities of {len(run.logprobs)} tokens are told, not of {due}"
        return _divergence("SE-3", what, run, 0, run.tokens[0], float(abs(len(run.logprobs) - due)), 0.0, ())
    if not sampling.needs_history:
        return None
    for index, token in enumerate(run.tokens):
        told = run.logprobs[index] if index < len(run.logprobs) else None
        values = told_values(run.request, run.tokens[:index], run.logits[index].double().numpy())
        if values is not None and (wrong := wrong_telling(told, values, token, sampling.logprobs)) is not None:
            return _divergence("SE-3", wrong, run, index, token, 1.0, 0.0, ())
    return _wrongly_told_of_prompt(run, oracle, share)


def told_values(request: Request, output: tuple[int, ...], logits: npt.NDArray[np.float64]) -> npt.NDArray[np.float64] | None:
    """Of which values a row's log-probabilities are to be told; None where rounding decides, or a logit is no number."""
    sampling = request.sampling
    if not np.isfinite(logits).all():
        return None
    if sampling.logprobs_mode is LogprobsMode.RAW:
        return logits
    left = masked(adjusted(logits, steps_of(sampling, History(request.prompt, output))), sampling, len(output))
    return told_of(left, kept(left, sampling))


def _wrongly_told_of_prompt(run: Emitted, oracle: Oracle, share: float) -> Divergence | None:
    request = run.request
    count = request.sampling.prompt_logprobs if run.choice == 0 and run.tokens else None
    due = len(request.prompt) - 1 if count is not None else 0
    if len(run.prompt_logprobs) != due:
        what = f"{len(run.prompt_logprobs)} tokens of the prompt are told of, not {due}"
        return _divergence("SE-3", what, run, 0, run.tokens[0], float(abs(len(run.prompt_logprobs) - due)), 0.0, ())
    truth = oracle.logits(spell_out(request, request.prompt), 0) if due else torch.empty(0, 1)
    for place, (told, row) in enumerate(zip(run.prompt_logprobs, truth[:due], strict=True), start=1):
        slack = share * float(row.std())
        wrong = wrong_telling(told, row.double().numpy(), request.prompt[place], count, slack)
        if wrong is not None:
            what = f"of token {place} of the prompt: {wrong}"
            return _divergence("SE-3", what, run, 0, run.tokens[0], 2 * slack, 2 * slack, ())
    return None


def _not_of_its_own(run: Emitted, index: int) -> Divergence | None:
    """The token is the one that the engine's own logits lead to."""
    row = run.logits[index].double()
    if not torch.isfinite(row).all():
        return None
    law = law_of(run, index, row)
    seen = (_of("engine", row, run.tokens[index], law.token),)
    return _not_allowed(run, index, law, row, "the engine's own logits lead to", 0.0, seen)


def _not_allowed(
    run: Emitted, index: int, law: Drawn, row: torch.Tensor, others: str, allowed: float, seen: tuple[Seen, ...]
) -> Divergence | None:
    token = run.tokens[index]
    if token in law.allowed:
        return None
    sampling, invariant, aside = run.request.sampling, _sentence(run), ""
    if index < sampling.min_tokens and token in sampling.stop_token_ids:
        invariant, aside = "SC-12", ", a stop token before its time,"
    elif sampling.temperature > 0 and token not in law.tokens:
        aside = ", which may not come at all,"
    what = f"token {token}{aside} where {others} {law.token}"
    return _divergence(invariant, what, run, index, law.token, _apart(law, row, token, law.token), allowed, seen)


def _sentence(run: Emitted) -> str:
    return "SE-1" if run.request.sampling.temperature == 0 else "SE-2"


def _apart(law: Drawn, row: torch.Tensor, one: int, other: int) -> float:
    """How far the scores of two tokens lie apart, or their logits, if one is not in the draw."""
    scores = abs(law.behind(one) - law.behind(other))
    return scores if scores < torch.inf else float((row[one] - row[other]).abs())


def typically_off(runs: Sequence[Emitted], oracle: Oracle, allowed: float) -> tuple[Divergence, Emitted] | None:
    """SE-3: the median over all rows of a run stays within its own bound, which is narrower than that of one row. Names the
    row that is off the most."""
    rows = [(share, number, index) for number, run in enumerate(runs) for index, share in enumerate(worst_shares(run, oracle))]
    if len(rows) < LEAST_ROWS or (middle := sorted(rows)[len(rows) // 2][0]) <= allowed:
        return None
    _share, number, index = max(rows)
    run = runs[number]
    row = oracle.logits(run.forced, len(run.request.prompt) - 1)[index]
    other = _worst_but((run.logits[index].double() - row).abs(), run.tokens[index])
    what = f"logits are typically not {oracle.name}'s (the median of {len(rows)} rows, over the spread)"
    return _divergence("SE-3", what, run, index, other, middle, allowed, _seen(run, index, other, oracle.name, row)), run


def _wrong_token(run: Emitted, oracle: Oracle, index: int, row: torch.Tensor, allowed: float) -> Divergence | None:
    law = law_of(run, index, row, allowed)
    return _not_allowed(
        run, index, law, row, f"{oracle.name} has", 2 * allowed, _seen(run, index, law.token, oracle.name, row)
    )  # fmt: skip


def against_plain(run: Emitted, plain: Emitted, oracle: Oracle, share: float) -> Divergence | None:
    """SE-1, SE-2: the tokens are those of the plain run of the same request, or tie with them where the two part."""
    index = _parting(run.tokens, plain.tokens)
    if index is None:
        return None
    row = oracle.logits(plain.forced, len(plain.request.prompt) - 1)[index]
    slack = share * float(row.std())
    law = law_of(run, index, row, slack)
    token, other = run.tokens[index], plain.tokens[index]
    if {token, other} <= law.allowed:
        return None
    return _divergence(
        _sentence(run), f"token {token} where the plain run has {other}", run, index, other,
        _apart(law, row, token, other), 2 * slack,
        (*_seen(run, index, other, oracle.name, row), _of("plain run", plain.logits[index], token, other)),
    )  # fmt: skip


def bitwise(run: Emitted, plain: Emitted) -> Divergence | None:
    """SE-4 and SE-2 in batch-invariant mode: the same bits of every logit, hence the same tokens."""
    for index, (token, other) in enumerate(zip(run.tokens, plain.tokens, strict=False)):
        ours, theirs = run.logits[index], plain.logits[index]
        if not torch.equal(ours, theirs):
            errors = (ours - theirs).abs()
            against = other if other != token else _worst_but(errors, token)
            seen = (_of("engine", ours, token, against), _of("plain run", theirs, token, against))
            what = "the bits of the logits are not those of the plain run"
            return _divergence("SE-4", what, run, index, against, float(errors.max()), 0.0, seen)
        if token != other:
            seen = (_of("engine", ours, token, other), _of("plain run", theirs, token, other))
            return _divergence("SE-2", f"token {token} where the plain run has {other}", run, index, other, 1.0, 0.0, seen)
    return None


def endings(run: Emitted) -> Divergence | None:
    """SC-12: it ends at its first stop token, else with its last token; never with an error."""
    sampling = run.request.sampling
    stops = [i for i, token in enumerate(run.tokens) if token in sampling.stop_token_ids and i >= sampling.min_tokens]
    should = FinishReason.STOP if stops else FinishReason.LENGTH
    length = stops[0] + 1 if stops else sampling.max_tokens
    if run.end is should and len(run.tokens) == length:
        return None
    index = max(len(run.tokens) - 1, 0)
    found = f"ended by {run.end.value if run.end else 'nothing'} after {len(run.tokens)} tokens {run.message}".strip()
    token = run.tokens[index] if run.tokens else 0
    what = f"{found}; due: {should.value} after {length}"
    return Divergence(
        "SC-12", what, run.request.request_id, run.choice, index, len(run.request.prompt) + index, token, token,
        float(abs(length - len(run.tokens))), 0.0,
    )  # fmt: skip


def explained(divergence: Divergence, run: Emitted, oracle: Oracle) -> Divergence:
    """The divergence with one more party's view of the two candidates."""
    if not run.tokens or any(each.by == oracle.name for each in divergence.seen):
        return divergence
    row = oracle.logits(run.forced, len(run.request.prompt) - 1)[divergence.index]
    return replace(divergence, seen=(*divergence.seen, _of(oracle.name, row, divergence.token, divergence.other)))


def worst_shares(run: Emitted, oracle: Oracle) -> Iterator[float]:
    """For each token: the largest error of a logit, as a share of the spread."""
    if not run.tokens:
        return
    truth = oracle.logits(run.forced, len(run.request.prompt) - 1)
    yield from ((run.logits.double() - truth).abs().amax(dim=1) / truth.std(dim=1)).tolist()


def _parting(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    return next((i for i, (one, other) in enumerate(zip(ours, theirs, strict=False)) if one != other), None)


def _worst_but(errors: torch.Tensor, token: int) -> int:
    """The token that is off the most, `token` left out."""
    others = errors.nan_to_num(nan=torch.inf).clone()
    others[token] = -1.0
    return int(others.argmax())


def _of(by: str, row: torch.Tensor, token: int, other: int) -> Seen:
    return Seen(by, float(row[token]), float(row[other]))


def _seen(run: Emitted, index: int, other: int, name: str, row: torch.Tensor) -> tuple[Seen, ...]:
    token = run.tokens[index]
    return _of("engine", run.logits[index], token, other), _of(name, row, token, other)


def _divergence(
    invariant: str, what: str, run: Emitted, index: int, other: int, error: float, allowed: float, seen: tuple[Seen, ...]
) -> Divergence:
    position = len(run.request.prompt) + index
    token = run.tokens[index]
    return Divergence(invariant, what, run.request.request_id, run.choice, index, position, token, other, error, allowed, seen)
