"""The suite `sampler-law`: each token that the sampler of real logits chooses is the one of an independent law, and so is what
it tells of log-probabilities.

Owns how many rows are asked in which profile, what they must decide about, how many may stay undecided, and what becomes of
a wrong token. Three times, with the same law (`models.law_of_filters`, `models.law_of_adjustments`): batches of made rows
(`sampler_cases`) and of rows with a history (`adjusted_cases`) straight through the sampler's entry point, and requests served
by an engine over a model of a large vocabulary (`sampler_served`), where address, history, mask and filters come from plans.
Tokens are compared one by one and exactly; a tie is what that module proves to be one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from differential.adjusted_cases import adjusted_batches
from differential.adjusted_slips import adjusted_slips
from differential.judging import Judge
from differential.running import MakeRunner, transformer_runner
from differential.sampler_cases import Batch, batches
from differential.sampler_rows import Rows, Sample, law_of, smallest
from differential.sampler_served import cases_of, requests, with_likely_stops, worlds
from differential.sampler_slips import Reach
from differential.setting import World
from differential.shrinking import failure_of
from differential.threads import one_thread
from engine_under_test.sampling.torch_sampler import sample_and_tell
from models.law_of_filters import uniforms_at
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import verdict_of

SUITE_ID = "sampler-law"
BATCHES = {Profile.QUICK: 45, Profile.PR: 135, Profile.NIGHTLY: 3_375}
ADJUSTED_BATCHES = {Profile.QUICK: 16, Profile.PR: 48, Profile.NIGHTLY: 1_200}
MOST_UNDECIDED = 0.03  # of the rows, at most: those in which two tokens can not be told apart
_COARSE_EVERY = 7  # of so many batches one has noise of few values
# Rows that decide about each slip (see `sampler_slips`), at least so many for each 100 batches.
FLOORS: Mapping[str, int] = {
    "min_tokens unheeded": 60,
    "ties at the maximum to the highest": 24,
    "ties at the k-th place to the highest": 12,
    "ties at the place where p is reached to the highest": 20,
    "noise again after 4,096 lanes": 25,
    "noise again after 32,768 lanes": 10,
    "noise again after 65,536 lanes": 6,
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

# The same for rows with a history and for what is told, for each 100 batches of these.
FLOORS_ADJUSTED: Mapping[str, int] = {
    "allowed tokens left out": 42,
    "bad words left out": 34,
    "bad words a token late": 20,
    "bad words of single tokens only": 14,
    "bad words that begin in the prompt": 11,
    "bad words behind the eighth left out": 14,
    "processors left out": 11,
    "bias left out": 67,
    "bias behind the sixteenth left out": 30,
    "bias behind the penalties": 2,
    "repetition left out": 54,
    "repetition of the output alone": 40,
    "repetition of the prompt alone": 30,
    "repetition divides whatever the sign": 3,
    "repetition forgets after 128 tokens": 5,
    "frequency left out": 20,
    "frequency counts once": 5,
    "frequency counts at most 16 times": 3,
    "frequency counts the prompt": 23,
    "presence left out": 5,
    "presence in the prompt": 13,
    "penalties without the last token": 16,
    "penalties behind the temperature": 6,
    "raw ones behind the steps": 155,
    "raw ones behind the temperature": 92,
    "processed ones of the raw logits": 178,
    "processed ones in front of the filters": 102,
    "processed ones without the temperature": 42,
    "the token left out": 400,
    "one too few": 400,
    "at most 20 told": 100,
    "top-p near 1 left out": 38,
    "top-k off by one": 55,
    "min-p a little off": 6,
    "equals by falling number": 253,
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
    context: SuiteContext, sample: Sample = sample_and_tell, make_runner: MakeRunner = transformer_runner
) -> CheckResult:
    """The suite, up to the first wrong token or telling, whose batch or workload is shrunk."""
    made, told = BATCHES[context.profile], ADJUSTED_BATCHES[context.profile]
    rows = Rows(sample, reach=Reach({name: floor * made // 100 for name, floor in FLOORS.items()}))
    floors = {name: floor * told // 100 for name, floor in FLOORS_ADJUSTED.items()}
    adjusted = Rows(sample, reach=Reach(floors, slips=adjusted_slips))
    settings = tuple(worlds(context.profile, context.seed))
    served = Served(Reach({name: floor * len(settings) for name, floor in FLOORS_SERVED.items()}))
    with one_thread():
        failure = _first(rows, islice(batches(context.seed), made), context, 0)
        if failure is None:
            failure = _first(adjusted, islice(adjusted_batches(context.seed), told), context, made)
        if failure is None:
            served.judge(context, make_runner, settings)
            failure = served.failure
    return _result(rows, adjusted, served, failure)


def _first(rows: Rows, drawn: Iterator[Batch], context: SuiteContext, num_before: int) -> Failure | None:
    """The first batch that goes wrong."""
    total = BATCHES[context.profile] + ADJUSTED_BATCHES[context.profile] + 1
    for done, batch in enumerate(drawn, start=1):
        is_coarse = done % _COARSE_EVERY == 0
        if (found := rows.judge(batch, is_coarse=is_coarse)) is not None:
            violation, _ = smallest(rows.sample, *found, is_coarse, context.shrink_s)
            again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
            return Failure(violation, f"{SUITE_ID}#{context.seed:#x}", again)
        rows.num_batches += 1
        context.progress(num_before + done, total)
    return None


def _result(rows: Rows, adjusted: Rows, served: Served, failure: Failure | None) -> CheckResult:
    missed = () if failure else (*_missed(rows), *_missed(adjusted), *(f"served, {each}" for each in served.reach.missed()))
    num_rows = rows.num_rows + adjusted.num_rows + served.num_rows
    return CheckResult(
        SUITE_ID,
        verdict_of(failure, missed),
        examples=rows.num_batches + adjusted.num_batches + served.num_worlds,
        ops=num_rows,
        reached={
            **{name: rows.reach.counted[name] for name in FLOORS},
            **{name: adjusted.reach.counted[name] for name in FLOORS_ADJUSTED},
            **{f"served: {name}": served.reach.counted[name] for name in FLOORS_SERVED},
        },
        missed=missed,
        invariants={**dict.fromkeys(("SC-12", "SE-1", "SE-2", "ST-2"), num_rows), "SE-3": adjusted.num_told},
        failures=(failure,) if failure else (),
        note=f"{rows.num_rows + adjusted.num_rows:,} rows, {rows.num_undecided + adjusted.num_undecided} of them undecided for "
        f"rounding; {adjusted.num_told:,} told of; {served.num_rows} tokens served",
    )


def _missed(rows: Rows) -> Iterator[str]:
    yield from rows.reach.missed()
    if rows.num_undecided > MOST_UNDECIDED * rows.num_rows:
        yield f"undecided at most {MOST_UNDECIDED:.0%} of {rows.num_rows} rows, found {rows.num_undecided}"
