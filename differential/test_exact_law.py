"""The integral over noise addresses is exact, shows a draw used twice, and claims nothing that it did not see."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from differential.enumerated_law import completed, law_of_end, law_of_step, law_of_text
from differential.exact_law import ForeignNoise, NotIntegrable, Outcomes, integrate, total_variation
from differential.exact_race import race_violation
from differential.verification_cases import ENGINE, FIRST, FOUR, MIXED, OPPOSED, Addresses, Case, steps
from engine_under_test.sampling.picking import RACE, WALK
from engine_under_test.seams import Noise, Purpose


def columns(num: int, position: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.arange(num, dtype=np.uint64), np.zeros(num, np.uint32), np.full(num, position, np.uint32)


def two_coins(noise: Noise, num: int) -> Outcomes:
    """Heads below 0.3, and below 0.6 at another purpose."""
    one, other = (noise.uniform(*columns(num), purpose, 1)[:, 0] for purpose in (Purpose.ACCEPT, Purpose.RECOVER))
    return np.stack([one < 0.3, other < 0.6], axis=1).astype(np.int64)


def one_coin_twice(noise: Noise, num: int) -> Outcomes:
    one, other = (noise.uniform(*columns(num), Purpose.ACCEPT, 1)[:, 0] for _ in range(2))
    return np.stack([one < 0.3, other < 0.6], axis=1).astype(np.int64)


def test_two_draws_are_independent_and_one_used_twice_is_not() -> None:
    assert integrate(two_coins).law == pytest.approx({(1, 1): 0.18, (1, 0): 0.12, (0, 1): 0.42, (0, 0): 0.28}, abs=1e-14)
    assert integrate(one_coin_twice).law == pytest.approx({(1, 1): 0.3, (0, 1): 0.3, (0, 0): 0.4}, abs=1e-14)


def test_a_change_between_two_places_looked_at_is_found_with_both_of_its_ends() -> None:
    def narrow(noise: Noise, num: int) -> Outcomes:
        drawn = noise.uniform(*columns(num), Purpose.SAMPLE, 1)
        return (1 + (drawn > 0.5001) + (drawn > 0.5002)).astype(np.int64)

    assert integrate(narrow).law == pytest.approx({(1,): 0.5001, (2,): 0.0001, (3,): 0.4998}, abs=1e-14)


def test_a_draw_that_is_asked_for_only_sometimes_is_a_variable_too() -> None:
    def lazy(noise: Noise, num: int) -> Outcomes:
        seeds, choices, positions = columns(num)
        found = (noise.uniform(seeds, choices, positions, Purpose.SAMPLE, 1)[:, 0] < 0.25).astype(np.int64)
        again = np.flatnonzero(found)
        drawn = noise.uniform(seeds[again], choices[again], positions[again] + np.uint32(1), Purpose.SAMPLE, 1)[:, 0]
        found[again] += drawn < 0.5
        return found[:, None]

    assert integrate(lazy).law == pytest.approx({(0,): 0.75, (1,): 0.125, (2,): 0.125}, abs=1e-14)


def test_noise_of_another_row_is_told() -> None:
    def shared(noise: Noise, num: int) -> Outcomes:
        seeds, choices, positions = columns(num)
        return (noise.uniform(np.zeros_like(seeds), choices, positions, Purpose.SAMPLE, 1) < 0.5).astype(np.int64)

    with pytest.raises(ForeignNoise, match="in another order"):
        integrate(shared)


def test_what_is_not_constant_on_boxes_is_not_claimed() -> None:
    def diagonal(noise: Noise, num: int) -> Outcomes:
        drawn = noise.uniform(*columns(num), Purpose.SAMPLE, 2)
        return (drawn[:, :1] < drawn[:, 1:]).astype(np.int64)

    with pytest.raises(NotIntegrable):
        integrate(diagonal)


def test_the_race_is_won_as_weights_say_and_a_walk_is_no_race() -> None:
    assert race_violation(RACE) is None
    assert race_violation(WALK) is not None


@pytest.mark.parametrize("case", [MIXED, FOUR], ids=lambda case: case.name)
def test_the_enumerated_law_is_lossless_and_fits_its_short_form(case: Case) -> None:
    law = law_of_step(case.target, case.proposed, case.width, 0)
    assert sum(law.values()) == pytest.approx(1, abs=1e-15)
    text = law_of_text(case.target, 3, 0)
    assert total_variation(completed(law, case.target, 3), text) < 1e-15
    ends = law_of_end(case.target, case.proposed, case.width, 0)
    for (kept, token), share in np.ndenumerate(ends):
        assert sum(chance for each, chance in law.items() if (each[0], each[1 + kept]) == (kept, token)) == pytest.approx(share)


@pytest.mark.parametrize("width", [0.001, 0.004, 0.02])
@pytest.mark.parametrize("low", [0.1, 0.46, 0.73])
def test_a_mistake_on_a_narrow_set_of_noise_is_integrated_or_said_not_to_be(width: float, low: float) -> None:
    """Verification that goes wrong where one number lies in so narrow a part."""
    right = law_of_step(OPPOSED.target, OPPOSED.proposed, OPPOSED.width, 0)

    def wrong(noise: Noise, num: int) -> Outcomes:
        found = steps(OPPOSED, ENGINE, noise, Addresses.first(num)).copy()
        drawn = noise.uniform(*columns(num, FIRST), Purpose.ACCEPT, 1)[:, 0]
        found[(low < drawn) & (drawn < low + width), 1] = 0
        return found

    with contextlib.suppress(NotIntegrable):
        assert total_variation(integrate(wrong).law, right) > 0.3 * width
