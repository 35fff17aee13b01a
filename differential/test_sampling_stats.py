"""The sampler's statistical tests pass the engine's sampler and fail one that is a little wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from differential.error_budget import TOTAL_ALPHA, least_favourable
from differential.sampling_stats import LOGITS, POWER, TEMPERATURE, Sample, check_sampler, describe, law_of_difference, softmax
from differential.suites import SUITES
from engine_under_test.sampling import sampler
from engine_under_test.seams import Noise
from properties.suite import CheckResult, Profile, SuiteContext
from properties.verdict import Verdict

LAW = softmax(LOGITS, TEMPERATURE)
Floats = npt.NDArray[np.float64]
Tokens = npt.NDArray[np.int64]


def biased(effect: float) -> Sample:
    """The engine's sampler, but for a share of its tokens moved so that its law stands at this total variation, in the
    direction that is hardest to find."""
    wanted = least_favourable(LAW, effect)
    gains = np.clip(wanted - LAW, 0, None)
    chance = np.random.default_rng(11)

    def sample(logits: Floats, draws: sampler.Draws, noise: Noise) -> Tokens:
        tokens = sampler.sample(logits, draws, noise)
        moves = chance.uniform(size=len(tokens)) > (wanted / LAW)[tokens]
        return np.where(moves, chance.choice(len(LAW), size=len(tokens), p=gains / gains.sum()), tokens)

    return sample


def with_one_address_part_lost(column: str) -> Sample:
    """Draws that differ in this column only share their noise."""

    def sample(logits: Floats, draws: sampler.Draws, noise: Noise) -> Tokens:
        if column == "seed":
            params = [replace(one, seed=one.seed & ~1) for one in draws.params]
            return sampler.sample(logits, draws._replace(params=params), noise)
        return sampler.sample(logits, draws._replace(**{column: [value & ~1 for value in getattr(draws, column)]}), noise)

    return sample


def at_temperature(temperature: float) -> Sample:
    def sample(logits: Floats, draws: sampler.Draws, noise: Noise) -> Tokens:
        return sampler.sample(logits, draws._replace(params=[replace(p, temperature=temperature) for p in draws.params]), noise)

    return sample


def check(sample: Sample = sampler.sample, profile: Profile = Profile.QUICK, seed: int = 0x4F2A91C) -> CheckResult:
    return check_sampler(SuiteContext(profile, seed), sample)


def rejected(result: CheckResult) -> list[str]:
    return [statistic.id for statistic in result.statistics if statistic.verdict is Verdict.INVALID]


@pytest.mark.parametrize("seed", [0, 1, 2**64 - 1])
def test_the_engines_sampler_is_valid(seed: int) -> None:
    result = check(seed=seed)
    assert (result.verdict, result.failures) == (Verdict.VALID, ())
    assert min(statistic.p for statistic in result.statistics) > 1e-4


def test_the_gates_sample_finds_one_percent_and_says_so() -> None:
    suite = SUITES[0]
    result = suite.run(SuiteContext(Profile.PR, 3))
    assert result.verdict is Verdict.VALID
    law = result.statistics[0]
    assert law.tv_min <= 0.01
    assert law.power >= POWER - 1e-9
    assert law.n == result.examples
    assert "total variation of 1.00% with power 0.999" in describe(law)
    assert sum(statistic.alpha for statistic in result.statistics) <= TOTAL_ALPHA


@pytest.mark.parametrize(("effect", "profile"), [(0.03, Profile.QUICK), (0.01, Profile.PR)], ids=["3 %", "1 %"])
def test_a_sampler_with_a_small_bias_is_invalid(effect: float, profile: Profile) -> None:
    result = check(biased(effect), profile)
    assert result.verdict is Verdict.INVALID
    assert "sampler-law" in rejected(result)
    violation = result.failures[0].violation
    assert violation.invariant == "ST-2"
    assert result.failures[0].world == {"suite": "sampler-statistics", "profile": profile.value, "seed": 0x4F2A91C}
    assert len(violation.facts) == len(LAW)


def test_a_temperature_that_is_a_tenth_off_is_invalid() -> None:
    assert np.abs(softmax(LOGITS, TEMPERATURE + 0.1) - LAW).sum() / 2 < 0.04
    assert "sampler-law" in rejected(check(at_temperature(TEMPERATURE + 0.1)))


@pytest.mark.parametrize(
    ("column", "entry"),
    [
        ("seed", "sampler-neighbours-in-seed"),
        ("choices", "sampler-neighbours-in-choice"),
        ("positions", "sampler-neighbours-in-position"),
    ],
    ids=["seed", "choice", "position"],
)
def test_noise_used_twice_is_invalid_in_the_direction_where_it_was_used_twice(column: str, entry: str) -> None:
    result = check(with_one_address_part_lost(column))
    assert [one for one in rejected(result) if one != "sampler-law"] == [entry]
    assert "ST-3" in {failure.violation.invariant for failure in result.failures}


def test_the_law_of_differences_is_the_enumerated_one() -> None:
    enumerated = np.zeros(len(LAW))
    for a, p in enumerate(LAW):
        for b, q in enumerate(LAW):
            enumerated[(b - a) % len(LAW)] += p * q
    assert law_of_difference(LAW) == pytest.approx(enumerated)
    assert LAW.sum() == pytest.approx(1)


def test_a_run_is_a_function_of_its_seed() -> None:
    assert check(seed=5).statistics == check(seed=5).statistics
    assert check(seed=5).statistics != check(seed=6).statistics
