"""The suites of speculation pass the engine, and tell what is wrong, and by how much, of every slip."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from differential import verification_power
from differential.enumerated_law import law_of_step
from differential.error_budget import TOTAL_ALPHA
from differential.exact_law import Variables, integrate, total_variation
from differential.rare_counts import miss_statistic, rare_effect
from differential.shared_law import SHARED, num_differing
from differential.suites import VERIFICATION_LAW
from differential.verification_cases import (
    ENGINE,
    EXACT_CASES,
    FOUR,
    OPPOSED,
    RACING,
    Addresses,
    Case,
    Speculator,
    steps,
)
from differential.verification_draws import CERTAIN, WIDE_CASE, grid, of_end, of_joint, pooled, stratified, tally
from differential.verification_law import Count, Found, check_verification, exact_checks, violation_of_law
from differential.verification_power import EFFECT, Design, check_power, design, judge_runs, p_values
from differential.verification_slips import SLIPS, Slip
from engine_under_test.sampling.noise import PhiloxNoise
from engine_under_test.sampling.picking import Pick, Race
from engine_under_test.sampling.verification import TORCH, Rows, verify, weights_behind
from properties.suite import MISS_RATE, CheckResult, Profile, SuiteContext
from properties.verdict import Verdict

NAMED = {slip.name: slip for slip in SLIPS}


def check(who: Speculator = ENGINE, racing: Speculator = RACING, seed: int = 0x4F2A91C) -> CheckResult:
    return check_verification(SuiteContext(Profile.QUICK, seed), who, racing)


def test_the_engines_speculation_is_valid_and_every_test_says_its_power() -> None:
    result = VERIFICATION_LAW.run(SuiteContext(Profile.QUICK, 0x4F2A91C))
    assert (result.verdict, result.failures, result.missed) == (Verdict.VALID, (), ())
    assert sum(answer.alpha for answer in result.statistics) <= TOTAL_ALPHA
    assert all(answer.power >= 0.999 - 1e-9 and 0 < answer.tv_min < 0.05 for answer in result.statistics)
    assert result.examples == result.reached["laws integrated"] + result.reached["verifications drawn"]


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_a_slip_is_found_exactly(slip: Slip) -> None:
    result = check(slip.makes(ENGINE), slip.makes(RACING))
    assert result.verdict is Verdict.INVALID
    assert [answer.id for answer in result.statistics] == ["verification-joint"]  # nothing else need be drawn
    violation = result.failures[0].violation
    assert violation.invariant in ("ST-1", "ST-3")
    assert "total variation" in violation.found or slip.is_between_rows


def test_a_shared_offset_is_told_with_its_bias() -> None:
    violation = check(NAMED["recovery shares the draft's noise"].makes(ENGINE)).failures[0].violation
    assert violation.subject == "the law of three opposed tokens, two drafts, float64, integrated over its noise"
    assert violation.found == "a bias of 19.00% total variation"
    assert violation.facts[-2] == "the text of 3 tokens is biased by a total variation of 16.00%"
    assert "estimated total variation" in violation.facts[-1]


def test_the_estimated_bias_of_a_shared_offset_holds_the_true_one() -> None:
    """Along the sum the law of what the slip does can be integrated; drawn, it lies in the interval that is told."""
    wrong = NAMED["recovery shares the draft's noise"].makes(ENGINE)
    right = law_of_step(FOUR.target, FOUR.proposed, FOUR.width, 0)
    bias = total_variation(integrate(lambda noise, num: steps(FOUR, wrong, noise, Addresses.first(num))).law, right)
    found = check(wrong, wrong).statistics[0].estimate
    assert found is not None
    assert found.low < bias < found.high
    assert found.high - found.low < 0.05 < bias


@pytest.mark.parametrize(
    "name", ["recovery shares the draft's noise", "acceptance off by one", "the bonus from the row before"]
)
def test_a_slip_is_found_by_drawing_as_well(name: str) -> None:
    found = Found()
    context = SuiteContext(Profile.QUICK, 3)
    found.draw(context, ENGINE, NAMED[name].makes(RACING), Count(context, 1), SHARED)
    assert "verification-joint" in {answer.id for answer in found.answers if answer.verdict is Verdict.INVALID}
    assert "estimated total variation" in found.broken[0].found


@pytest.mark.parametrize("case", [*EXACT_CASES, CERTAIN, WIDE_CASE], ids=lambda case: case.name)
def test_rows_that_share_a_law_come_to_the_bits_that_each_has_alone(case: Case) -> None:
    noise = Variables(values=np.random.default_rng(3).random((4096, 4 * case.width + 4)))
    assert num_differing(case, noise, 4096, SHARED, ENGINE) == 0


def test_rows_that_share_a_law_and_get_the_wrong_one_are_told() -> None:
    def one_kind(rows: Rows, kept: torch.Tensor, uniforms: torch.Tensor, pick: Pick) -> torch.Tensor:
        first = weights_behind(rows, kept)[:1].expand(len(kept), -1)
        return pick(first, uniforms)

    wrong = replace(SHARED, verify=lambda rows, noise, pick: verify(rows, noise, pick, TORCH._replace(pick=one_kind)))
    result = check_verification(SuiteContext(Profile.QUICK, 3), shared=wrong)
    assert result.verdict is Verdict.INVALID
    assert "come to something else if rows with one law are judged together" in result.failures[0].violation.found


def test_a_shared_offset_shows_where_laws_are_shared() -> None:
    slip = NAMED["recovery shares the draft's noise"]
    wide = stratified(WIDE_CASE, slip.makes(SHARED), 1 << 15, np.random.default_rng(1), lambda _done: None)
    assert p_values(of_end(wide).question.counts[None], of_end(wide).question.law)[0] < 1e-100


def test_a_race_that_is_none_is_found() -> None:
    class Uniform(Race):
        def __call__(self, weights: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
            return (weights * uniforms).argmax(1)

    violation = check(racing=replace(RACING, pick=Uniform())).failures[0].violation
    assert violation.invariant == "ST-2"
    assert "a bias of" in violation.found


def test_neighbours_that_share_their_noise_are_found() -> None:
    at = grid(8, 1 << 16, FOUR.width + 1)
    halved = Addresses(at.seeds & ~np.uint64(1), at.choices, at.positions)
    asked = {each.question.entry_id: each.question for each in of_joint(steps(FOUR, RACING, PhiloxNoise(), halved))}
    seen = {axis: p_values(question.counts[None], question.law)[0]
            for axis in ("seed", "choice", "position")
            for question in [asked[f"verification-neighbours-in-{axis}"]]}  # fmt: skip
    assert seen["seed"] < 1e-100
    assert min(seen["choice"], seen["position"]) > 1e-6


def test_outcomes_that_can_not_be_are_named() -> None:
    law = law_of_step(OPPOSED.target, OPPOSED.proposed, OPPOSED.width, 0)
    outcomes = steps(OPPOSED, ENGINE, PhiloxNoise(), Addresses.first(20_000))
    impossible = np.array([[0, 0, -1, -1]])
    assert (0, 0, -1, -1) not in law
    cells = pooled(law, tally(np.concatenate((outcomes, impossible))), 20_001)
    assert cells.impossible == ("0 kept, tokens 0 drawn 1 times",)
    assert cells.counts.sum() == 20_001


def test_every_law_is_exact_in_float64_and_near_in_float32() -> None:
    checks = list(exact_checks(Profile.PR))
    assert {each.dtype for each in checks} == {torch.float32, torch.float64}
    assert len(checks) == 29
    assert violation_of_law(checks[-1]) is None


def test_the_effect_that_a_poisson_test_states_is_what_it_finds() -> None:
    effect, power = rare_effect(200.0)
    counts = np.random.default_rng(4).poisson(200 + effect, size=4000)
    assert power == pytest.approx(0.999, abs=1e-6)
    assert 0.9965 < np.mean(counts > 200 + effect / 2) <= 1
    assert effect < 200


# Power


def test_the_power_of_the_tests_is_as_stated() -> None:
    result = check_power(SuiteContext(Profile.QUICK, 3))
    assert (result.verdict, result.failures) == (Verdict.VALID, ())
    assert result.reached["ways to be wrong"] == 4


@pytest.mark.parametrize("slip", SLIPS, ids=lambda slip: slip.name)
def test_a_slip_is_scaled_to_the_effect_that_is_stated(slip: Slip) -> None:
    one = design(slip, EFFECT[Profile.PR])
    assert one.effect == pytest.approx(0.01, rel=1e-6)
    assert 0 < one.share < 1
    assert one.power >= 0.999 - 1e-9


def test_a_test_that_misses_more_than_it_states_is_invalid() -> None:
    def half(slip: Slip, effect: float) -> Design:
        return replace(design(slip, effect / 3), num=design(slip, effect).num)

    result = check_power(SuiteContext(Profile.QUICK, 3), find=half)
    assert result.verdict is Verdict.INVALID
    assert result.failures[0].violation.name == "power as stated"


def test_wrong_speculators_that_pass_are_judged_over_all_ways_together() -> None:
    few, many = (judge_runs(passed, 13, 3e-7) for passed in (2, 3))
    assert (few.verdict, many.verdict) == (Verdict.VALID, Verdict.INVALID)
    assert many.statistic.startswith("3 of 13 wrong speculators pass; rejected from 3 on, a miss rate of ")
    assert (many.effect, many.power) == (MISS_RATE, 0.999)


def test_runs_too_few_to_reject_anything_are_unknown() -> None:
    assert judge_runs(1, 1, 3e-7).verdict is Verdict.UNKNOWN


def test_speculators_that_are_called_wrong_and_are_not_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification_power, "RUNS", {Profile.QUICK: 1})
    one = design(SLIPS[0], 0.03)

    def none(slip: Slip, _effect: float) -> Design:
        return replace(one, slip=Slip(slip.name, lambda right: right), share=1.0)

    result = check_power(SuiteContext(Profile.QUICK, 3), find=none)
    answer = next(each for each in result.statistics if each.id == "power-runs")
    assert (answer.verdict, result.verdict) == (Verdict.INVALID, Verdict.INVALID)
    assert "4 of 4 that ran pass" in result.note


def test_the_miss_rate_that_a_count_of_misses_states_is_what_it_finds() -> None:
    one = miss_statistic("x", "", "samples", 0, 20_000, 1e-8)
    missed = np.random.default_rng(4).binomial(20_000, one.tv_min + 0.001, size=4000)
    assert one.tv_min < 0.004
    rejected = [miss_statistic("x", "", "samples", count, 20_000, 1e-8).verdict is Verdict.INVALID for count in set(missed)]
    least = min(count for count, is_rejected in zip(set(missed), rejected, strict=True) if is_rejected)
    assert 0.9965 < np.mean(missed >= least) <= 1
