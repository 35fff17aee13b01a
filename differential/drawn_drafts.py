"""The suite `drawn-drafts`: drafts that were drawn from a law, judged in batches of rows that each have options of their own.
Each draft, each token of each step and what is told of it is the one of an independent account at the same noise.

Owns the judgement, its floors and the verdict. The account is `drawn_law.py`'s, over the logits that a step computed; these in
turn are the reference's within the tolerance of `compare.py` (on the host: they are known). What rounding decides is left out
and counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from differential.compare import tolerance_of
from differential.drawn_law import DRAFT, Account, Chances, Place, account_of, chances_of, first_of, noise, wrong_of_told
from differential.drawn_world import WAYS, Served, Step, Way, requests, serve
from differential.reference import reference_logits
from differential.structured_world import Floats
from differential.threads import one_thread
from differential.well_formed import Malformed
from engine_under_test.sampling.grammar import CompiledGrammars
from engine_under_test.types import History, LogprobsMode, RowId
from properties.grammar_cases import TEXTS
from properties.invariants.catalogue import CATALOGUE
from properties.suite import CheckResult, Failure, Profile, SuiteContext
from properties.verdict import Violation, verdict_of

SUITE_ID = "drawn-drafts"
ROUNDS = {Profile.QUICK: 1, Profile.PR: 3, Profile.NIGHTLY: 40}
MOST_UNDECIDED = 0.02  # of the rows
FLOORS = {  # in a round
    "drafts kept": 150,
    "drafts that fell": 150,
    "bonus tokens": 40,
    "bonus tokens beside rows of more drafts": 25,
    "drafts judged behind drafts that are counted": 12,
    "drafts that a grammar forbids": 8,
    "told behind drafts that fell": 60,
    "told of processed values": 60,
    "drafts drawn": 500,
}


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of a step, and the first of its draws. ``first``: where its first draft stands."""

    step: Step
    number: int
    draw: int
    first: Place
    text: tuple[int, ...]
    drafts: tuple[int, ...]
    tokens: tuple[int, ...]

    @property
    def row_id(self) -> RowId:
        return self.step.plan.row_id(self.number)


@dataclass(slots=True)
class Judge:
    """Serves a way, and judges every row of every step of it that was emitted."""

    reached: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)

    def way(self, way: Way, seed: int, grammars: CompiledGrammars) -> Violation | None:
        """The first violation in it."""
        try:
            served = serve(way, requests(seed), seed, grammars)
        except Malformed as error:
            return _violation("ST-1", way, "a proposal", str(error), "tokens of the vocabulary, each with its law")
        if served.lost:
            return _violation("SC-13", way, "plans", f"one that came to nothing: {served.lost[0]}", "results that fit each row")
        if not served.is_done:
            return _violation("SC-1", way, "requests", "no end", "an end")
        reference = _reference(served)
        for row in _rows(served):
            found = self._row(served, row, reference)
            if found is not None:
                return found
        self.missed += [
            f"{way.name}: {name} {served.reached[name]} of {least}"
            for name, least in way.floors.items()
            if served.reached[name] < least
        ]
        return None

    def _row(self, served: Served, row: _Row, reference: dict[tuple[str, int], Floats]) -> Violation | None:
        logits = [_logits(served, row, place) for place in range(len(row.drafts) + 1)]
        found = self._drafts(served, row) or self._logits(served, row, logits, reference)
        if found is not None:
            return found
        laws = [chances_of(each, row.first.request.sampling, _history(row, place)) for place, each in enumerate(logits)]
        _, told = served.recording.proposed.get((row.row_id, row.first.position), ((), []))
        account = account_of(row.first, laws, row.drafts, told)
        return self._tokens(served, row, account) or self._told(served, row, logits, laws, account)

    def _drafts(self, served: Served, row: _Row) -> Violation | None:
        """What stands in the plan was proposed, drawn from what was said, and not left out for what it is."""
        due, laws = served.recording.proposed.get((row.row_id, row.first.position), ((), []))
        self.asked["ST-1"] += 1
        if row.drafts != due[: len(row.drafts)] or (served.way.is_ample and len(row.drafts) != len(due)):
            return _violation("ST-1", served.way, _words(row), f"drafts {list(row.drafts)}", f"those proposed, {list(due)}")
        for place, (draft, law) in enumerate(zip(due, laws, strict=True)):
            at = row.first._replace(position=row.first.position + place)
            drawn = first_of(law, noise(at, DRAFT, len(law)), 1e-15)
            self.asked["ST-3"] += 1
            self.reached["drafts drawn"] += 1
            if drawn is not None and drawn != draft:
                return _violation("ST-3", served.way, _words(row), f"draft {place} is {draft}", f"{drawn} by its own noise")
        return None

    def _logits(
        self, served: Served, row: _Row, logits: Sequence[Floats], reference: dict[tuple[str, int], Floats]
    ) -> Violation | None:
        """Those of tokens that came are the reference's."""
        whole = reference.get((row.first.request.request_id, row.first.choice))
        if whole is None:
            return None
        for place in range(len(row.tokens)):
            at = row.first.position + place - 1
            if at >= len(whole):
                break
            error, allowed = float(np.abs(logits[place] - whole[at]).max()), tolerance_of_row(whole[at])
            self.asked["SE-3"] += 1
            if error > allowed:
                return _violation("SE-3", served.way, _words(row), f"logits off by {error:.3g}", f"at most {allowed:.3g}")
        return None

    def _tokens(self, served: Served, row: _Row, account: Account) -> Violation | None:
        self.reached["rows"] += 1
        self.reached["undecided"] += not account.is_whole
        due = account.tokens
        if row.tokens[: len(due)] != due or (account.is_whole and len(row.tokens) != len(due)):
            invariant = "ST-1" if row.drafts else "SE-2"
            facts = (f"{'drafts':<13} {list(row.drafts)}", f"{'parameters':<13} {row.first.request.sampling}")
            return _violation(invariant, served.way, _words(row), f"tokens {list(row.tokens)}", f"{list(due)}", facts)
        self._count(row, account)
        return None

    def _count(self, row: _Row, account: Account) -> None:
        if not account.is_whole or not row.drafts:
            return
        reached, sampling = self.reached, row.first.request.sampling
        fell = account.num_kept < len(row.drafts)
        reached["drafts kept"] += account.num_kept
        reached["drafts that fell"] += fell
        reached["bonus tokens"] += not fell
        reached["bonus tokens beside rows of more drafts"] += not fell and len(row.drafts) < max(row.step.plan.num_drafts)
        is_counted = sampling.frequency_penalty or sampling.presence_penalty or sampling.repetition_penalty != 1
        if is_counted and sampling.temperature > 0:
            reached["drafts judged behind drafts that are counted"] += max(min(account.num_kept + 1, len(row.drafts)) - 1, 0)

    def _told(
        self, served: Served, row: _Row, logits: Sequence[Floats], laws: Sequence[Chances], account: Account
    ) -> Violation | None:
        """What is told of each token; and whether a draft fell that a grammar forbids."""
        sampling = row.first.request.sampling
        fallen = account.num_kept if account.is_whole and account.num_kept < len(row.drafts) else None
        if fallen is not None and sampling.grammar is not None:
            self.reached["drafts that a grammar forbids"] += bool(laws[fallen].left[row.drafts[fallen]] == -np.inf)
        columns = row.step.result.logprobs
        told = columns[row.number] if columns else ()
        if sampling.logprobs is None:
            return None
        if len(told) != len(row.tokens):
            return _violation("SE-3", served.way, _words(row), f"{len(told)} tellings", f"one for each of {len(row.tokens)}")
        for place, (each, token) in enumerate(zip(told, row.tokens, strict=True)):
            self.asked["SE-3"] += 1
            wrong = wrong_of_told(each, sampling, logits[place], laws[place], token)
            if wrong is not None:
                return _violation("SE-3", served.way, f"{_words(row)}, token {place}", wrong, "what the law tells")
        self.reached["told of processed values"] += sampling.logprobs_mode is LogprobsMode.PROCESSED
        num_before = sum(row.step.plan.num_drafts[: row.number]) - sum(
            len(tokens) - 1 for tokens in row.step.result.tokens[: row.number] if tokens
        )
        self.reached["told behind drafts that fell"] += num_before > 0
        return None


def tolerance_of_row(row: Floats) -> float:
    """By how much a logit may be off."""
    import torch

    return tolerance_of(torch.float32) * float(row.std())


def _rows(served: Served) -> Iterator[_Row]:
    """Those whose tokens were emitted, with the text in front of them."""
    for step in served.steps:
        plan, draw = step.plan, 0
        for number, drafts in enumerate(plan.drafts()):
            if not plan.samples[number]:
                continue
            request, choice = plan.requests[number], plan.choices[number]
            position = plan.starts[number] + plan.num_tokens[number] - len(drafts)
            if (plan.plan_id, plan.row_id(number)) in served.emitted:
                text = served.texts[request.request_id, choice][:position]
                place = Place(request, choice, position)
                yield _Row(step, number, draw, place, text, drafts, step.result.tokens[number])
            draw += len(drafts) + 1


def _logits(served: Served, row: _Row, place: int) -> Floats:
    """Of the token behind so many drafts."""
    if row.step.logits is not None:
        found: Floats = row.step.logits[row.draw + place]
        return found
    return served.logits_behind((*row.text, *row.drafts[:place]))


def _history(row: _Row, place: int) -> History:
    prompt = row.first.request.prompt
    return History(prompt, (*row.text[len(prompt) :], *row.drafts[:place]))


def _reference(served: Served) -> dict[tuple[str, int], Floats]:
    """By choice: the logits behind each token."""
    if served.weights is None:
        return {}
    return {key: reference_logits(served.weights, text).numpy() for key, text in served.texts.items()}


def _words(row: _Row) -> str:
    at = row.first
    return f"request {at.request.request_id}, choice {at.choice}, position {at.position}, plan {row.step.plan.plan_id}"


def _violation(invariant: str, way: Way, subject: str, found: str, expected: str, facts: tuple[str, ...] = ()) -> Violation:
    return Violation(invariant, CATALOGUE[invariant].name, subject, found, expected, (f"{'served':<13} {way.name}", *facts))


def check_drawn_drafts(context: SuiteContext) -> CheckResult:
    """The suite, up to the first violation."""
    grammars, judge = CompiledGrammars(TEXTS), Judge()
    try:
        with one_thread():
            failure = _run(context, judge, grammars)
    finally:
        grammars.close()
    return _result(judge, failure, ROUNDS[context.profile])


def _run(context: SuiteContext, judge: Judge, grammars: CompiledGrammars) -> Failure | None:
    rounds = ROUNDS[context.profile]
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}
    for number in range(rounds * len(WAYS)):
        found = judge.way(WAYS[number % len(WAYS)], (context.seed + number // len(WAYS)) % 2**31, grammars)
        if found is not None:
            return Failure(found, f"{SUITE_ID}#{context.seed:#x}", again)
        context.progress(number + 1, rounds * len(WAYS))
    return None


def _result(judge: Judge, failure: Failure | None, rounds: int) -> CheckResult:
    reached = judge.reached
    short = [f"{name} {reached[name]} of {rounds * least}" for name, least in FLOORS.items() if reached[name] < rounds * least]
    if reached["undecided"] > MOST_UNDECIDED * reached["rows"]:
        short.append(f"undecided at most {MOST_UNDECIDED:.0%} of {reached['rows']} rows, found {reached['undecided']}")
    missed = () if failure else (*short, *judge.missed)
    return CheckResult(
        SUITE_ID,
        verdict_of(failure, missed),
        examples=rounds * len(WAYS),
        ops=reached["rows"],
        reached={name: reached[name] for name in FLOORS},
        missed=missed,
        invariants=dict(judge.asked),
        failures=(failure,) if failure else (),
        note=f"{reached['rows']:,} rows, {reached['undecided']} of them undecided for rounding, in {len(WAYS)} ways",
    )
