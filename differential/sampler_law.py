"""The suite `sampler-law`: each token that the sampler of real logits chooses is the one of an independent law.

Owns how many rows are asked in which profile, what they must decide about, how many may stay undecided, and what becomes of
a wrong token. Twice, with the same law (`models.law_of_filters`): batches of made rows (`sampler_cases`) straight through the
sampler's entry point, and requests served by an engine over a model of a large vocabulary (`sampler_served`), where address,
mask and filters come from plans. Tokens are compared one by one and exactly; a tie is what that module proves to be one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import numpy.typing as npt
import torch

from differential.judging import Judge
from differential.running import MakeRunner, transformer_runner
from differential.sampler_cases import Batch, Case, batches
from differential.sampler_served import cases_of, requests, with_likely_stops, worlds
from differential.sampler_slips import Reach, slips
from differential.setting import World
from differential.shrinking import failure_of
from differential.threads import one_thread
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.sampler import Draws
from engine_under_test.sampling.torch_sampler import sample as torch_sample
from engine_under_test.seams import Noise
from engine_under_test.types import SamplingParams
from models.law import uniforms
from models.law_of_filters import Address, Drawn, Floats, Kept, Tokens, UniformsAt, drawn, kept, masked, uniforms_at
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Verdict, Violation

SUITE_ID = "sampler-law"
BATCHES = {Profile.QUICK: 45, Profile.PR: 135, Profile.NIGHTLY: 3_375}
MOST_UNDECIDED = 0.03  # of the rows, at most: those in which two tokens can not be told apart
_COARSE = 16  # values of the noise of every so-manieth batch: among equal logits equal scores, which go to the lowest
_COARSE_EVERY = 7
# Rows that decide about each slip (see `sampler_slips`), at least so many for each 100 batches.
FLOORS: Mapping[str, int] = {
    "min_tokens unheeded": 60,
    "ties at the maximum to the highest": 24,
    "ties at the k-th place to the highest": 12,
    "ties at the place where p is reached to the highest": 20,
    "noise again after 4,096 lanes": 25,
    "noise again after 32,768 lanes": 10,
    "noise of fewer digits": 8,
    "seed cut to 32 bits": 75,
    "seed as a double": 55,
    "seed as a signed number": 37,
    "position left out": 110,
    "position of the output": 110,
    "position cut to 16 bits": 38,
    "choice left out": 75,
    "top-k left out": 15,
    "top-p left out": 22,
    "min-p left out": 10,
}

# The same for tokens served, in each world.
FLOORS_SERVED: Mapping[str, int] = {
    "min_tokens unheeded": 5,
    "noise again after 4,096 lanes": 10,
    "seed cut to 32 bits": 10,
    "seed as a double": 8,
    "position left out": 15,
    "position of the output": 15,
    "choice left out": 8,
}

TorchSample = Callable[[torch.Tensor, Draws, Noise], list[int]]


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

    sample: TorchSample
    noise: Noise = field(default_factory=PhiloxNoise)
    reach: Reach = field(default_factory=lambda: Reach({}))
    num_rows: int = 0
    num_undecided: int = 0

    def judge(self, batch: Batch, *, is_coarse: bool) -> tuple[Violation, Batch] | None:
        """The first row of a batch whose token is not the law's. Counts what the others decided about."""
        found = self.tokens(batch, is_coarse)
        if isinstance(found, Violation):
            return found, batch
        noise = coarse_at if is_coarse else uniforms_at
        for case, token in zip(batch.cases, found, strict=True):
            row, draw = law_of(case, noise)
            if token not in draw.allowed:
                return _violation(case, batch, token, row, draw, noise), batch
            self.num_rows += 1
            self.num_undecided += len(draw.allowed) > 1
            self.reach.take(case, row, draw, noise)
        return None

    def tokens(self, batch: Batch, is_coarse: bool) -> list[int] | Violation:
        """What the sampler says, and whether it left the logits as they were."""
        logits = torch.from_numpy(np.stack([case.logits for case in batch.cases]))
        asked = logits.bfloat16() if batch.is_bfloat16 else logits.clone()
        tokens = self.sample(asked, draws_of(batch.cases), CoarseNoise() if is_coarse else self.noise)
        if not torch.equal(asked.float(), logits):
            return Violation(
                "SE-3", "log-probabilities", _words(batch), "the sampler changed the logits", "they stay as they are"
            )
        if len(tokens) != len(batch.cases):
            return Violation(
                "SC-13", "rows", _words(batch), f"{len(tokens)} tokens", f"one for each of {len(batch.cases)} rows"
            )
        return tokens


def draws_of(cases: Sequence[Case]) -> Draws:
    """What the rows ask, as the sampler takes it."""
    return Draws(
        [case.sampling for case in cases],
        [case.choice for case in cases],
        [case.position for case in cases],
        [case.prompt_len for case in cases],
    )


def law_of(case: Case, noise: UniformsAt = uniforms_at) -> tuple[Kept, Drawn]:
    """What may come of a row, and what does."""
    row = kept(masked(case.logits.astype(np.float64), case.sampling, case.address.index), case.sampling)
    return row, drawn(row, case.address, noise)


@dataclass(slots=True)
class Served:
    """Requests served by an engine, and what their tokens decided about."""

    reach: Reach
    num_worlds: int = 0
    num_rows: int = 0
    failure: Failure | None = None

    def judge(self, context: SuiteContext, make_runner: MakeRunner, told: Sequence[World]) -> None:
        """Every world, up to the first divergence, which is shrunk."""
        for world in told:
            judge = Judge(world.model, make_runner, asks_second_oracle=False, asks_plain_run=False, asks_plans=False)
            asked = with_likely_stops(judge, world, requests(world.model.seed))
            judged = judge.judge(world, asked)
            if judged.violation is not None:
                seed = f"{SUITE_ID}#{context.seed:#x}"
                self.failure = failure_of(judge, world, asked, judged.violation, seed, max_seconds=context.shrink_s)
                return
            self.num_worlds += 1
            for case in cases_of(judged.ran):
                self.num_rows += 1
                self.reach.take(case, *law_of(case), uniforms_at)


def check_sampler_law(
    context: SuiteContext, sample: TorchSample = torch_sample, make_runner: MakeRunner = transformer_runner
) -> CheckResult:
    """The suite, up to the first wrong token, whose batch or workload is shrunk."""
    total = BATCHES[context.profile]
    rows = Rows(sample, reach=Reach({name: floor * total // 100 for name, floor in FLOORS.items()}))
    told = tuple(worlds(context.profile, context.seed))
    served = Served(Reach({name: floor * len(told) for name, floor in FLOORS_SERVED.items()}))
    failure: Failure | None = None
    done = 0
    with one_thread():
        for done, batch in enumerate(islice(batches(context.seed), total), start=1):
            is_coarse = done % _COARSE_EVERY == 0
            if (found := rows.judge(batch, is_coarse=is_coarse)) is not None:
                failure = _failure(sample, *found, is_coarse, context)
                break
            context.progress(done, total + 1)
        if failure is None:
            served.judge(context, make_runner, told)
            failure = served.failure
    return _result(rows, served, failure, done)


def _result(rows: Rows, served: Served, failure: Failure | None, done: int) -> CheckResult:
    missed = () if failure else (*_missed(rows), *(f"served, {each}" for each in served.reach.missed()))
    num_rows = rows.num_rows + served.num_rows
    return CheckResult(
        SUITE_ID,
        Verdict.INVALID if failure else Verdict.UNKNOWN if missed else Verdict.VALID,
        examples=done + served.num_worlds,
        ops=num_rows,
        reached={
            **{name: rows.reach.counted[name] for name in FLOORS},
            **{f"served: {name}": served.reach.counted[name] for name in FLOORS_SERVED},
        },
        missed=missed,
        invariants=dict.fromkeys(("SC-12", "SE-1", "SE-2", "ST-2"), num_rows),
        failures=(failure,) if failure else (),
        note=f"{rows.num_rows:,} rows, {rows.num_undecided} of them undecided for rounding; {served.num_rows} tokens served",
    )


def _missed(rows: Rows) -> Iterator[str]:
    yield from rows.reach.missed()
    if rows.num_undecided > MOST_UNDECIDED * rows.num_rows:
        yield f"undecided at most {MOST_UNDECIDED:.0%} of {rows.num_rows} rows, found {rows.num_undecided}"


# A wrong token


def _violation(case: Case, batch: Batch, token: int, row: Kept, draw: Drawn, noise: UniformsAt) -> Violation:
    name, invariant = _broken(case, token, row)
    behind = draw.behind(token)
    said = f"token {token}, " + (f"whose score is {behind:.4g} lower" if np.isfinite(behind) else "which may not come at all")
    explained = [slip for slip, other in slips(case, row, noise) if other() == token]
    address = case.address
    facts = (
        f"{'logits':<13} {case.kind}, {len(case.logits):,} tokens; token {token}: {_logit(case, token)}, "
        f"token {draw.token}: {case.logits[draw.token]:.6g}",
        f"{'parameters':<13} {_told(case.sampling)}",
        f"{'address':<13} seed {address.seed}, choice {address.choice}, position {address.position} (output {address.index})",
        f"{'kept':<13} {len(row.tokens):,} tokens" + ("" if row.temperature else " (greedy)"),
        *((f"{'as it would':<13} be with: {', '.join(explained)}",) if explained else ()),
    )
    return Violation(invariant, name, _words(batch), said, f"token {draw.token}", facts)


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
    names = ("temperature", "min_p", "top_k", "top_p", "min_tokens", "stop_token_ids")
    told = [f"{name} {getattr(sampling, name)}" for name in names if getattr(sampling, name) != getattr(plain, name)]
    return ", ".join(told) or "greedy"


def _words(batch: Batch) -> str:
    num = len(batch.cases)
    return f"a batch of {num} row{'s' if num > 1 else ''}{' in bfloat16' if batch.is_bfloat16 else ''}"


def _failure(sample: TorchSample, violation: Violation, batch: Batch, is_coarse: bool, context: SuiteContext) -> Failure:
    """The wrong token in the smallest batch found, each tried with fresh noise: rows, then their parameters and vocabulary."""
    ends_at = time.monotonic() + context.shrink_s
    is_better = True
    while is_better and time.monotonic() < ends_at:
        is_better = False
        for smaller in _smaller(batch):
            found = Rows(sample).judge(smaller, is_coarse=is_coarse) if time.monotonic() < ends_at else None
            if found is not None and found[0].invariant == violation.invariant:
                (violation, batch), is_better = found, True
                break
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
    return Failure(violation, f"{SUITE_ID}#{context.seed:#x}", again)


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
        if 0 < less < size and np.isfinite(max(case.logits[:less].max() for case in cases)):
            yield replace(batch, cases=tuple(replace(case, logits=case.logits[:less]) for case in cases))


def _smaller_cases(case: Case) -> Iterator[Case]:
    sampling, plain = case.sampling, SamplingParams()
    for name in ("min_p", "top_k", "top_p", "stop_token_ids", "seed"):
        if getattr(sampling, name) != getattr(plain, name):
            yield replace(case, sampling=replace(sampling, **{name: getattr(plain, name)}))
    if sampling.temperature not in (0.0, 1.0):
        yield replace(case, sampling=replace(sampling, temperature=1.0))
    if case.choice:
        yield replace(case, choice=0)
    if case.prompt_len > 1:
        yield replace(case, prompt_len=1, position=case.address.index + 1)
