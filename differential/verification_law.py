"""The suite `verification-law`: speculation does not change what is said. (ST-1, ST-3)

First exactly: the law of (drafts kept, tokens) of small cases, and of texts over several steps, integrated over the noise
addresses of the engine's own code and compared with the enumerated one; the race over lanes by itself. Then by drawing, where
exactness does not reach: with the engine's noise, its race, large vocabularies, rare tokens, neighbours. The first wrong law
is told with its bias; then one question is drawn all the same, for an estimate of it. Never: a second try.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from differential.enumerated_law import Law, completed, law_of_step, law_of_text
from differential.error_budget import Ledger
from differential.exact_law import (
    ForeignNoise,
    NotIntegrable,
    Outcomes,
    System,
    Variables,
    integrate,
    largest_difference,
    total_variation,
)
from differential.exact_race import race_violation
from differential.sampling_stats import judge
from differential.shared_law import SHARED, num_differing
from differential.threads import one_thread
from differential.verification_cases import (
    ENGINE,
    EXACT_CASES,
    FOUR,
    MIXED,
    RACING,
    TEXT_CASES,
    Addresses,
    Case,
    LawChanged,
    Speculator,
    steps,
    texts,
)
from differential.verification_draws import (
    CERTAIN,
    JOINT,
    TEXTS,
    WIDE,
    WIDE_CASE,
    Asked,
    by_address,
    of_certain,
    of_end,
    of_joint,
    of_rare,
    of_text,
    of_texts,
    stratified,
    told,
)
from differential.well_formed import Malformed
from engine_under_test.sampling.picking import Pick
from engine_under_test.seams import Noise
from properties.suite import CheckResult, Failure, Profile, Statistic, SuiteContext
from properties.verdict import Verdict, Violation, merge

SUITE_ID = "verification-law"
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-6}
_COMPARED = 8192  # rows that are judged either way
_LOSSLESS = ("ST-1", "speculation is lossless")
_OF_NOISE = {f"verification-neighbours-in-{axis}" for axis in ("seed", "choice", "position")}


@dataclass(frozen=True, slots=True)
class Exact:
    """One law to integrate: what is run, and what must come of it."""

    name: str
    system: System
    law: Law
    dtype: torch.dtype
    case: Case | None = None  # of single verifications


def exact_checks(profile: Profile, who: Speculator = ENGINE) -> Iterator[Exact]:
    """Every case in float64 and float32; texts in float64 (profile quick: the small ones)."""
    for dtype in TOLERANCE:
        most = None if profile is not Profile.QUICK else 8 if dtype is torch.float64 else 1
        for case in EXACT_CASES[:most]:
            law = law_of_step(case.target, case.proposed, case.width, 0)
            yield Exact(case.name, _steps_of(case, who, dtype), law, dtype, case)
    if profile is not Profile.QUICK:
        for case, length in TEXT_CASES:
            yield Exact(f"the first {length} of {case.name}", _texts_of(case, length, who), law_of_text(case.target, length, 0),
                        torch.float64)  # fmt: skip


def _steps_of(case: Case, who: Speculator, dtype: torch.dtype) -> System:
    return lambda noise, num: steps(case, who, noise, Addresses.first(num), dtype)


def _texts_of(case: Case, length: int, who: Speculator) -> System:
    def system(noise: Noise, num: int) -> Outcomes:
        found = texts(case, length, who, noise, Addresses.first(num))
        return np.concatenate((np.full((len(found), 1), length), found), axis=1)

    return system


def violation_of_law(exact: Exact) -> Violation | None:
    """What is wrong with one law, and by how much. NotIntegrable if it can not be said."""
    dtype = str(exact.dtype).removeprefix("torch.")
    subject = f"the law of {exact.name}, {dtype}, integrated over its noise"
    try:
        found = integrate(exact.system).law
    except ForeignNoise as error:
        return Violation("ST-3", "noise", subject, str(error), "a function of the noise at each row's own addresses")
    except (LawChanged, Malformed) as error:
        return _unread(subject, error)
    right = exact.law if exact.case is not None else {(len(text), *text): share for text, share in exact.law.items()}
    tolerance = TOLERANCE[exact.dtype]
    if largest_difference(found, right) <= tolerance:
        return _not_lossless(exact, found, tolerance, subject)
    worst = sorted({*found, *right}, key=lambda each: -abs(found.get(each, 0.0) - right.get(each, 0.0)))[:6]
    bias = total_variation(found, right)
    facts = [f"{told(each):<24} {found.get(each, 0.0):.6f} of the time, {right.get(each, 0.0):.6f} is right" for each in worst]
    if exact.case is not None:
        length = exact.case.width + 1
        text = total_variation(completed(found, exact.case.target, length), law_of_text(exact.case.target, length, 0))
        facts.append(f"the text of {length} tokens is biased by a total variation of {text:.2%}")
    return Violation(*_LOSSLESS, subject, f"a bias of {bias:.2%} total variation", f"none beyond {tolerance:.0e}", tuple(facts))


def _unread(subject: str, error: LawChanged | Malformed) -> Violation:
    """Of an answer that says nothing of a law, since it is none."""
    if isinstance(error, LawChanged):
        return Violation(*_LOSSLESS, subject, f"verification changed {error}", "what it is handed stays as it is")
    return Violation(*_LOSSLESS, subject, str(error), "for each row a number of its drafts and a token of the vocabulary")


def _not_lossless(exact: Exact, found: Law, tolerance: float, subject: str) -> Violation | None:
    """The enumerated law, completed by the target, must be the target's: a check of the law itself."""
    if exact.case is None:
        return None
    length = exact.case.width + 1
    off = largest_difference(completed(found, exact.case.target, length), law_of_text(exact.case.target, length, 0))
    if off <= tolerance:
        return None
    return Violation(*_LOSSLESS, subject, f"texts of {length} tokens off by {off:.1e}", f"no more than {tolerance:.0e}")


@dataclass(slots=True)
class Count:
    """How many draws are done of how many."""

    context: SuiteContext
    total: int
    done: int = 0

    def __call__(self, num: int) -> None:
        self.done += num
        self.context.progress(self.done, self.total)


def questions(context: SuiteContext, racing: Speculator, count: Count) -> Iterator[Asked]:
    """What is asked of draws with the engine's noise and its race. Questions and runs whose seeds are near each other shall not
    share addresses: 2^28 seeds lie between them."""
    profile, seed = context.profile, context.seed << 32
    yield from of_joint(by_address(FOUR, racing, seed, JOINT[profile], count))
    yield of_text(of_texts(MIXED, racing, seed + (1 << 28), TEXTS[profile], count))
    yield of_certain(by_address(CERTAIN, racing, seed + (2 << 28), JOINT[profile], count))


@dataclass(slots=True)
class Found:
    """What a run has come to so far. ``missed``: laws of which nothing can be said."""

    broken: list[Violation] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    answers: list[Statistic] = field(default_factory=list)
    num_exact: int = 0

    def integrate(self, profile: Profile, who: Speculator, pick: Pick) -> None:
        """Every law exactly, up to the first that is wrong."""
        if (broken := race_violation(pick)) is not None:
            self.broken.append(broken)
            return
        for exact in exact_checks(profile, who):
            try:
                broken = violation_of_law(exact)
            except NotIntegrable as error:
                self.missed.append(f"{exact.name} could not be integrated: {error}")
                continue
            if broken is not None:
                self.broken.append(broken)
                return
            self.num_exact += 1

    def draw(self, context: SuiteContext, who: Speculator, racing: Speculator, count: Count, shared: Speculator) -> None:
        """Every question to draws, each once. Before ``shared`` stands for ``who`` it must come to the same."""
        try:
            self._draw(context, who, racing, count, shared)
        except (LawChanged, Malformed) as error:
            self.broken.append(_unread("a verification that was drawn", error))

    def _draw(self, context: SuiteContext, who: Speculator, racing: Speculator, count: Count, shared: Speculator) -> None:
        ledger = Ledger()
        for asked in questions(context, racing, count):
            self.judge(asked, ledger)
        chance = np.random.default_rng([context.seed, 1])
        if differing := num_differing(WIDE_CASE, Variables(values=chance.random((_COMPARED, 24))), _COMPARED, shared, who):
            found = f"{differing} come to something else if rows with one law are judged together"
            self.broken.append(Violation(*_LOSSLESS, f"{_COMPARED:,} rows of {WIDE_CASE.name}, equal noise", found, "none"))
            return
        try:
            wide = stratified(WIDE_CASE, shared, WIDE[context.profile], chance, count)
        except NotIntegrable as error:
            self.missed.append(f"{WIDE_CASE.name}: {error}")
            return
        self.judge(of_end(wide), ledger)
        answer, broken = of_rare(wide, ledger.take("verification-rare"))
        self.answers.append(answer)
        if broken is not None:
            self.broken.append(broken)

    def estimate(self, context: SuiteContext, racing: Speculator, count: Count) -> None:
        """When a law is known to be wrong: the joint law by drawing, for an estimate of the bias where the race chooses."""
        count.total = JOINT[context.profile]
        try:
            outcomes = by_address(FOUR, racing, context.seed << 32, JOINT[context.profile], count)
        except (LawChanged, Malformed):
            return  # which has been told
        self.judge(of_joint(outcomes)[0], Ledger())
        first, drawn = self.broken[0], self.answers[0]
        told = f"{drawn.n:,} verifications with the engine's noise and its race ({drawn.null}): {drawn.estimated}"
        self.broken[0] = replace(first, facts=(*first.facts, told))

    def judge(self, asked: Asked, ledger: Ledger) -> None:
        answer = judge(asked.question, ledger)
        self.answers.append(answer)
        if answer.verdict is Verdict.INVALID:
            self.broken.append(_violation_of_draws(asked, answer))
        if asked.impossible:
            subject = f"{answer.n:,} verifications ({asked.question.null})"
            self.broken.append(Violation(*_LOSSLESS, subject, asked.impossible[0], "what has no probability never comes"))


def check_verification(
    context: SuiteContext, who: Speculator = ENGINE, racing: Speculator = RACING, shared: Speculator = SHARED
) -> CheckResult:
    """The suite: all laws exactly; if they are right, all draws. ``who`` picks along the sum, ``racing`` by the race, and
    ``shared`` as ``who``, with what many rows share computed once."""
    again = {"suite": SUITE_ID, "profile": context.profile.value, "seed": context.seed}  # the same numbers, not another try
    found = Found()
    count = Count(context, 2 * JOINT[context.profile] + TEXTS[context.profile] + WIDE[context.profile])
    with one_thread():
        found.integrate(context.profile, who, racing.pick)
        if not found.broken:
            found.draw(context, who, racing, count, shared)
        else:
            found.estimate(context, racing, count)
    num_joint = sum(answer.id not in _OF_NOISE for answer in found.answers)
    return CheckResult(
        SUITE_ID,
        Verdict.INVALID if found.broken else Verdict.UNKNOWN if found.missed else merge(each.verdict for each in found.answers),
        examples=found.num_exact + count.done,
        ops=count.done,
        reached={"laws integrated": found.num_exact, "verifications drawn": count.done},
        missed=() if found.broken else tuple(found.missed),
        invariants={"ST-1": found.num_exact + num_joint, "ST-2": 1, "ST-3": found.num_exact + len(found.answers) - num_joint},
        failures=tuple(Failure(each, seed=f"{context.seed:#x}", world=again) for each in found.broken),
        statistics=tuple(found.answers),
        note=_note(found),
    )


def _violation_of_draws(asked: Asked, answer: Statistic) -> Violation:
    """With an estimate of the bias."""
    question = asked.question
    observed = question.counts / answer.n
    names = asked.names + ("the rest",) * (len(observed) - len(asked.names))
    worst = np.argsort(-np.abs(observed - question.law), kind="stable")[:6].tolist()
    return Violation(
        question.invariant,
        question.name,
        f"{answer.n:,} verifications ({question.null})",
        f"{answer.statistic}, p = {answer.p:.1e}; {answer.estimated}",
        f"p of at least {answer.alpha:.0e}",
        tuple(f"{names[each]:<24} {observed[each]:.5f} of the time, {question.law[each]:.5f} is right" for each in worst),
    )


def _note(found: Found) -> str:
    if not found.answers:
        return f"{found.num_exact} laws integrated over their noise, then a wrong one"
    joint = found.answers[0]
    if found.broken:
        return f"{found.num_exact} laws integrated over their noise, then a wrong one; {joint.id} by drawing: {joint.estimated}"
    return (
        f"{found.num_exact} laws integrated over their noise; {len(found.answers)} questions to draws, that of the joint law "
        f"finds a total variation of {joint.tv_min:.2%} with power {joint.power:.3f}"
    )
