"""Claims about the suite `served-law`: an engine as it is passes, noise used twice is found where it was used twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from differential.error_budget import ENTRIES
from differential.markov import LAW, MODE, likeliest, shifts, steps
from differential.served import LENGTH, WAYS, serve
from differential.served_law import LEAST, check_served, differences, neighbours, pooled_law, slug
from engine_under_test.sampling.noise import PhiloxNoise
from properties.suite import Profile, SuiteContext
from properties.verdict import Verdict

Words = npt.NDArray[np.uint32]
Seeds = npt.NDArray[np.uint64]
QUICK = SuiteContext(Profile.QUICK, 1)


@dataclass(frozen=True, slots=True)
class Moved:
    """Noise whose addresses are changed first."""

    change: Callable[[Seeds, Words, Words], tuple[Seeds, Words, Words]]
    noise: PhiloxNoise

    def uniform(self, seeds: Seeds, choices: Words, positions: Words, purpose: int, num_lanes: int) -> npt.NDArray[np.float64]:
        return self.noise.uniform(*self.change(seeds, choices, positions), purpose, num_lanes)

    def uniform_at(
        self, seed: int, choice: int, position: int, purpose: int, lanes: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        return self.noise.uniform_at(seed, choice, position, purpose, lanes)


def test_an_engine_as_it_is_draws_the_law() -> None:
    found = check_served(QUICK)
    assert found.verdict is Verdict.VALID, (found.failures, found.missed)
    assert {each.id for each in found.statistics} < {entry.id for entry in ENTRIES}


@pytest.mark.parametrize(
    ("change", "test"),
    [
        pytest.param(lambda s, c, p: (np.zeros_like(s), c, p), "request", id="the seed fixed across requests"),
        pytest.param(lambda s, c, p: (s, np.zeros_like(c), p), "choice", id="choices that share their noise"),
        pytest.param(lambda s, c, p: (s, c, p & ~np.uint32(1)), "position", id="noise of every other position"),
        pytest.param(
            lambda s, c, p: (np.repeat(s[::2], 2)[: len(s)], np.repeat(c[::2], 2)[: len(s)], np.repeat(p[::2], 2)[: len(s)]),
            "row",
            id="noise of the row above",
        ),
    ],
)
def test_noise_used_twice_is_found_between(change: Callable[..., tuple[Seeds, Words, Words]], test: str) -> None:
    found = check_served(QUICK, Moved(change, PhiloxNoise()))
    assert found.verdict is Verdict.INVALID
    assert any(each.id.endswith(f"-{test}") for each in found.statistics if each.verdict is Verdict.INVALID)


def test_every_way_has_its_entries_in_the_budget() -> None:
    known = {entry.id for entry in ENTRIES}
    assert {f"served-{slug(way)}-law" for way in WAYS} <= known


@pytest.mark.parametrize("num", [8192, 34_816, 10**6])
def test_pooled_cells_expect_enough(num: int) -> None:
    cell, law = pooled_law(num)
    assert law.min() * num >= LEAST
    assert np.allclose(np.bincount(cell, weights=LAW), law)


def test_a_difference_is_uniform_behind_equal_texts_as_behind_different_ones() -> None:
    served = serve(WAYS[0], 40, 5, np.random.default_rng(1))
    choices = dict(neighbours(served))["choice"]
    first = slice(0, len(choices.one), LENGTH)  # both behind the prompt
    begin = served.way.prompt_len
    moved = shifts(served.texts, begin).reshape(-1)
    assert (moved[choices.one[first]] == moved[choices.other[first]]).all()
    numbers = differences(served, choices, np.random.default_rng(2))
    assert abs(numbers.mean() - 0.5) < 0.05
    assert 0 <= numbers.min() < numbers.max() < 1


def test_the_likeliest_tokens_are_steps_of_the_mode() -> None:
    text = [3, 7, 1, 1, 19]
    assert steps(np.array([*text, *likeliest(text, 3)]), 5).tolist() == [MODE] * 3
